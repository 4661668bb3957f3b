"""The ticket: what a worker's main process tells a task about its lock, in the request that it hands to the pool.

Nothing that a producer sends can be a ticket: a message has no objects, the worker removes these headers from every
message that it receives, and ``origin`` is a secret of the process that makes the ticket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django_zklock.exceptions import ZkLockError
from django_zklock.zk.node_data import Identity

HEADER = "zklock_hold"
# In a message that is published again: the number of the task's retries, and the deadline of its wait in that attempt
# (seconds since the Unix epoch). A retry has a timeout of its own.
DEADLINE_HEADER = "zklock_deadline"


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a task needs to know about its lock: the keys, and what the main process has acquired or decided.

    ``origin`` is the main process, ``cell`` and ``hold_id`` name the cell of its scoreboard, ``nodes`` has the full
    path of the node in each queue by the path of the queue. ``since`` and ``deadline`` are in seconds since the Unix
    epoch, ``waited`` and ``session_timeout`` in seconds. ``contended`` says that the task had to wait, ``refusal`` why
    it has no lock. With ``acquires`` the task acquires its lock itself. Whenever it does, it may wait until
    ``deadline``.
    """

    origin: str
    cell: int
    hold_id: int
    keys: list[str]
    since: float
    waited: float
    contended: bool
    session_timeout: float
    nodes: Mapping[str, str] = field(default_factory=dict)
    token: int = 0
    holder: Identity | None = None
    refusal: ZkLockError | None = None
    acquires: bool = False
    deadline: float | None = None
