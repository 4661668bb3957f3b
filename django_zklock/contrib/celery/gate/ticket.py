"""What a worker's main process tells the child that runs a task about its lock.

The ticket is in the request that goes to the pool. Nothing that a producer sends can be one: a message has no objects,
and ``origin`` is a secret of the process that makes the ticket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django_zklock.contrib.celery import headers
from django_zklock.exceptions import ZkLockError
from django_zklock.zk.node_data import Identity

# What is about one delivery of a task, and a retry must not copy: the ticket, and the rest of a timeout.
HEADER, DELIVERY_HEADERS = headers.HOLD, headers.OF_ONE_DELIVERY


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a task needs to know about its lock."""

    # The main process, and the cell of its scoreboard.
    origin: str
    cell: int
    hold_id: int
    keys: list[str]
    alias: str
    # When the lock was decided, in seconds since the Unix epoch.
    since: float
    # Seconds; and whether another contender was in the way, and which.
    waited: float
    contended: bool
    holder: Identity | None = None
    session_timeout: float
    # By the paths of the queues.
    nodes: Mapping[str, str] = field(default_factory=dict)
    token: int = 0
    # Why there is no lock. Without that and without nodes the task acquires it itself, and may wait until then, on the
    # monotonic clock, which all processes of a host share.
    refusal: ZkLockError | None = None
    deadline: float | None = None
