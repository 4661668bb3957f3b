"""``zklock revoke``: holders asked to let go."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from typing import Any

from django_zklock.exceptions import NotHeld
from django_zklock.management import arguments, failure, holders
from django_zklock.management.statuses import FINDING, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display, revocation
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.inspection import survey
from django_zklock.zk.inspection.survey import Place
from django_zklock.zk.pool import Pool

HELP = "ask the holders of a lock to let go"

# Seconds from one look to the next, while waiting.
INTERVAL = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_key(parser)
    arguments.add_alias(parser)
    arguments.add_node(parser)
    arguments.add_reason(parser)
    parser.add_argument(
        "--wait", metavar="SECONDS", type=arguments.seconds, default=0.0, help="wait until they have let go"
    )


def run(
    terminal: Terminal,
    *,
    key: str,
    using: str,
    node: str | None,
    reason: str | None,
    wait: float | None,
    **_options: Any,
) -> int:
    pool, _line, found = holders.find(terminal, using, key, node)
    if not found:
        return FINDING
    why = f"asked by {holders.operator()}: {holders.reason(reason, 'Why should they let go? ', terminal)}"
    with failure.reported():
        asked = _ask(terminal, pool, found, why)
        if wait == 0:
            return FINE
        staying = _wait(pool, key, {place.node for place in asked}, Deadline.after(wait))
    for place in staying:
        terminal.write(f"Still held by {display.who(place)}.\n")
    if staying:
        return FINDING
    terminal.write("All who were asked have let go.\n")
    return FINE


def _ask(terminal: Terminal, pool: Pool, found: Sequence[Place], why: str) -> list[Place]:
    asked = []
    for place in found:
        try:
            revocation.ask(pool, place.path, why, timeout=pool.options.connect_timeout)
        except NotHeld:  # noqa: PERF203 - the others are asked all the same
            terminal.write(f"{display.who(place)} has let go already.\n")
        else:
            asked.append(place)
            terminal.write(f"{display.who(place)} was asked to let go. It is a request, and nobody is forced.\n")
    return asked


def _wait(pool: Pool, key: str, asked: Collection[str], deadline: Deadline) -> list[Place]:
    """Give who of those at these nodes still holds at the deadline; nobody, as soon as that is so."""
    while True:
        line = survey.line(pool, key, timeout=pool.options.connect_timeout)
        staying = [place for place in line.holders if place.node in asked]
        if not staying or deadline.passed:
            return staying
        time.sleep(min(INTERVAL, deadline.capped(INTERVAL).remaining() or 0.0))
