"""What those who wait for a lock see of their attempt, whether it is one node or several."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.zk.identity import Identity
    from django_zklock.zk.rules import Rule
    from django_zklock.zk.session import Session


class State(enum.Enum):
    """Where a claim is; see the picture in :mod:`~django_zklock.zk.contender`."""

    NEW = "new"
    JOINING = "joining"
    WAITING = "waiting"
    HELD = "held"
    LEAVING = "leaving"
    GONE = "gone"


class Unavailable(Exception):  # noqa: N818 - internal, translated at the public door
    """The session cannot serve this claim; the text says why."""


class Claim(ABC):
    """One attempt at a lock: what fronts post and read, and what every kind of attempt does alike.

    Fronts post :meth:`join`, :meth:`leave`, :meth:`look`, :meth:`locate` and :meth:`when_gone`; like every method they
    run under ``session.monitor`` on the machine's threads (see :mod:`~django_zklock.zk.session`). The attributes
    without an underscore may be read from any thread; ``notify`` is called, without arguments and under the monitor,
    whenever one of them has changed.
    """

    # Thousands may wait in one process.
    __slots__ = (
        "_data", "_notify", "_when_gone",
        "asking_why", "busy", "error", "holder", "looks", "lost", "rule", "session", "state", "token", "wait",
    )  # fmt: skip

    def __init__(self, session: Session, rule: Rule, *, data: bytes, wait: bool, notify: Callable[[], None]) -> None:
        self.session = session
        self.rule = rule
        self.wait = wait
        self.state = State.NEW
        self.token: int | None = None
        self.error: Exception | None = None
        # The lock was taken and `wait` was false.
        self.busy = False
        # Why the hold can no longer be trusted; never cleared.
        self.lost: str | None = None
        # It is lost, and whether somebody has said why is being found out: a reason for not telling it yet.
        self.asking_why = False
        # Who was first in the line when we last looked, and how often we looked.
        self.holder: Identity | None = None
        self.looks = 0
        self._data = data
        self._notify = notify
        self._when_gone: tuple[Callable[[], None], ...] = ()

    # For fronts.

    @property
    @abstractmethod
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each line, by the path of the line."""

    @property
    @abstractmethod
    def revoked(self) -> str | None:
        """Why somebody asks us to let go; never cleared."""

    def join(self) -> None:
        """Get into the line."""
        if self.state is not State.NEW:
            return
        self.state = State.JOINING
        self.session.attach(self)
        if self.session.connected and self.state is State.JOINING:
            self._enter()

    @abstractmethod
    def leave(self) -> None:
        """Give up the place or the hold; what is there is deleted now or as soon as there is a connection."""

    @abstractmethod
    def look(self) -> None:
        """Find out who is in the way now; ``looks`` grows when the answer is there."""

    @abstractmethod
    def locate(self, found: Callable[[int | None], None]) -> None:
        """Find out how many stand in the way now, and call ``found`` with that; with ``None`` if it is in no line.

        It is not called if the connection goes before the answer comes.
        """

    def when_gone(self, call: Callable[[], None]) -> None:
        """Call ``call`` once nothing of this claim is left at the server."""
        if self.state is State.GONE:
            call()
        else:
            self._when_gone += (call,)

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. The node stays until the holder leaves: its work may still be running."""
        if self.state is State.HELD and self.lost is None:
            self.lost = reason
            self._notify()

    # For the session, which knows the rest of a tenant's methods as well.

    @abstractmethod
    def suspended(self) -> None:
        """The connection is gone, and with it every reply and watch."""

    @abstractmethod
    def resumed(self) -> None:
        """There is a connection again. Whatever was unknown is asked for, after a sync."""

    @abstractmethod
    def session_ended(self, reason: str) -> None:
        """The session is gone, and its nodes with it."""

    @abstractmethod
    def heartbeat(self) -> None:
        """Show that what is held is still there."""

    def unavailable(self, reason: str) -> None:
        """ZooKeeper cannot be reached; whoever does not hold yet stops trying."""
        if self.state in {State.JOINING, State.WAITING}:
            self._fail(Unavailable(reason))

    # What happens to every claim.

    @abstractmethod
    def _enter(self) -> None: ...

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._give_up()

    def _give_up(self) -> None:
        self.leave()
        self._notify()

    def _finish(self) -> None:
        self.state = State.GONE
        self.asking_why = False
        self.session.detach(self)
        self._notify()
        for call in self._when_gone:
            call()

    def _holder_found(self, holder: Identity | None) -> None:
        self.holder = holder
        self.looks += 1
        self._notify()
