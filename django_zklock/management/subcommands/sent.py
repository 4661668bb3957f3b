"""``zklock sent``: calls of tasks that are sent and have not begun."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_zklock import operations
from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import FOUND_PROBLEM, OK
from django_zklock.serializers import serialize_sent
from django_zklock.zk.formatting import escape_controls

HELP = "list the calls of tasks that are sent and have not begun, for which no other one is sent"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="only of this lock")
    arguments.add_alias(parser)
    arguments.add_format(parser)


def run(terminal: Terminal, *, key: str | None, using: str, format: str, **_options: Any) -> int:  # noqa: A002 - the option's
    with _common.as_command_errors():
        pool = connections[using]
        calls = operations.sent_calls(key, using=using, timeout=_common.answer_timeout(pool, terminal))
    if format == "json":
        terminal.write(_output.object_json({"sent": [serialize_sent(using, each) for each in calls]}))
    elif calls:
        terminal.write(_output.sent_table(calls, terminal))
    else:
        what = "No call" if key is None else f"No call of lock {escape_controls(key)}"
        terminal.write(f"{what} is known to be sent and not begun under {pool.options.root}.\n")
    return OK if calls or key is None else FOUND_PROBLEM
