"""One attempt to hold the locks of some keys, all or none: the recipe. The lock of one key is the normal case.

Nothing here blocks, polls or owns a thread. Blocking, asyncio and gate callers post what they want, and ``notify``
tells them that something has changed. The recipe is Curator's (ZooKeeper Recipes, "Locks"), in one script:
:meth:`Contender._recipe`. In between each :class:`~django_zklock.zk.place.Place` waits for its turn.

::

    NEW --join--> JOINING --created, listed--> HELD      (no blocker)
                    |  ^                       WAITING --blockers deleted--> HELD
                    |  '--node deleted, session ended--'
                    '--leave, failure, taken--> LEAVING --deleted--> GONE

What ends a wait from outside has one door each, which begins another script or the same one anew: the script that
waits never finds an exit at its ``yield``. The doors are :meth:`~Contender.leave`, :meth:`~Contender.on_place_lost` and
:meth:`~Contender.session_ended`. Only :exc:`~django_zklock.zk.scripts.Interrupted` arrives in the script, at the
creation, because only a creation must not be repeated as it is.

One transaction creates the nodes in all queues. So of any two contenders one is first in every queue that has both, and
every edge of "waits for" points to an earlier transaction: the edges cannot form a cycle.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import formatting, node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.listing import SharedListing
from django_zklock.zk.place import LockPath, Place, Turn
from django_zklock.zk.queue import name_prefix, new_guid, parse_name, waiting_behind
from django_zklock.zk.scripts import EVENT, Interrupted, Once, OrError, Reply, RequestScript, Script
from django_zklock.zk.wire import ConnectionOptions

if TYPE_CHECKING:
    from django_zklock.zk.node_data import Identity
    from django_zklock.zk.queue import Mark, Queue, Rule
    from django_zklock.zk.session import Session

logger = DeferredLogger("django_zklock.contender")

# All GUIDs have this length.
ANY_GUID = "00000000-0000-8000-8000-000000000000"
# An empty container may be deleted between its creation and ours. After this many retries there is another cause.
MAX_ENSURES = 5
# For a queue that is not known any more, the next acquisition asks for its parent once more.
MAX_KNOWN_QUEUES = 10_000
NODE_DELETED = "its node was deleted"


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


def data_room(paths: Sequence[str], rule: Rule, options: ConnectionOptions) -> int:
    """Return how many bytes of data each node may have, so that one transaction can create all nodes.

    Raises ``ValueError`` if that is too few. A server would close the connection instead of answering.
    """
    prefix = name_prefix(ANY_GUID, rule.kind, rule.limit)
    size = wire.creation_size(options, [f"{path}/{prefix}" for path in paths])
    room = (wire.MAX_REQUEST - size) // len(paths)
    if room < node_data.MIN_BYTES:
        raise ValueError(
            f"a lock of {len(paths)} keys is too large: one request creates all its nodes, which takes "
            f"{size + len(paths) * node_data.MIN_BYTES} bytes, and ZooKeeper reads no request of more than "
            f"{wire.MAX_REQUEST}"
        )
    return min(room, node_data.MAX_BYTES)


def _nothing() -> None:
    pass


class Contender(Script):
    """One attempt to hold the locks at ``paths``, which have a fixed order; ``data`` is that of each node.

    Callers :meth:`post` the calls :meth:`join`, :meth:`leave`, :meth:`refresh_holder`, :meth:`when_followed` and
    :meth:`when_deleted`. These and all other methods run under ``session.monitor``. Any thread may read the attributes
    without an underscore; ``notify`` is called under the monitor, without arguments, whenever one of them has changed.

    With ``coalesces``, for one key, it leaves instead of waiting if a contender waits already that will run the same.
    With ``stays`` others may leave for it: it waits until it holds.

    A contender that finds its session full when it joins moves to another one. From then on ``session`` stays the same.
    """

    # Thousands may wait in one process.
    __slots__ = (
        "_blocked", "_coalesces", "_holder_of", "_is_left_behind", "_notify", "_reserved", "_when_deleted",
        "answered", "data", "error", "guid_in_doubt", "has_deadline", "holder", "holder_reads", "is_taken",
        "loss_reason_pending", "lost", "mark", "places", "revoked", "rule", "state", "token", "wait", "wants_holder",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        paths: Sequence[LockPath],
        rule: Rule,
        *,
        data: bytes,
        wait: bool,
        coalesces: Mark | None = None,
        stays: bool = False,
        notify: Callable[[], None],
    ) -> None:
        super().__init__(session)
        self.rule = rule
        self.data = data
        self.wait = wait
        self.state = State.NEW
        self.token: int | None = None
        self.error: Exception | None = None
        # The caller has a deadline, which covers outages too.
        self.has_deadline = False
        # The holder is read as soon as we wait; an error that names the holder reads it in any case.
        self.wants_holder = True
        # ZooKeeper has answered with our position in the queue, or with the holder. Never cleared: a waiter whose
        # session ends has been answered, and queues again.
        self.answered = False
        # The lock is held by another contender, and `wait` is false; or another call waits to run the same.
        self.is_taken = False
        # Why the hold can no longer be trusted; never cleared.
        self.lost: str | None = None
        # Why a release was requested; never cleared.
        self.revoked: str | None = None
        # The lock is lost, and the reason is being read from the lock's node. Signals wait for it.
        self.loss_reason_pending = False
        # The owner of the first node in the queue when it was last read, and how often it was read.
        self.holder: Identity | None = None
        self.holder_reads = 0
        # There may be a thousand, so no step of one iterates over all.
        self.places = [Place(self, *path) for path in paths]
        # The place whose holder is named; and that of a lock that is taken.
        self._holder_of = self.places[0]
        # How many places are not clear.
        self._blocked = 0
        # Nodes with this GUID may exist whose names are not known here: the reply to their creation is not here, or was
        # lost. Apache Curator calls that protection.
        self.guid_in_doubt = ""
        self._coalesces = coalesces
        # What the names of our nodes say about the call, if other calls may be skipped for it.
        self.mark = coalesces if stays else None
        # The bytes of the session's budget that are reserved for our nodes, until they are deleted.
        self._reserved = 0
        self._notify = notify
        # The server refuses for good to delete a node.
        self._is_left_behind = False
        self._when_deleted: tuple[Callable[[], None], ...] = ()

    def __repr__(self) -> str:
        return f"<Contender {self.state.value} {' '.join(f'{place.path}/{place.node}' for place in self.places)}>"

    @property
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each queue, by the path of the lock."""
        return {place.path: f"{place.path}/{place.node}" for place in self.places}

    @property
    def needs_lease(self) -> bool:
        if self.state in {State.LEAVING, State.GONE}:
            return False
        # A loop, because every waiter is asked at each heartbeat.
        for place in self.places:  # noqa: SIM110
            if place.needs_lease:
                return True
        return False

    @property
    def is_held(self) -> bool:
        return self.state is State.HELD and self.lost is None

    @property
    def may_leave_for(self) -> Mark | None:
        """What a waiting contender will run if this one, which joins, is to leave for it; ``None`` if it stays."""
        return self._coalesces if self.state is State.JOINING else None

    # For callers.

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
        size = self._size(self.places)
        if not self.session.has_room(size):
            try:
                session = self.session.overflow(size)
            except (ConnectionError, RuntimeError) as error:  # the pool is closed; no thread can be started
                self.leave(SessionUnavailable(str(error)))
                return
            # From here on the thread of that session may call us. Only that session knows for sure whether it has room:
            # others may have come before us.
            self.session = session
            session.post(self.join)
            if session.start_failure is not None:
                # The caller that waits for this contender tries to start that session.
                self._notify()
            return
        self._reserved = size
        self.session.used += size
        self.state = State.JOINING
        self.session.add_listener(self)
        if self.state is State.JOINING:
            shared = self.session.shared
            for place in self.places:
                place.listing = shared.get(place.path) or SharedListing(self.session, place.path)
                shared[place.path] = place.listing
            self.begin(self._recipe())

    def _size(self, places: Sequence[Place]) -> int:
        """Return the bytes that the nodes of ``places`` need of the session's budget."""
        name = name_prefix(ANY_GUID, self.rule.kind, self.rule.limit)
        stems = "".join([f"{place.path}/{name}" for place in places])
        return len(stems.encode()) + len(places) * self.session.wire.path_overhead

    def leave(self, error: Exception | None = None) -> None:
        """Leave the queue or release the lock. Nodes are deleted now, or as soon as there is a connection."""
        if self.state in {State.LEAVING, State.GONE}:
            return
        self.error = error
        was_held = self.state is State.HELD and self.lost is None
        was_new = self.state is State.NEW
        self.state = State.GONE if was_new else State.LEAVING
        # While it is not known which nodes exist, the recipe goes on until it is, and then deletes them.
        if not was_new and not self.guid_in_doubt:
            for place in self.places:
                place.end_turn(Turn.RELEASED if was_held else Turn.NONE)
            self.begin(self._recipe())
            for place in self.places:
                if place.behind is not None:
                    place.pass_on()
        if error is not None:
            self._notify()
        if was_new:  # nothing will call `_finish`
            self.forget_caller()

    def leave_as_taken(self, place: Place) -> None:
        """Leave because another contender has the lock of ``place``, or waits for it, and this one does not wait."""
        self.is_taken, self._holder_of = True, place
        self.leave()
        self._notify()

    def forget_caller(self) -> None:
        """Drop the callback: it refers to the acquisition, which refers to us and to the caller's lock."""
        self._notify = _nothing

    def refresh_holder(self) -> None:
        """Read the owner of the first node in a queue; ``holder_reads`` grows when the answer is there."""
        if self.session.connected:
            place = next((place for place in self.places if place.turn is Turn.OPEN), self._holder_of)
            self.ask(place.listing.list_queue, partial(self._read_first_holder, place))

    def _read_first_holder(self, place: Place, queue: Queue | None, _error: Exception | None) -> None:
        first = next((node.name for node in queue or ()), place.node)
        if first is None or first == place.node:
            self.on_holder(place, None)
        else:
            self.ask(partial(place.listing.read_holder, first), partial(self.on_holder, place))

    def when_deleted(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the server has no node of this contender."""
        if self.state is not State.GONE:
            self._when_deleted += (call,)
        elif not self._is_left_behind:
            call()

    def when_followed(self, ours: Container[str], call: Callable[[], object]) -> None:
        """Call ``call`` if a contender waits behind us in a queue, and its node is none of ``ours``, which are paths.

        Once for each such queue; not at all if the connection is lost before the answer.
        """
        for place in self.places:
            place.listing.list_queue(partial(self._if_followed, place, ours, call))

    def _if_followed(
        self, place: Place, ours: Container[str], call: Callable[[], object], queue: Queue | None, _error: object
    ) -> None:
        waiting = waiting_behind(place.node or "", queue) if queue is not None else ()
        if any(f"{place.path}/{each.name}" not in ours for each in waiting):
            call()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. The nodes stay until the holder leaves: its work may still be running."""
        if self.state is not State.HELD or self.lost is not None:
            return
        # A process that ends while it holds does so on purpose.
        level = logging.INFO if self.session.closing else logging.WARNING
        for place in self.places:
            logger.log(level, "event=lost path=%s node=%s reason=%s", place.path, place.node, reason)
        self.lost = reason
        self._notify()

    # SessionListener.

    def session_ended(self, reason: str) -> None:
        """The session has ended, and our nodes are deleted: join again, unless that was a hold, or we leave."""
        self.lose(reason)
        self.stop()
        self.guid_in_doubt = ""
        for place in self.places:
            place.node_gone()
        if self.state in {State.HELD, State.LEAVING}:
            self._finish()
        else:
            self.state = State.JOINING
            self.begin(self._recipe())

    def unavailable(self, reason: str) -> None:
        """ZooKeeper cannot be reached. A waiter without a deadline stops waiting.

        A caller with a deadline waits until then; if ZooKeeper has never answered, there is a deadline for that.
        """
        if self.state in {State.JOINING, State.WAITING} and (
            self.session.ended is not None or (self.answered and not self.has_deadline)
        ):
            self.leave(SessionUnavailable(reason))

    def suspended(self) -> None:
        super().suspended()
        if self.state is State.JOINING:
            # What the lists have shown before the outage may be over before the last of them is answered.
            self._watch_clear_places()

    def resumed(self) -> None:
        super().resumed()
        for place in self.places:
            place.resumed()

    def watches_restored(self) -> None:
        # It has not held while an event may have been missing.
        if not self._blocked:
            self.wake()

    def heartbeat(self) -> None:
        for place in self.places:
            place.heartbeat()
        if not self._blocked:
            # Whatever has kept it from holding may be over.
            self.wake()

    # The recipe.

    def _recipe(self) -> RequestScript[None]:
        """Create the nodes, wait until none of them is blocked, and hold. To leave is to delete them and to be gone."""
        while True:
            # What we leave, or what an earlier attempt has left. It is gone when the server has confirmed it.
            places = [place for place in self.places if place.node is not None]
            outcomes = yield [OrError(place.delete) for place in places]
            for place, outcome in zip(places, outcomes, strict=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, wire.NoNodeError):
                    self._leave_behind([place], outcome)
                place.node_gone()
            is_over = self.state is State.LEAVING
            if is_over:
                return
            if not self.wait:
                yield from self._find_taken()
            yield from self._create()
            several = len(self.places) > 1
            while self.state is not State.LEAVING and (
                self._blocked or (several and not all(place.is_safe for place in self.places))
            ):
                yield EVENT
            if self.state is not State.LEAVING:
                self.state = State.HELD
                self._notify()
                return
            # We left while it was not known which nodes exist.
            for place in self.places:
                place.end_turn()

    def _find_taken(self) -> RequestScript[None]:
        """Leave if one of the locks is taken: that costs no write then, and leaves no trace."""
        queues = yield [place.listing.list_queue for place in self.places]
        for place, queue in zip(self.places, queues, strict=True):
            if self.rule.must_wait(queue):
                blockers = tuple([f"{place.path}/{node.name}" for node in self.rule.blockers(queue)])
                self.session.strays.taken(place.path, blockers, self.session.timeout)
                self.is_taken, self._holder_of = True, place
                self.state = State.LEAVING
                return

    def _create(self) -> RequestScript[None]:
        """Create all nodes, and list the queues in the same write. If the answer is lost, search for the nodes."""
        ensures = 0
        names: list[str] | None = None
        while names is None and self.state is not State.LEAVING:
            refusals: list[Exception] = []
            is_recovered = False
            try:
                ((names, self.token),) = yield [Once(self._send_creation, refusals, is_retry=ensures > 0)]
            except Interrupted:
                self.drop_answers()
                names = yield from self._recover()
                is_recovered = True
            except wire.NoNodeError as error:
                self._not_created()
                final = next((each for each in refusals if not wire.is_temporary(each)), None)
                if final is not None or ensures == MAX_ENSURES:
                    raise final or error from error
                if refusals:
                    yield [partial(self._pause, refusals[0])]
                else:
                    ensures += 1
            except wire.KazooException:
                self._not_created()
                raise
        self.guid_in_doubt = ""
        if names is None:
            return
        self._blocked = len(self.places)
        known = self.session.known_queues
        if len(known) >= MAX_KNOWN_QUEUES:
            known.clear()
        for place, name in zip(self.places, names, strict=True):
            known.add(place.path)
            # The turn begins; the queue is listed after the creation.
            place.node, place.turn, place.holder = name, Turn.OPEN, None
            place.listing.local[name] = place
            if is_recovered and self.state is not State.LEAVING:
                place.list_queue()

    def _send_creation(self, refusals: list[Exception], reply: Reply, *, is_retry: bool) -> None:
        """Create the nodes by a new GUID: a node that turns up late is never taken for the new one."""
        session = self.session
        known = session.known_queues
        if is_retry:
            for place in self.places:
                self._make_parent(place, refusals)
        elif len(self.places) == 1 and self.places[0].path not in known:
            # Many keys are used once. The request saves a round trip then, and else does nothing. Several keys at once
            # are rarely all new. The contenders that join meanwhile rely on this request, which is before theirs.
            known.add(self.places[0].path)
            self._make_parent(self.places[0], [], with_ancestors=False)
        self.guid_in_doubt = new_guid(self.mark, session.system.urandom)
        prefix = name_prefix(self.guid_in_doubt, self.rule.kind, self.rule.limit)
        stems = [f"{place.path}/{prefix}" for place in self.places]
        session.wire.create(stems, self.data, reply)
        for place in self.places:
            place.list_queue()

    def _make_parent(self, place: Place, refusals: list[Exception], *, with_ancestors: bool = True) -> None:
        """Create the parent node of a queue. The creation in the same write shows whether a refusal matters."""

        def made(_value: object, error: Exception | None) -> None:
            if error is not None and not isinstance(error, wire.NodeExistsError):
                logger.debug("event=ensure_refused path=%s error=%r", place.path, error)
                refusals.append(error)

        path, data = place.path, place.parent_data
        self.session.wire.ensure(path, data, made, container=True, with_ancestors=with_ancestors)

    def _pause(self, error: Exception, reply: Reply) -> None:
        """Answer at the end of the pause after a refusal that passes."""
        assert isinstance(error, wire.KazooException)
        self.refusal = error
        self.session.retry_later(partial(reply, None, None), error)

    def _not_created(self) -> None:
        """Need no list of queues in which we are not."""
        self.drop_answers()
        self.guid_in_doubt = ""
        for place in self.places:
            self.session.known_queues.discard(place.path)

    def _recover(self) -> RequestScript[list[str] | None]:
        """Return the nodes of a creation whose reply was lost. Delete what is left of it if they are of no use."""
        wire_ = self.session.wire
        # The server of this connection may not know yet what another one has done. It is asked once: no server that
        # knows less than its answer will take our session.
        yield [lambda reply: self.session.catch_up(partial(reply, None, None))]
        queues = yield [OrError(place.listing.list_in_any_order) for place in self.places]
        refusals = [each for each in queues if isinstance(each, Exception)]
        is_unread = bool(refusals)
        readable = [() if isinstance(each, Exception) else each for each in queues]
        found = [next((node.name for node in queue if node.guid == self.guid_in_doubt), None) for queue in readable]
        if all(found):
            paths = [f"{place.path}/{name}" for place, name in zip(self.places, found, strict=True)]
            # Some servers keep what a leader has written without a majority (see `delete_stray`): the node of this
            # server may be one that no other has, and the leader knows.
            value, confirmed = yield [OrError(partial(wire_.get, paths[0])), OrError(partial(wire_.confirm, paths))]
            errors = [each for each in (value, confirmed) if isinstance(each, Exception)]
            if not errors and value[1].ephemeralOwner == self.session.id:
                self.token = value[1].czxid
                return [name for name in found if name]
            refusals += (each for each in errors if not isinstance(each, wire.NoNodeError))
        # Some were deleted; or the session that created them has ended, and contenders would wait for them until the
        # server notices; or they cannot be read, so that the hold could never be verified.
        leftovers = {place: f"{place.path}/{name}" for place, name in zip(self.places, found, strict=True) if name}
        outcomes = yield [OrError(partial(wire_.delete, path)) for path in leftovers.values()]
        for place, outcome in zip(leftovers, outcomes, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, wire.NoNodeError):
                self._leave_behind([place], outcome)
        if not is_unread:
            # No node is left, except where its deletion was refused.
            self.guid_in_doubt = ""
        if refusals:
            raise refusals[0]
        return None

    def _leave_behind(self, places: Sequence[Place], error: Exception) -> None:
        """Note that nodes may stay until the session ends, because the server refuses for good to delete them."""
        paths = " ".join(place.path for place in places)
        logger.error("event=leave_refused paths=%s contender=%r error=%r", paths, self, error)
        self._is_left_behind, self._when_deleted = True, ()
        size = self._size(places)
        self.session.used += size
        self.session.left_behind += size

    def ended(self, _value: object, error: Exception | None) -> None:
        if self.state is State.LEAVING:
            if error is not None and (self.guid_in_doubt or not isinstance(error, wire.KazooException)):
                self._leave_behind(self.places, error)
            self._finish()
        elif error is not None:
            if self.guid_in_doubt:
                self._leave_behind(self.places, error)
                self.guid_in_doubt = ""
            self.leave(error)

    def _finish(self) -> None:
        self.state = State.GONE
        self.loss_reason_pending = False
        self.session.used -= self._reserved
        self._reserved = 0
        self.session.listeners.pop(self, None)
        self._notify()
        # A caller that was refused asks for the holder now.
        if not self.is_taken:
            self._notify = _nothing
        for call in self._when_deleted:
            call()

    # What the places find out.

    # We wait for "b" and are first in the queue of "a". An operator deletes our node there, and another contender gets
    # "a". When "b" becomes free, we must not hold both: so the nodes of clear places are watched while we wait.

    def on_place_waits(self) -> None:
        if self.state is State.JOINING:
            self._watch_clear_places()
        self.state, self.answered = State.WAITING, True

    def _watch_clear_places(self) -> None:
        for place in self.places:
            if place.turn is Turn.CLEAR:
                place.watch_own_node()

    def on_own_node_watched(self, error: Exception | None) -> None:
        """The node of a clear place is watched, or is not there, or the server refuses for good to read it."""
        if self.state is not State.HELD and error is not None:
            self.leave(error)
        self.wake()

    def on_place_clear(self, place: Place) -> None:
        """No node before that of ``place`` blocks us. We hold when that is so for all."""
        self._blocked -= 1
        if self._blocked and place is self._holder_of and self.holder is not None:
            # An error names one that is still in our way.
            blocked = (each for each in self.places if each.turn is Turn.OPEN and each.holder is not None)
            self._holder_of = next(blocked, place)
            self.holder = self._holder_of.holder
        if self._blocked and self.state is State.WAITING:
            place.watch_own_node()
        self.wake()

    def delete_stray(self, place: Place, name: str) -> None:
        """Delete a node of our session before ours that no contender of the session knows, for all would wait for it.

        T1 creates a node at a leader that has lost its majority, moves to another server, finds that node nowhere and
        creates it anew. Some servers keep what a leader has written alone, and bring it back when they are started
        again (ZOOKEEPER-4712): the node of which T1 knows nothing then stays until the session ends.
        """
        found = parse_name(name)
        pending = [each.guid_in_doubt for each in list(self.session.listeners) if isinstance(each, Contender)]
        if found is not None and found.guid not in pending:
            delete = partial(self.session.wire.delete, f"{place.path}/{name}")
            log = partial(logger.warning, "event=stray_deleted path=%s node=%s", place.path, name)
            self.ask(delete, lambda _value, error: log() if error is None else None)

    def on_place_lost(self, place: Place) -> None:
        """The node was deleted, by an operator or together with its parent."""
        node = place.node
        place.node_gone()
        if self.state is not State.HELD:
            # A single new node would break the common order, so all are created again.
            if len(self.places) == 1:
                logger.warning("event=place_lost path=%s node=%s", place.path, node)
            else:
                logger.warning("event=places_lost paths=%s", " ".join(each.path for each in self.places))
            for each in self.places:
                each.end_turn()
            self.state = State.JOINING
            self.begin(self._recipe())
        elif self.lost is None:
            # Lost at once. Signals wait until it is known whether a reason was written to the lock's node.
            self.loss_reason_pending, self.lost = True, NODE_DELETED
            logger.warning("event=lost path=%s node=%s reason=%s", place.path, node, self.lost)
            self._notify()
            # Once: the reason is not worth waiting for a connection.
            self.ask(Once(self.session.wire.get, place.path), partial(self._on_reason, node))
        elif not self.loss_reason_pending and all(each.node is None for each in self.places):
            self._finish()

    def _on_reason(self, node: str | None, value: Any, _error: Exception | None) -> None:
        written = None if value is None else node_data.decode_lock_node(value[0])
        if written is not None and written.removal is not None and written.removal.node == node:
            self.lost = f"{NODE_DELETED}: {formatting.escape_controls(written.removal.why)}"
        self.loss_reason_pending = False
        self._notify()
        # Other nodes stay until the holder leaves: its work may still be running.
        if all(place.node is None for place in self.places):
            self._finish()

    def on_data(self, place: Place, data: bytes) -> None:
        """Look for a request to release in the data of a node of ours."""
        reason = node_data.decode_revoke(data) if self.revoked is None else None
        if reason is not None:
            logger.warning("event=revoked path=%s node=%s reason=%r", place.path, place.node, reason)
            self.revoked = reason
            self._notify()

    def on_holder(self, place: Place, holder: Any, _error: Exception | None = None) -> None:
        """Keep the owner of the first node in a queue."""
        self.holder = place.holder = holder
        self._holder_of = place
        self.holder_reads += 1
        self.answered = True
        self.wants_holder = False
        self._notify()
