"""What a worker's main process tells a task about its lock: a header that only the project can write.

A producer can put any header into a message. So this one is signed with Django's signing framework, and names the
task's id, the process that has written it and a number that is used once; the worker takes it out of every message
that it receives.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from django.core.signing import BadSignature, Signer

from django_zklock import exceptions
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import identity

HEADER = "zklock_hold"
_SALT = "django_zklock.contrib.celery.gate"
_ERRORS = ("LockTimeout", "AlreadyAwaited", "LockConflict", "ZooKeeperUnavailable")


class Refused(Exception):  # noqa: N818 - it says what becomes of the header
    """The header cannot be trusted; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a task needs to know of the lock that its worker holds for it, or has not got for it.

    ``origin`` is the main process, ``cell`` and ``nonce`` the place on its board, ``nodes`` the full path of the node
    in each line by the path of the line. ``since`` is in seconds since the Unix epoch, the others in seconds.
    ``contended`` says that it had to wait, ``refusal`` why there is no lock.
    """

    task: str
    origin: str
    cell: int
    nonce: int
    alias: str
    kind: str
    limit: int | None
    paths: list[str]
    nodes: dict[str, str]
    token: int
    since: float
    waited: float
    contended: bool
    session_timeout: float
    holder: str | None = None
    refusal: dict[str, Any] | None = None

    def sign(self) -> str:
        """Give the header."""
        return Signer(salt=_SALT).sign_object(asdict(self))

    def error(self) -> ZkLockError | None:
        """Give the error that the refusal stands for."""
        return _error(self.refusal) if self.refusal is not None else None


def read(header: object, *, task_id: str, origin: str | None) -> Ticket:
    """Read the header that the task ``task_id`` has come with, in a process of the worker ``origin``.

    Raises :class:`Refused` unless that worker's main process has written it, for this task.
    """
    try:
        facts = Signer(salt=_SALT).unsign_object(str(header))
        ticket = Ticket(**facts)
    except (BadSignature, TypeError, ValueError) as error:
        raise Refused("its signature is not ours") from error
    if ticket.task != task_id:
        raise Refused(f"it is for task {ticket.task}")
    if ticket.origin != origin:
        raise Refused("it is of another worker process")
    return ticket


def refusal(error: ZkLockError) -> dict[str, Any]:
    """Give ``error`` as what a header can carry."""
    kind = next((name for name in _ERRORS if isinstance(error, getattr(exceptions, name))), "ZkLockError")
    return {
        "kind": kind,
        "message": str(error),
        "key": error.key,
        "timeout": error.timeout,
        "holder": error.holder.encode().decode() if error.holder else None,
    }


def _error(facts: dict[str, Any]) -> ZkLockError:
    kind: type[ZkLockError] = getattr(exceptions, facts["kind"])
    holder = identity.decode(facts["holder"].encode()) if facts["holder"] else None
    return kind(facts["message"], key=facts["key"], timeout=facts["timeout"], holder=holder)
