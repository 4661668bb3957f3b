"""The ticket: the header by which a worker's main process informs a task about its lock.

A producer can put any header into a message. So the ticket is signed with Django's signing framework, and names the
task, the process that has written it and a nonce. The worker removes this header from every message that it receives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from django.core.signing import BadSignature, Signer
from kombu.utils import json

from django_zklock import exceptions
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import node_data

HEADER = "zklock_hold"
# In a message that is published again: the number of the task's retries, and the deadline of its wait in that attempt
# (seconds since the Unix epoch). A retry has a timeout of its own.
DEADLINE_HEADER = "zklock_deadline"
_SALT = "django_zklock.contrib.celery.gate"


class TicketRejected(Exception):  # noqa: N818 - it says what becomes of the header
    """The ticket cannot be trusted, for the reason in the message."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a task needs to know about its lock: the keys, and what the main process has acquired or decided.

    ``origin`` is the main process, ``slot`` and ``nonce`` name the slot of its scoreboard, ``nodes`` has the full path
    of the node in each queue by the path of the queue. ``arguments`` is the digest of the message's arguments.
    ``since`` and ``deadline`` are in seconds since the Unix epoch, ``waited`` and ``session_timeout`` in seconds.
    ``contended`` says that the task had to wait, ``refusal`` why it has no lock. With ``acquires`` the task acquires
    its lock itself. Whenever it does, it may wait until ``deadline``.
    """

    task: str
    origin: str
    slot: int
    nonce: int
    keys: list[str]
    arguments: str
    since: float
    waited: float
    contended: bool
    session_timeout: float
    nodes: dict[str, str] = field(default_factory=dict)
    token: int = 0
    holder: str | None = None
    refusal: dict[str, Any] | None = None
    acquires: bool = False
    deadline: float | None = None

    def sign(self) -> str:
        """Return the header."""
        return Signer(salt=_SALT).sign_object(vars(self))


def read(header: object, *, task_id: str, origins: Container[str]) -> Ticket:
    """Return the ticket of the task ``task_id``; ``origins`` are the main processes of the workers here.

    Raises :class:`TicketRejected` unless one of these has written it for this task.
    """
    try:
        facts = Signer(salt=_SALT).unsign_object(str(header))
        ticket = Ticket(**facts)
    except (BadSignature, TypeError, ValueError) as error:
        raise TicketRejected("its signature is not ours") from error
    if ticket.task != task_id:
        raise TicketRejected(f"it is for task {ticket.task}")
    if ticket.origin not in origins:
        raise TicketRejected("it is of another worker process")
    return ticket


def digest(args: Any, kwargs: Any) -> str:
    """Return a digest of the arguments of a message; an empty one if they have no form in JSON."""
    try:
        text = json.dumps([args, kwargs], sort_keys=True)
    except Exception:  # noqa: BLE001 - of the objects
        return ""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def refusal(error: ZkLockError) -> dict[str, Any]:
    """Return ``error`` as JSON."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "key": error.key,
        "timeout": error.timeout,
        "holder": error.holder.encode().decode() if error.holder else None,
    }


def error_of(refusal: dict[str, Any]) -> ZkLockError:
    """Return the error of a ticket's ``refusal``."""
    kind: type[ZkLockError] = getattr(exceptions, refusal["kind"])
    holder = node_data.decode_identity(refusal["holder"].encode()) if refusal["holder"] else None
    return kind(refusal["message"], key=refusal["key"], timeout=refusal["timeout"], holder=holder)
