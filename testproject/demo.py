#!/usr/bin/env python
"""See a lock at work: lost updates without it, none with it, and the live locks in the admin.

Ctrl-C ends everything that was started. The status is 0 if deposits were lost without the lock and none
with it, 1 if not or if something could not be started, 130 if Ctrl-C came before the end was known.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

# The checkout comes last: where the package is installed, that one is used.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from progress import Progress
from stage import LOGIN, PASSWORD, PROCESSES, Stage

from tests.toolbox.processes.process import NotInstalledError, StartError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from billing.rounds import Round

DEPOSITS = 200
# Seconds. A round takes a few; it is given up when nothing has moved for this long.
STANDSTILL = 60.0
# Seconds, more than a session and the next connect may take: deposits that are not done by then have failed.
OUTAGE = 20.0
# Seconds between two looks at the database.
POLL_INTERVAL = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its status."""
    parser = argparse.ArgumentParser(description="See a lock at work.")
    parser.add_argument("--once", action="store_true", help="end when the result is known")
    parser.add_argument(
        "--zookeeper",
        choices=("own", "real"),
        help="start the package's own server, or an installed ZooKeeper (default: the one that ZOOKEEPER_HOSTS names, "
        "else an installed one, else the package's own)",
    )
    options = parser.parse_args(arguments)
    status = 130
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _drop_interrupt
    try:
        print("Starting", flush=True)
        with Stage(options.zookeeper) as stage:
            status = _compare(stage)
            if not options.once:
                _stay(stage)
    except KeyboardInterrupt:
        print("Everything that was started has ended.", flush=True)
    except (NotInstalledError, StartError) as error:
        print(f"demo: {error}", file=sys.stderr)
        status = 1
    return status


# The signals that have come, at most one.
_interrupts: list[int] = []


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupts.append(number)
    # A second Ctrl-C would interrupt the ending of what was started, which takes a few seconds at most.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    # Not print(): what is interrupted may be in the middle of one, and must not be entered again.
    os.write(sys.stdout.fileno(), b"\nEnding what was started\n")
    raise KeyboardInterrupt


def _drop_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Be silent about an interrupt that came in a place where no exception gets out; `_mind_interrupt` brings it."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _mind_interrupt() -> None:
    if _interrupts:
        raise KeyboardInterrupt


def _compare(stage: Stage) -> int:
    """Make the deposits without the lock and with it, and show what became of them."""
    from billing.ledger import audit
    from billing.report import complaints, table
    from billing.rounds import Round
    from billing.tasks import deposit, deposit_naive

    print(f"\n{DEPOSITS} deposits by {PROCESSES} processes, twice", flush=True)
    without = Round("without lock", deposit_naive)
    locked = Round("with @zk_locked", deposit)
    for each in (without, locked):
        _play(each, stage)
    books = audit(without.run), audit(locked.run)
    print(f"\n{table(*books)}\n\n  admin: {stage.url}/admin/django_zklock/lock/ (login {LOGIN} / {PASSWORD})\n")
    found = complaints(*books)
    for complaint in found:
        print(f"demo: {complaint}", file=sys.stderr)
    return 1 if found else 0


def _play(deposits: Round, stage: Stage) -> None:
    with Progress(deposits.run, DEPOSITS) as progress:
        deposits.send(DEPOSITS)
        done = 0
        deadline = time.monotonic() + STANDSTILL
        while done < DEPOSITS:
            time.sleep(POLL_INTERVAL)
            _mind_interrupt()
            stage.check()
            before, done = done, deposits.done()
            progress.show(done)
            if done > before:
                deadline = time.monotonic() + STANDSTILL
            elif time.monotonic() > deadline:
                message = f"{done} of {DEPOSITS} deposits were made, then none for {STANDSTILL:g} s"
                raise StartError(message, stage.worker_log())


def _stay(stage: Stage) -> None:
    """Keep a few locks busy for a look at the admin, until Ctrl-C."""
    from billing.rounds import Round
    from billing.tasks import deposit

    print("Some work goes on, so that there are locks to look at. Ctrl-C ends it all.", flush=True)
    # Most of it is for one account, so that a line forms, and slow enough to be seen.
    trickle = Round("afterwards", deposit, owners=("Ada", "Ada", "Ada", "Barbara"), bank=1.0)
    moved, done, is_out = time.monotonic(), 0, False
    while True:
        _mind_interrupt()
        stage.check()
        now, before, done = time.monotonic(), done, trickle.done()
        if done > before:
            if is_out:
                print("Deposits are made again.", flush=True)
            moved, is_out = now, False
        elif now - moved > OUTAGE:
            if not is_out:
                print(
                    f"No deposit was made for {OUTAGE:g} s: is ZooKeeper away? The work goes on when it is back.",
                    flush=True,
                )
            trickle.give_up()
            moved, is_out = now, True
        # Never more than the worker can take at once: nothing piles up while the demo is left alone.
        trickle.send(PROCESSES - trickle.on_their_way())
        time.sleep(POLL_INTERVAL)


if __name__ == "__main__":
    sys.exit(main())
