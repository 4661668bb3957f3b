"""What every contender has: one attempt to hold a lock of one key (:mod:`.single`) or of several (:mod:`.multi`).

Nothing here blocks, polls or owns a thread. Blocking, asyncio and gate callers post what they want, and ``notify``
tells them that something has changed. The recipe is Curator's (ZooKeeper Recipes, "Locks"); :mod:`.rules` says which
nodes a waiter watches.

::

    NEW --join--> JOINING --created, listed--> HELD      (no blocker)
                    |  ^                       WAITING --blockers deleted--> HELD
                    |  '--node deleted, session ended--'
                    '--leave, failure, taken--> LEAVING --deleted--> GONE
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.creation import Created, Creation, LockPath, Outcome
from django_zklock.zk.queue import name_prefix
from django_zklock.zk.session import Session, SessionListener

if TYPE_CHECKING:
    from django_zklock.zk.listing import SharedListing
    from django_zklock.zk.node_data import Identity
    from django_zklock.zk.queue import Mark
    from django_zklock.zk.rules import Rule
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.contender")

# All GUIDs have this length.
ANY_GUID = "00000000-0000-8000-8000-000000000000"


class State(enum.Enum):
    """The state of a contender; see the picture above."""

    # Enum's own is a Python function.
    __hash__ = object.__hash__

    NEW = "new"
    JOINING = "joining"
    WAITING = "waiting"
    HELD = "held"
    LEAVING = "leaving"
    GONE = "gone"


class SessionUnavailable(Exception):  # noqa: N818 - internal, translated at the public door
    """The session cannot serve this contender; the text says why."""


class Contender(SessionListener, ABC):
    """One attempt to hold a lock, as a state machine that is driven by callbacks.

    Callers :meth:`post` the calls :meth:`join`, :meth:`leave`, :meth:`refresh_holder` and :meth:`on_deleted`. These and
    all other methods run under ``session.monitor``. Any thread may read the attributes without an underscore;
    ``notify`` is called under the monitor, without arguments, whenever one of them has changed. ``paths`` are the locks
    to acquire, in a fixed order, and ``data`` is that of each node.

    A contender that finds its session full when it joins moves to another one. From then on ``session`` stays the same.
    """

    # Thousands may wait in one process.
    __slots__ = (
        "_creation", "_generation", "_is_left_behind", "_notify", "_on_deleted", "_paths", "_reserved",
        "_retry_generation", "_size", "answered", "data", "error", "has_deadline", "holder", "holder_reads",
        "loss_reason_pending", "lost", "mark", "refusal", "revoked", "rule", "session", "state", "taken", "token",
        "wait", "wants_holder",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        paths: Sequence[LockPath],
        rule: Rule,
        *,
        data: bytes,
        wait: bool,
        notify: Callable[[], None],
    ) -> None:
        self.session = session
        self.rule = rule
        self.data = data
        self.wait = wait
        # What the name of its node says about the call, if other calls may be skipped for it.
        self.mark: Mark | None = None
        self.state = State.NEW
        self.token: int | None = None
        self.error: Exception | None = None
        # The last error that passes; the request is sent again.
        self.refusal: KazooException | None = None
        # The caller has a deadline, which covers outages too.
        self.has_deadline = False
        # The holder is read as soon as we wait; an error that names the holder reads it in any case.
        self.wants_holder = True
        # ZooKeeper has answered with our position in the queue, or with the holder. Never cleared: a waiter whose
        # session ends has been answered, and queues again.
        self.answered = False
        # The lock is held by another contender, and `wait` is false.
        self.taken = False
        # Why the hold can no longer be trusted; never cleared.
        self.lost: str | None = None
        # Why a release was requested; never cleared.
        self.revoked: str | None = None
        # The lock is lost, and the reason is being read from the lock's node. Signals wait for it.
        self.loss_reason_pending = False
        # The owner of the first node in the queue when it was last read, and how often it was read.
        self.holder: Identity | None = None
        self.holder_reads = 0
        self._paths = paths
        # The bytes that our nodes need of the session's budget, and those that are reserved for us.
        name = name_prefix(ANY_GUID, rule.kind, rule.limit)
        self._size = session.wire.closing_size([f"{each.path}/{name}" for each in paths])
        self._reserved = 0
        self._notify = notify
        # Only while nodes are being created.
        self._creation: Creation | None = None
        # Grows whenever the answers to open requests have become void.
        self._generation = 0
        # The generation in which a request waits to be sent again.
        self._retry_generation = -1
        # The server refuses for good to delete a node.
        self._is_left_behind = False
        self._on_deleted: tuple[Callable[[], None], ...] = ()

    # For callers.

    @property
    @abstractmethod
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each queue, by the path of the lock."""

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` under the monitor of our session, soon. Never blocks, never raises.

        T1 gives up and posts :meth:`leave` to session A. Before that call has its turn, :meth:`join` runs in A, finds A
        full and moves on to B, where it may run while A comes to :meth:`leave`. So the call follows us to B.
        """
        session = self.session
        session.post(partial(self._run_in, session, call))

    def _run_in(self, session: Session, call: Callable[[], object]) -> None:
        if session is self.session:
            call()
        else:
            self.post(call)

    def join(self) -> None:
        """Join the queue, in this session or, if it is full, in another one."""
        if self.state is not State.NEW:
            return
        if not self.session.has_room(self._size):
            self._join_elsewhere()
            return
        self.reserve()
        self.state = State.JOINING
        self.session.add_listener(self)
        if self.session.connected and self.state is State.JOINING:
            self._create()

    def _join_elsewhere(self) -> None:
        try:
            session = self.session.overflow(self._size)
        except (ConnectionError, RuntimeError) as error:  # the pool is closed; no thread can be started
            self._fail(SessionUnavailable(str(error)))
            return
        self._move_to(session)
        # Only that session knows for sure whether it has room: others may have come before us.
        session.post(self.join)

    def _move_to(self, session: Session) -> None:
        """Belong to another session. From here on its thread may call us."""
        self.session = session

    def reserve(self) -> None:
        """Count our nodes in the session, until they are deleted."""
        self._reserved = self._size
        self.session.used += self._size

    def leave(self) -> None:
        """Leave the queue or release the lock. Nodes are deleted now, or as soon as there is a connection."""
        if self.state is State.NEW:
            self.state = State.GONE
        elif self.state not in {State.LEAVING, State.GONE}:
            self.state = State.LEAVING
            self._release()

    @abstractmethod
    def refresh_holder(self) -> None:
        """Read the holder; ``holder_reads`` grows when the answer is there."""

    def on_deleted(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the server has no node of this contender."""
        if self.state is not State.GONE:
            self._on_deleted += (call,)
        elif not self._is_left_behind:
            call()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. The node stays until the holder leaves: its work may still be running."""
        if self.state is State.HELD and self.lost is None:
            self.lost = reason
            self._notify()

    # SessionListener.

    def suspended(self) -> None:
        """The connection is lost, and with it all open requests."""
        self._generation += 1
        if self._creation is not None:
            self._creation.suspend()

    def resumed(self) -> None:
        """There is a connection again. What is unknown is requested."""
        self._request_unknown()

    @abstractmethod
    def session_ended(self, reason: str) -> None:
        """The session has ended, and its nodes are deleted."""

    def unavailable(self, reason: str) -> None:
        """ZooKeeper cannot be reached. A waiter without a deadline stops waiting.

        A caller with a deadline waits until then; if ZooKeeper has never answered, there is a deadline for that.
        """
        if self.state in {State.JOINING, State.WAITING} and (
            self.session.ended is not None or (self.answered and not self.has_deadline)
        ):
            self._fail(SessionUnavailable(reason))

    # What happens to every contender.

    def _create(self) -> None:
        self._generation += 1
        self._creation = Creation(
            self.session,
            self._paths,
            self.rule,
            data=self.data,
            mark=self.mark,
            wait=self.wait,
            sent=self.list_queue,
            ended=self._creation_ended,
            delayed=self._creation_delayed,
        )
        self._creation.start()

    def _creation_ended(self, outcome: Outcome, error: Exception | None) -> None:
        in_doubt = self._creation is not None and self._creation.in_doubt
        self._creation = None
        if isinstance(outcome, Created):
            self._adopt(outcome)
        elif outcome is not None:
            self._taken_in(outcome)
        elif error is not None and (self.state is not State.LEAVING or in_doubt):
            self.on_refusal(error)
        else:
            self._finish_if_gone()

    def _creation_delayed(self, error: KazooException) -> None:
        self.refusal = error

    def _taken_in(self, _listing: SharedListing) -> None:
        """The lock is held by another contender, and this one does not wait."""
        self.taken = True
        self._abort()

    def _abandon_creation(self) -> bool:
        """Create no more nodes. Return whether a result is still to come, because nodes may exist."""
        if self._creation is not None and not self._creation.abandon():
            self._creation = None
        return self._creation is not None

    def _reset_creation(self) -> None:
        """Forget the creation: the session has ended, so no node of it can exist."""
        if self._creation is not None:
            self._creation.suspend()
            self._creation = None

    @abstractmethod
    def list_queue(self) -> None:
        """Request a listing of each queue, which decides whether the lock is granted."""

    @abstractmethod
    def _adopt(self, created: Created) -> None: ...

    @abstractmethod
    def _release(self) -> None:
        """Delete the nodes, now or as soon as there is a connection."""

    @abstractmethod
    def _finish_if_gone(self) -> None: ...

    @abstractmethod
    def _request_unknown(self) -> None: ...

    def on_refusal(self, error: Exception) -> None:
        """Stop after a permanent error. After a temporary one, request later what is unknown."""
        if isinstance(error, wire.KazooException) and wire.is_temporary(error):
            self.refusal, self._retry_generation = error, self._generation
            self.session.retries.add(self._retry, error)
        elif self.state is State.LEAVING:
            logger.error("event=leave_refused contender=%r error=%r", self, error)
            # A node may be left, so its deletion is never confirmed.
            self._is_left_behind, self._on_deleted = True, ()
            self.session.leave_behind(self._size)
            self._finish()
        else:
            self._fail(error)

    def _retry(self) -> None:
        if self._retry_generation == self._generation and self.session.connected and self.state is not State.GONE:
            self._retry_generation = -1
            self._request_unknown()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._abort()

    def _abort(self) -> None:
        self.leave()
        self._notify()

    def _finish(self) -> None:
        if self.state is State.GONE:
            return
        self.state = State.GONE
        self.loss_reason_pending = False
        self.session.used -= self._reserved
        self._reserved = 0
        self.session.remove_listener(self)
        self._notify()
        for call in self._on_deleted:
            call()

    def on_holder(self, holder: Identity | None) -> None:
        """Keep the owner of the first node in the queue."""
        self.holder = holder
        self.holder_reads += 1
        self.answered = True
        self.wants_holder = False
        self._notify()
