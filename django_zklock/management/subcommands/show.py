"""``zklock show``: the queue of one lock."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django_zklock import operations, serializers
from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import FOUND_PROBLEM, OK

HELP = "show the queue of one lock"


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_lock(parser)
    arguments.add_format(parser)


def run(terminal: Terminal, *, key: str, using: str, format: str, **_options: Any) -> int:  # noqa: A002 - the option's
    with _common.as_command_errors():
        pool = connections[using]
        timeout = _common.answer_timeout(pool, terminal)
        snapshot = operations.show_lock(key, using=using, timeout=timeout)
        calls = operations.sent_calls(key, using=using, timeout=timeout)
    if format == "json":
        sent = {"sent": [serializers.serialize_sent(using, each) for each in calls]}
        terminal.write(_output.object_json(serializers.serialize_lock(using, snapshot, time.time()) | sent))
    else:
        terminal.write(_output.queue_table(snapshot, terminal))
        if calls:
            terminal.write(f"Sent, and not begun:\n{_output.sent_table(calls, terminal)}")
        elif snapshot.state == "free":
            _common.write_similar(pool, key, terminal)
    return OK if snapshot.holders else FOUND_PROBLEM
