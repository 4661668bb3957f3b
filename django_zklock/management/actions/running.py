"""``zklock run``: a command under a lock."""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from django_zklock.exceptions import LockLost, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks import zk_lock
from django_zklock.management import arguments, failure
from django_zklock.management.child import CannotStartError, Child
from django_zklock.management.failure import one_line
from django_zklock.management.statuses import (
    CONFLICT,
    COULD_NOT_RUN,
    LOST,
    NOT_EXECUTABLE,
    NOT_FOUND,
    UNAVAILABLE,
)
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock

HELP = "run a command under a lock"

DEFAULT_GRACE = 10.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s KEY [options] -- COMMAND [ARGUMENT ...]"
    arguments.add_key(parser)
    arguments.add_alias(parser)
    parser.add_argument(
        "--timeout", type=arguments.seconds, metavar="SECONDS", help="how long to wait (default: for ever)"
    )
    parser.add_argument(
        "--on-conflict",
        choices=("wait", "fail"),
        default="wait",
        help="what to do if somebody else holds the lock (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=arguments.seconds,
        default=DEFAULT_GRACE,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL when the lock is lost (default: %(default)g)",
    )


def run(
    _terminal: Terminal,
    *,
    key: str,
    using: str,
    timeout: float | None,
    on_conflict: str,
    grace: float | None,
    command: Sequence[str],
    **_options: Any,
) -> int:
    _check_command(command)
    if on_conflict == "fail":
        if timeout is not None:
            raise CommandError("--timeout has no meaning with --on-conflict fail", returncode=COULD_NOT_RUN)
        timeout = 0
    with failure.reported():
        # Without its arguments: they may hold secrets, and everybody may read who holds a lock.
        work = Work(kind="command", name=os.path.basename(command[0]))  # noqa: PTH119 - not always a path
        lock = zk_lock(key, using=using, work=lambda: work)
    child = Child(command, lock=lock, grace=grace)
    with child.watching():
        held = _acquire(lock, timeout)
        try:
            status = child.run(held)
        except CannotStartError as error:
            raise CommandError(str(error), returncode=error.status) from error
        finally:
            # Of a lock that is lost there is nothing to confirm, and perhaps nobody to do it.
            held.release(wait=child.loss is None)
    if child.loss is not None:
        raise CommandError(f"lock {display.visible(key)} was lost while the command ran: {child.loss}", returncode=LOST)
    return status


def _acquire(lock: Lock, timeout: float | None) -> Held:
    try:
        return lock.acquire(timeout)
    except LockTimeout as error:
        raise CommandError(one_line(error), returncode=CONFLICT) from error
    except ZooKeeperUnavailable as error:
        raise CommandError(one_line(error), returncode=UNAVAILABLE) from error
    except LockLost as error:
        raise CommandError(one_line(error), returncode=LOST) from error
    except ZkLockError as error:
        raise CommandError(one_line(error), returncode=COULD_NOT_RUN) from error


def _check_command(command: Sequence[str]) -> None:
    """Refuse what cannot be started before waiting for a lock, not after."""
    if not command:
        raise CommandError('give the command to run after "--"', returncode=COULD_NOT_RUN)
    if shutil.which(command[0]) is None:
        if os.path.sep in command[0] and os.path.exists(command[0]):  # noqa: PTH110 - a word of a command line
            raise CommandError(f"{command[0]}: not executable", returncode=NOT_EXECUTABLE)
        raise CommandError(f"{command[0]}: command not found", returncode=NOT_FOUND)
