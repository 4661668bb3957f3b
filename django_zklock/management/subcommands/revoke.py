"""``zklock revoke``: request the release of a lock from its holders."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Collection
from typing import Any

from django.core.management.base import CommandError

from django_zklock import operations
from django_zklock.exceptions import NotHeld, ZooKeeperUnavailable
from django_zklock.management.subcommands import _common, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, FOUND_PROBLEM, OK
from django_zklock.zk.ops.snapshots import QueueEntry
from django_zklock.zk.waiting import Deadline

HELP = "request the release of a lock from its holders"

# Seconds between two reads of the queue with --wait.
POLL_INTERVAL = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_holder(parser)
    parser.add_argument(
        "--wait", metavar="SECONDS", type=arguments.seconds, default=0.0, help="wait until they have released it"
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
    _snapshot, holders = _common.find_holders(terminal, using, key, node)
    if not holders:
        return FOUND_PROBLEM
    why, by = _common.require_reason(reason, terminal), _common.operator()
    revoked = set()
    with _common.as_command_errors():
        for entry in holders:
            try:
                operations.revoke_lock(entry, why, by=by, using=using)
            except NotHeld:
                terminal.write(f"Not held any more by {entry.owner_text}.\n")
            else:
                revoked.add(entry.node)
                terminal.write(f"Release requested from {entry.owner_text}. The holder decides when to release.\n")
        if wait == 0:
            return OK
        try:
            remaining = _wait(using, key, revoked, Deadline.after(wait))
        except ZooKeeperUnavailable as error:
            raise CommandError(
                f"whether it was released is not known: {_common.one_line(error)}; the request stands",
                returncode=COULD_NOT_RUN,
            ) from error
    for entry in remaining:
        terminal.write(f"Still held by {entry.owner_text}.\n")
    if remaining:
        return FOUND_PROBLEM
    terminal.write("None of them holds the lock any more.\n")
    return OK


def _wait(using: str, key: str, nodes: Collection[str], deadline: Deadline) -> list[QueueEntry]:
    """Wait until none of these nodes holds the lock; return those that still hold it at the deadline.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer then.
    """
    while True:
        try:
            snapshot = operations.show_lock(key, using=using)
        except ZooKeeperUnavailable:
            # An outage may be over before the deadline.
            if deadline.passed:
                raise
        else:
            remaining = [entry for entry in snapshot.holders if entry.node in nodes]
            if not remaining or deadline.passed:
                return remaining
        time.sleep(min(POLL_INTERVAL, deadline.capped(POLL_INTERVAL).remaining() or 0.0))
