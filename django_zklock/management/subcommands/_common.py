"""What several subcommands share: their errors, the holders of a lock, and the reason for acting on them."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_zklock import operations
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.management.subcommands import _output
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.ops import search
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.pool import Pool

# Seconds. Of several servers another one may accept the connection.
SECOND_TRY = 1.0


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Raise wrong settings, wrong arguments and errors of ZooKeeper as ``CommandError``."""
    try:
        yield
    except (ZkLockError, ImproperlyConfigured, ValueError) as error:
        raise CommandError(one_line(error), returncode=COULD_NOT_RUN) from error


def answer_timeout(pool: Pool, terminal: Terminal) -> float:
    """Connect, and return how many seconds to wait for the answer of ZooKeeper.

    At a terminal the command does not wait for ``CONNECT_TIMEOUT`` if the servers refuse. In a script it does, because
    they may be about to start.
    """
    timeout = pool.options.connect_timeout
    if terminal.is_a_tty and not connections.wait_for_first_answer(pool, timeout):
        return min(timeout, SECOND_TRY)
    return timeout


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line, without control characters: it may quote data of other clients."""
    return escape_controls(str(error))


def find_holders(
    terminal: Terminal, using: str, key: str, node: str | None
) -> tuple[LockSnapshot, Sequence[QueueEntry]]:
    """Return the queue of a lock, and its holders; with ``node`` only the holder of that name.

    If there is none, a message is written, with the other holders. Raises ``CommandError`` if ZooKeeper cannot be read.
    """
    with as_command_errors():
        pool = connections[using]
        snapshot = operations.show_lock(key, using=using, timeout=answer_timeout(pool, terminal))
    holders = [entry for entry in snapshot.holders if node is None or entry.node == node]
    if not holders:
        name = escape_controls(key)
        if snapshot.state == "free":
            terminal.write(f"No lock {name} is in use: it has no holder and no waiter.\n")
        else:
            with_node = "" if node is None else f" with node {escape_controls(node)}"
            terminal.write(f"Lock {name} has no holder{with_node}.\n")
        write_holders(snapshot, terminal)
        if snapshot.state == "free":
            write_similar(pool, key, terminal)
    return snapshot, holders


def write_holders(snapshot: LockSnapshot, terminal: Terminal) -> None:
    """Write the holders of a lock; nothing if it has none."""
    if snapshot.holders:
        terminal.write(f"It is held by:\n{_output.entry_table(snapshot, snapshot.holders, terminal)}")


def write_similar(pool: Pool, key: str, terminal: Terminal) -> None:
    """Write which similar keys have a queue: this one may be a typing error, and that it is free no good news."""
    with as_command_errors():
        similar = search.similar_keys(pool, key, timeout=pool.options.connect_timeout)
    if similar:
        terminal.write(f"Similar keys with a queue: {escape_controls(', '.join(similar))}\n")


def require_reason(given: str | None, terminal: Terminal) -> str:
    """Return the value of ``--reason``, or ask for one on a terminal; raise ``CommandError`` if it is empty."""
    text = given if given is not None or not terminal.can_ask else terminal.ask("Reason: ")
    if not text or not text.strip():
        raise CommandError("a reason is required: --reason", returncode=COULD_NOT_RUN)
    return text.strip()


def operator() -> str:
    """Return the user and the host of this command, as the holder will read them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user; KeyError until Python 3.13
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
