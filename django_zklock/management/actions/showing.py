"""``zklock show``: the whole line of one lock."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django_zklock import facts
from django_zklock.connections import connections
from django_zklock.management import arguments, failure, rendering
from django_zklock.management.statuses import FINDING, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.zk.inspection import survey

HELP = "show the whole line of one lock"


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_key(parser)
    arguments.add_alias(parser)
    arguments.add_format(parser)


def run(terminal: Terminal, *, key: str, using: str, format: str, **_options: Any) -> int:  # noqa: A002 - the option's
    with failure.reported():
        pool = connections[using]
        line = survey.line(pool, key, timeout=pool.options.connect_timeout)
    if format == "json":
        terminal.write(rendering.as_json(facts.lock(using, line, time.time())))
    else:
        terminal.write(rendering.line_as_table(line, terminal))
    return FINE if line.holders else FINDING
