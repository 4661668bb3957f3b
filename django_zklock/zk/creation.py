"""The creation of the nodes of one acquisition: in one queue, or in several by one transaction, all or none.

A reply can be lost together with the connection, and then the nodes may exist or not. So each creation has a GUID,
which is a part of the names (Apache Curator calls that protection), and after a reconnect the names are searched for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.listing import SharedListing, shared_listing
from django_zklock.zk.queue import Mark, Queue, name_prefix, new_guid
from django_zklock.zk.requests import Reply, Request, RequestScript, ScriptRun, or_error
from django_zklock.zk.rules import Rule
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.creation")

# An empty container may be deleted between its creation and ours. After this many retries there is another cause.
MAX_ENSURES = 5


class LockPath(NamedTuple):
    """The path of a lock in ZooKeeper, which is the parent of its queue, and the data of that node."""

    path: str
    parent_data: bytes = b""


class Created(NamedTuple):
    """The names of the nodes, in the order of the paths, and the transaction that created them.

    ``was_recovered`` says that they were found after a lost reply.
    """

    names: list[str]
    czxid: int
    was_recovered: bool = False


Outcome = Created | SharedListing | None
"""The nodes; or the queue in which the contender would have to wait; or ``None`` if the creation was abandoned."""


class Creation:
    """Creates the nodes of one contender, with ``mark``. Every method is called under the session's monitor.

    ``sent`` is called when the request to create is sent with the next write. Requests that are made then are sent
    together with it. ``ended`` is called once, with the outcome and ``None``, or with ``None`` and the error with which
    the server has refused for good. ``delayed`` is called with each error with which it has refused for now.
    """

    __slots__ = (
        "_data", "_guid", "_is_abandoned", "_listings", "_mark", "_paths", "_rule", "_run", "_sent", "_session",
        "_wait",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        paths: Sequence[LockPath],
        rule: Rule,
        *,
        data: bytes,
        mark: Mark | None,
        wait: bool,
        sent: Callable[[], None],
        ended: Callable[[Outcome, Exception | None], None],
        delayed: Callable[[KazooException], None],
    ) -> None:
        self._session = session
        self._paths = paths
        self._listings = [shared_listing(session, each.path) for each in paths]
        self._rule = rule
        self._data = data
        self._mark = mark
        self._wait = wait
        self._sent = sent
        self._is_abandoned = False
        # Set while nodes with it may exist, because the reply to their creation is not here.
        self._guid = ""
        self._run = ScriptRun(session, self._script, ended=ended, delayed=delayed)

    @property
    def in_doubt(self) -> bool:
        """Whether nodes may exist whose names are not known here."""
        return bool(self._guid)

    def start(self) -> None:
        """Create the nodes, or go on with that on a new connection."""
        self._run.start()

    def suspend(self) -> None:
        """Ignore open requests, because the connection is lost."""
        self._run.stop()

    def abandon(self) -> bool:
        """Create no more nodes. Return whether a result is still to come, because nodes may exist."""
        self._is_abandoned = True
        if not self.in_doubt:
            self._run.stop()
        return self.in_doubt

    # The script.

    def _script(self) -> RequestScript[Outcome]:
        if self.in_doubt:
            created = yield from self._recover()
            if created is not None or self._is_abandoned:
                return created
        if not self._wait:
            # A lock that is taken then costs no write and leaves no trace.
            taken = yield from self._find_taken()
            if taken is not None:
                return taken
        try:
            return (yield from self._create(*self._new_parent()))
        except wire.NoNodeError as error:
            missing = error
        for _ in range(MAX_ENSURES):
            if self._is_abandoned:
                return None
            refusals: list[KazooException] = []
            parents = [partial(self._make_parent, path, refusals) for path in self._paths]
            try:
                return (yield from self._create(*parents))
            except wire.NoNodeError as error:
                if refusals:
                    raise refusals[0] from error
                missing = error
        raise missing

    def _new_parent(self) -> list[Request]:
        """Return the request for the parent of a queue that this session has not used: it is probably missing.

        Many keys are used once. The request saves a round trip then, and else does nothing. Several keys at once are
        rarely all new.
        """
        (first, *others) = self._paths
        if others or first.path in self._session.known_queues:
            return []
        # The contenders that join meanwhile rely on this request, which is before theirs.
        self._session.known_queues.add(first.path)
        return [partial(self._make_parent, first, [], with_ancestors=False)]

    def _find_taken(self) -> RequestScript[SharedListing | None]:
        """Return the first queue in which the contender would have to wait."""
        outcomes = yield [or_error(each.list_names, wire.NoNodeError) for each in self._listings]
        for listing, names in zip(self._listings, outcomes, strict=True):
            if isinstance(names, list) and self._rule.must_wait(Queue(listing.parse(names))):
                return listing
        return None

    def _create(self, *before: Request) -> RequestScript[Created]:
        """Create the nodes by a new GUID: a node that turns up late is never taken for the new one."""
        self._guid = new_guid(self._mark)
        prefix = name_prefix(self._guid, self._rule.kind, self._rule.limit)
        stems = [f"{each.path}/{prefix}" for each in self._paths]
        try:
            *_, value, _sent = yield [*before, partial(self._send, stems), self._announce_sent]
        except wire.KazooException:
            # Only errors that do not pass are raised here, so no node was created.
            self._guid = ""
            for path in self._paths:
                self._session.known_queues.discard(path.path)
            raise
        self._guid = ""
        for path in self._paths:
            self._session.known_queues.add(path.path)
        if len(stems) > 1:
            return Created(*value)
        return Created([value[0]], value[1].czxid)

    def _recover(self) -> RequestScript[Created | None]:
        """Return the nodes of a creation whose reply was lost. Delete what is left of it if they are of no use."""
        # The server of this connection may not know yet what another one has done.
        yield [lambda reply: self._session.renewal.catch_up(partial(reply, None, None))]
        outcomes = yield [or_error(each.list_names) for each in self._listings]
        refusals = [each for each in outcomes if isinstance(each, Exception) and not isinstance(each, wire.NoNodeError)]
        found = [self._mine(names) if isinstance(names, list) else None for names in outcomes]
        if all(found):
            (value,) = yield [or_error(partial(self._session.wire.get, f"{self._paths[0].path}/{found[0]}"))]
            if isinstance(value, tuple) and value[1].ephemeralOwner == self._session.id:
                self._guid = ""
                return Created([name for name in found if name], value[1].czxid, was_recovered=True)
            if isinstance(value, Exception) and not isinstance(value, wire.NoNodeError):
                refusals.append(value)
        # Some were deleted; or the session that created them has ended, and contenders would wait for them until the
        # server notices; or they cannot be read, so that the hold could never be verified.
        leftovers = [f"{each.path}/{name}" for each, name in zip(self._paths, found, strict=True) if name]
        outcomes = yield [or_error(partial(self._session.wire.delete, path)) for path in leftovers]
        for path, outcome in zip(leftovers, outcomes, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, wire.NoNodeError):
                logger.error("event=leave_refused node=%s error=%r", path, outcome)
        if refusals:
            raise refusals[0]
        self._guid = ""
        return None

    def _mine(self, names: list[str]) -> str | None:
        return next((name for name in names if self._guid in name), None)

    # Requests.

    def _send(self, stems: list[str], reply: Reply) -> None:
        if len(stems) > 1:
            self._session.wire.create_all(stems, self._data, reply)
        else:
            self._session.wire.create(stems[0], self._data, reply)

    def _announce_sent(self, reply: Reply) -> None:
        self._sent()
        reply(None, None)

    def _make_parent(
        self, path: LockPath, refusals: list[KazooException], reply: Reply, *, with_ancestors: bool = True
    ) -> None:
        """Create the parent node of a queue. The creation in the same write shows whether a refusal matters."""

        def made(_value: object, error: KazooException | None) -> None:
            if error is not None and not isinstance(error, wire.NodeExistsError):
                logger.debug("event=ensure_refused path=%s error=%r", path.path, error)
                refusals.append(error)

        self._session.wire.ensure(path.path, path.parent_data, made, container=True, with_ancestors=with_ancestors)
        reply(None, None)
