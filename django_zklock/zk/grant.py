"""What a hold needs of its contender: a contender here, or what stands for one in the child of a Celery worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from django_zklock.zk.contender import State
from django_zklock.zk.queue import Rule


class GrantSession(Protocol):
    """The session of a :class:`Grant`."""

    @property
    def pid(self) -> int:
        """The process in which the hold counts."""

    @property
    def lease_expired(self) -> bool:
        """Whether the session may have ended at the server."""

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call``, soon or at once, where the contender may be changed."""


class Grant(Protocol):
    """A contender that has got its lock. :class:`~django_zklock.zk.contender.Contender` says what the names mean."""

    @property
    def rule(self) -> Rule: ...

    @property
    def token(self) -> int | None: ...

    @property
    def node_paths(self) -> Mapping[str, str]: ...

    @property
    def session(self) -> GrantSession: ...

    @property
    def state(self) -> State: ...

    @property
    def lost(self) -> str | None: ...

    @property
    def loss_reason_pending(self) -> bool: ...

    @property
    def revoked(self) -> str | None: ...

    def lose(self, reason: str) -> None:
        """Note that the lock is lost."""

    def leave(self) -> None:
        """Release the lock."""

    def when_deleted(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the node is deleted."""
