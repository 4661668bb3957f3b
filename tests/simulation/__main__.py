"""``python -m tests.simulation --seconds 3600``: worlds one after the other; ``--seed 728`` tells that one."""

from __future__ import annotations

import argparse
import itertools
import os
import sys

from tests.simulation.search import STEPS, run, search
from tests.simulation.setting import draw

# Nothing depends on the order of a set; if that is ever wrong, a seed leads to the same world all the same.
HASHES = "PYTHONHASHSEED"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run worlds for some time; return 1 if something was wrong."""
    if os.environ.get(HASHES) != "0":
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, HASHES: "0"}
        )
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new worlds begin (%(default)s)")
    parser.add_argument("--worlds", type=int, help="how many worlds there are")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one (%(default)s)")
    parser.add_argument("--failures", type=int, default=1, help="how many worlds may go wrong before this ends")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a world before it comes to its end")
    parser.add_argument("--seed", type=int, help="run this world alone, and tell each step")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return tell(arguments.seed, arguments.steps)
    last = None if arguments.worlds is None else arguments.first + arguments.worlds
    seeds = itertools.count(arguments.first) if last is None else range(arguments.first, last)
    seconds = arguments.seconds if last is None else None
    figures = search(seeds, seconds=seconds, most_failures=arguments.failures, steps=arguments.steps)
    for failure in figures.failures:
        seed = failure.setting.seed
        say(f"seed {seed}: {failure.reason}")
        say(f'to see it: make simulate ARGS="--seed {seed}"')
    say(str(figures))
    return 1 if figures.failures else 0


def tell(seed: int, steps: int) -> int:
    """Run one world, and tell who has sent what to whom, and who has believed to hold."""
    world, failure = run(draw(seed), steps=steps, is_told=True)
    for at, who, whom, what in world.story:
        say(f"{at:9.3f}  {who:10} {'' if who == whom else '-> ' + whom:14} {what}")
    say("nothing is wrong" if failure is None else failure.reason)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
