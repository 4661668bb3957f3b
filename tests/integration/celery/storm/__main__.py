"""``python -m tests.integration.celery.storm --seconds 600 --seed 1``."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from .run import judge, read_log, storm


def main() -> int:
    """Run one storm and print its outcome; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long faults strike")
    parser.add_argument("--rate", type=float, default=8.0, help="tasks a second, beside bursts")
    parser.add_argument("--seed", type=int, help="draw the same tasks and faults again")
    parser.add_argument("--without-gate", action="store_true", help="the control: tasks wait in their slots")
    parser.add_argument("--log", type=Path, help="where to write down all that was seen")
    parser.add_argument("--judge", type=Path, metavar="LOG", help="judge what an earlier storm has written down")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        report = judge(read_log(arguments.judge), [], {}, arguments.judge)
        print(report)
        return 1 if report.wrong else 0
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    log = arguments.log or Path(tempfile.gettempdir(), f"storm-{seed}.jsonl")
    print(f"seed {seed}", flush=True)
    report = storm(seed, arguments.seconds, rate=arguments.rate, gate=not arguments.without_gate, log=log)
    print(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
