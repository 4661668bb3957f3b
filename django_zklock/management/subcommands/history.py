"""``zklock history``: what was done to locks, when, why, and by which user."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_zklock import operations
from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import FOUND_PROBLEM, OK
from django_zklock.serializers import serialize_action
from django_zklock.zk.formatting import escape_controls

HELP = "show which locks were broken or asked for, by whom, when, and why"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="only this lock")
    arguments.add_alias(parser)
    parser.add_argument("--limit", metavar="NUMBER", type=arguments.count, help="at most this number of actions")
    arguments.add_format(parser)


def run(
    terminal: Terminal,
    *,
    key: str | None,
    using: str,
    limit: int | None,
    format: str,  # noqa: A002 - the option's name
    **_options: Any,
) -> int:
    with _common.as_command_errors():
        pool = connections[using]
        actions = operations.lock_history(key, using=using, timeout=_common.answer_timeout(pool, terminal))
    actions = actions[-limit:] if limit is not None else actions
    if format == "json":
        terminal.write(_output.object_json({"actions": [serialize_action(using, each) for each in actions]}))
    elif actions:
        terminal.write(_output.action_table(actions, terminal))
    else:
        what = "any lock" if key is None else f"lock {escape_controls(key)}"
        terminal.write(f"Nothing is known to have been done to {what} under {pool.options.root}.\n")
    return OK if actions or key is None else FOUND_PROBLEM
