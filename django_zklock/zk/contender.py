"""The heart: one node in one line, as a state machine driven by callbacks.

Nothing here blocks, polls or owns a thread. Blocking callers, asyncio and whoever else waits for a lock are
thin users: they post :meth:`Contender.join` and :meth:`Contender.leave`, and ``notify`` tells them that there is
something new to see. The recipe is Curator's (ZooKeeper Recipes, "Locks"); which nodes a waiter watches is said in
:mod:`~django_zklock.zk.rules`.

::

    NEW --join--> JOINING --created, listed--> HELD   (nobody ahead)
                    |  ^                        WAITING --who stood ahead is gone--> HELD
                    |  '--node gone, session gone--'
                    '--leave, failure, busy--> LEAVING --deleted--> GONE
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable
from functools import partial

from django_zklock.zk import identity, nodes, revocation
from django_zklock.zk.identity import Identity
from django_zklock.zk.rules import FREE, Rule
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NodeExistsError, NoNodeError, UnimplementedError, ZnodeStat

logger = logging.getLogger("django_zklock.contender")

# Instead of the name of a node: all the names in the line.
THE_LINE = ""
# Parents may be reaped between their making and our create; more often than this it is something else.
MAX_ENSURES = 5


class State(enum.Enum):
    """Where a contender is; see the picture in this module's docstring."""

    NEW = "new"
    JOINING = "joining"
    WAITING = "waiting"
    HELD = "held"
    LEAVING = "leaving"
    GONE = "gone"


class Unavailable(Exception):  # noqa: N818 - internal, translated at the public door
    """The session cannot serve this contender; the text says why."""


class Contender:
    """One attempt at one lock.

    Every method runs under ``session.monitor`` on the machine's threads (see :mod:`~django_zklock.zk.session`).
    The attributes ``state``, ``node``, ``token``, ``error``, ``busy``, ``lost``, ``revoked``, ``holder`` and ``looks``
    may be read from any thread; ``notify`` is called, without arguments and under the monitor, whenever one of them
    has changed.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        rule: Rule,
        *,
        data: bytes,
        parent_data: bytes = b"",
        wait: bool,
        notify: Callable[[], None],
    ) -> None:
        self.session = session
        self.path = path
        self.rule = rule
        self.wait = wait
        self.state = State.NEW
        self.node: str | None = None
        self.token: int | None = None
        self.error: Exception | None = None
        # The lock was taken and `wait` was false.
        self.busy = False
        # Why the hold can no longer be trusted; never cleared.
        self.lost: str | None = None
        # Why somebody asks us to let go; never cleared.
        self.revoked: str | None = None
        # Who was first in the line when we last looked, and how often we looked.
        self.holder: Identity | None = None
        self.looks = 0
        self._when_gone: list[Callable[[], None]] = []
        self._data = data
        self._parent_data = parent_data
        self._notify = notify
        self._guid = ""
        # A create was sent and its outcome is not known.
        self._creating = False
        # Grows whenever earlier replies and watch events have lost their meaning.
        self._round = 0
        self._ensures = 0
        # What stood before us when we last looked, and which of it is proven to be gone since.
        self._outlook = FREE
        self._missing: set[str] = set()
        # What takes off each watch on those before us, by the name of the node; that on the whole line by no name.
        self._watches: dict[str, Callable[[], None]] = {}
        # The watch on our own node: asked for, and there.
        self._watches_itself = False
        self._sees_itself = False
        # Of a semaphore: the lease before us that will not tell us in time, so that we watch the whole line too.
        self._silent: str | None = None
        # We hold, and who stands behind us may not know it yet.
        self._telling = False
        # The sessions of the nodes that we watch.
        self._owners: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Contender {self.state.value} {self.path}/{self.node or '?'}>"

    @property
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each line, by the path of the line."""
        return {self.path: self._own_path}

    # What fronts post.

    def join(self) -> None:
        """Get into the line."""
        if self.state is not State.NEW:
            return
        self.state = State.JOINING
        self.session.attach(self)
        if self.session.connected and self.state is State.JOINING:
            self._enter()

    def leave(self) -> None:
        """Give up the place or the hold; the node is deleted now or as soon as there is a connection."""
        if self.state is State.NEW:
            self.state = State.GONE
        elif self.state not in {State.LEAVING, State.GONE}:
            self.state = State.LEAVING
            self._unwatch_all()
            if self.node is not None:
                self._delete()
            elif not self._creating:
                self._finish()

    def look(self) -> None:
        """Find out who is first in the line now; ``looks`` grows when the answer is there."""
        if self.session.connected:
            look_up(self.session, self.path, self.rule, self.node, self._holder_found)

    def when_gone(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the node is surely gone."""
        if self.state is State.GONE:
            call()
        else:
            self._when_gone.append(call)

    # What the session says.

    def suspended(self) -> None:
        """The connection is gone, and with it every reply and watch."""
        self._round += 1
        self._watches.clear()
        self._watches_itself = self._sees_itself = False

    def resumed(self) -> None:
        """There is a connection again. Whatever was unknown is asked for, after a sync."""
        wire = self.session.wire
        if self._creating:
            wire.sync(self.path)
            wire.children(self.path, partial(self._searched, self._round))
        elif self.state in {State.JOINING, State.WAITING} and self.node is not None:
            wire.sync(self.path)
            self._list()
        elif self.state is State.JOINING:
            self._enter()
        elif self.state is State.HELD:
            wire.sync(self.path)
            self._verify()
            if self._telling:
                self._tell_next()
        elif self.state is State.LEAVING:
            self._delete()

    def session_ended(self, reason: str) -> None:
        """The session is gone, and its nodes with it."""
        self.suspended()
        if self.state is State.HELD:
            self.lose(reason)
        self.node = None
        self._creating = False
        if self.state in {State.HELD, State.LEAVING}:
            self._finish()
        elif self.state is State.WAITING:
            self.state = State.JOINING

    def unavailable(self, reason: str) -> None:
        """ZooKeeper cannot be reached; whoever does not hold yet stops trying."""
        if self.state in {State.JOINING, State.WAITING}:
            self._fail(Unavailable(reason))

    def heartbeat(self) -> None:
        """Read the held node: the answer renews the lease and proves that the node is still ours."""
        if self.state is State.HELD:
            self._verify()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. The node stays until the holder leaves: its work may still be running."""
        if self.state is State.HELD and self.lost is None:
            self.lost = reason
            # A process that ends while it holds has chosen to.
            level = logging.INFO if self.session.closing else logging.WARNING
            logger.log(level, "event=lost path=%s node=%s reason=%s", self.path, self.node, reason)
            self._notify()

    # Getting in.

    def _enter(self) -> None:
        self._round += 1
        if self.wait:
            self._create()
        else:
            # A busy lock then costs no write and leaves no trace.
            self.session.wire.children(self.path, partial(self._peeked, self._round))

    def _peeked(self, asked: int, names: list[str] | None, error: KazooException | None) -> None:
        if asked != self._round or self.state is not State.JOINING:
            return
        if error is None and self.rule.is_full(nodes.parse_all(names or ())):
            self.busy = True
            self._give_up()
        elif error is None or isinstance(error, NoNodeError):
            self._create()
        else:
            self._fail(error)

    def _create(self) -> None:
        # A GUID for each attempt: a node that turns up late is never taken for the new one.
        self._guid = str(uuid.uuid4())
        self._creating = True
        wire = self.session.wire
        stem = f"{self.path}/{nodes.prefix(self._guid, self.rule.kind)}"
        wire.create(stem, self._data, partial(self._created, self._round))
        wire.children(self.path, partial(self._listed, self._round))

    def _created(self, asked: int, value: tuple[str, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._round:
            return
        self._creating = False
        if value is not None:
            self._adopt(*value)
        elif self.state is State.LEAVING:
            self._finish()
        elif isinstance(error, NoNodeError) and self._ensures < MAX_ENSURES:
            self._ensures += 1
            self._round += 1
            self.session.wire.ensure(self.path, self._parent_data, self._ensured, container=self.session.containers)
            self._create()
        else:
            self._fail(error or KazooException("create had no outcome"))

    def _ensured(self, _value: object, error: KazooException | None) -> None:
        # The create that follows in the same write tells what matters; only this is worth remembering.
        if isinstance(error, UnimplementedError):
            logger.warning("event=no_containers server=%s consequence=idle_parents_stay", self.session.server)
            self.session.containers = False
        elif error is not None and not isinstance(error, NodeExistsError):
            logger.debug("event=ensure_refused path=%s error=%r", self.path, error)

    def _adopt(self, node: str, stat: ZnodeStat) -> None:
        self.node = node
        self.token = stat.czxid
        self._ensures = 0
        if self.state is State.LEAVING:
            self._delete()

    # After a reconnect with a create under way: did it happen?

    def _searched(self, asked: int, names: list[str] | None, error: KazooException | None) -> None:
        if asked != self._round:
            return
        if error is not None and not isinstance(error, NoNodeError):
            self._creating = False
            self._fail(error)
            return
        mine = next((name for name in names or () if self._guid in name), None)
        if mine is None:
            self._not_there()
        else:
            self.session.wire.get(f"{self.path}/{mine}", partial(self._found, self._round, mine))

    def _found(
        self, asked: int, node: str, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None
    ) -> None:
        if asked != self._round:
            return
        if value is None:
            self._not_there()
        elif value[1].ephemeralOwner != self.session.id:
            # Of a session that is over: the server will remove it, but not before others have waited for it.
            self.session.wire.delete(f"{self.path}/{node}", lambda _value, _error: None)
            self._not_there()
        else:
            self._creating = False
            self._adopt(node, value[1])
            if self.state is State.JOINING:
                self._list()

    def _not_there(self) -> None:
        self._creating = False
        if self.state is State.LEAVING:
            self._finish()
        else:
            self._enter()

    # In the line.

    def _list(self) -> None:
        self.session.wire.children(self.path, partial(self._listed, self._round))

    def _listed(self, asked: int, names: list[str] | None, error: KazooException | None) -> None:
        if asked != self._round or self.node is None or self.state not in {State.JOINING, State.WAITING}:
            return
        if error is not None and not isinstance(error, NoNodeError):
            self._fail(error)
            return
        line = nodes.parse_all(names or ())
        if all(node.name != self.node for node in line):
            self._start_again()
        else:
            in_order(self.session, self.path, line, partial(self._ranked, asked))

    def _ranked(self, asked: int, line: list[nodes.Node], refusal: KazooException | None) -> None:
        if asked != self._round or self.state not in {State.JOINING, State.WAITING}:
            return
        if refusal is not None:
            # Another owner's node that we may not read, and that may stand before us.
            self._fail(refusal)
        elif all(node.name != self.node for node in line):
            self._start_again()
        else:
            self._judge(line)

    def _judge(self, line: list[nodes.Node]) -> None:
        self._outlook = self.rule.outlook(self.node or "", line)
        self._missing.clear()
        if self._outlook is FREE:
            self._grant(followed=self._is_followed(line))
        elif self.wait:
            self._wait_in_line()
        else:
            self.busy = True
            self._give_up()

    def _is_followed(self, line: list[nodes.Node]) -> bool:
        """Whether somebody of our kind stands behind us."""
        last = next(node for node in reversed(line) if node.name == self.node or node.kind is self.rule.kind)
        return last.name != self.node

    def _grant(self, *, followed: bool) -> None:
        """Hold; ``followed`` says that somebody of our kind may stand behind us already."""
        if self.session.lease_over:
            # This process slept after the answer was sent: somebody else may hold by now. Ask again; a fresh
            # answer renews the lease, and no answer suspends the session.
            self._list()
            return
        self.state = State.HELD
        self._unwatch_all()
        if followed and self.rule.limit is not None:
            self._tell_next()
        self._notify()

    def _tell_next(self) -> None:
        """Have the lease behind us look: it cannot see that we are in, and that the next to go makes room for it.

        Only if nobody has written to our node before, such as the wish that we let go: whoever stands behind us has
        heard of that, and relies on us no longer.
        """
        self._telling = True
        self.session.wire.set(self._own_path, self._data, partial(self._told, self._round), version=0)

    def _told(self, asked: int, _value: object, _error: KazooException | None) -> None:
        if asked == self._round:
            self._telling = False

    def _wait_in_line(self) -> None:
        self.state = State.WAITING
        wanted = {node.name for node in self._outlook.watched}
        if self._outlook.children or self._silent in wanted:
            wanted.add(THE_LINE)
        for name in self._watches.keys() - wanted:
            self._watches.pop(name)()
        self._owners = {name: owner for name, owner in self._owners.items() if name in wanted}
        if not self._watches_itself:
            self._watch_itself()
        for name in wanted - self._watches.keys():
            self._watch(name)
        first = self._outlook.blockers[0].name
        if first not in wanted:
            read_identity(self.session, f"{self.path}/{first}", self._holder_found)

    def _watch(self, name: str) -> None:
        wire, moved = self.session.wire, partial(self._moved, self._round, name)
        if name == THE_LINE:
            self._watches[name] = wire.children(self.path, partial(self._listed, self._round), moved)
        else:
            told = partial(self._watch_set, self._round, name)
            self._watches[name] = wire.get(f"{self.path}/{name}", told, moved)

    def _watch_set(
        self, asked: int, name: str, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None
    ) -> None:
        if asked != self._round or self.state is not State.WAITING:
            return
        if isinstance(error, NoNodeError):
            # It went between the list and the watch.
            self._moved(asked, name, deleted=True)
        elif error is not None or value is None:
            # Another owner's node that we may not read, and so not watch.
            self._fail(error or KazooException("a read had no outcome"))
        else:
            self._owners[name] = value[1].ephemeralOwner
            if name == self._outlook.blockers[0].name:
                self._holder_found(identity.decode(value[0]))
            if self._outlook.relayed and name in self._watches and not self._hears_in_time(*value):
                self._silent = name
                if THE_LINE not in self._watches:
                    self._watch(THE_LINE)

    def _hears_in_time(self, data: bytes, stat: ZnodeStat) -> bool:
        """Whether the lease right before us, which we watch, will tell us when there is something to see."""
        theirs = identity.decode(data)
        # Written to since it was created: it may have come in before we began to watch it.
        return stat.version == 0 and self.rule.hears_in_time(
            len(self._outlook.blockers), theirs.limit if theirs is not None else None
        )

    def _moved(self, asked: int, name: str, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        if asked != self._round or self.state is not State.WAITING or self._watches.pop(name, None) is None:
            return
        if name == THE_LINE:
            self._watch(name)
        elif not deleted or not self._outlook.armed or not self._is_proof(name):
            self._list()
        else:
            self._missing.add(name)
            if all(node.name in self._missing for node in self._outlook.watched):
                self._grant_unasked()

    def _is_proof(self, name: str) -> bool:
        """Whether the end of a node that we watch cannot be part of the end of our own session."""
        owner = self._owners.get(name)
        return owner is not None and (owner != self.session.id or f"{self.path}/{name}" in self.session.departing)

    def _grant_unasked(self) -> None:
        """Hold at once, if the events of the watches prove as much as a list would.

        Nobody joins before us, so those who stood there are all there were. But they prove nothing about us if our own
        node may be gone too, or if this process has slept since.
        """
        if self.session.lease_fresh and self._sees_itself:
            self._grant(followed=True)
        else:
            self._list()

    def _unwatch_all(self) -> None:
        while self._watches:
            self._watches.popitem()[1]()

    def _start_again(self) -> None:
        """Our node vanished while we waited: removed by an operator, or with the whole parent."""
        logger.warning("event=place_lost path=%s node=%s", self.path, self.node)
        self.node = None
        self.state = State.JOINING
        self._unwatch_all()
        self._watches_itself = self._sees_itself = False
        self._enter()

    # The own node.

    @property
    def _own_path(self) -> str:
        return f"{self.path}/{self.node}"

    def _watch_itself(self) -> None:
        self._watches_itself = True
        # Never taken off: it goes with the node.
        self.session.wire.get(
            self._own_path, partial(self._itself_watched, self._round), partial(self._disturbed, self._round)
        )

    def _itself_watched(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked == self._round:
            self._sees_itself = value is not None
            self._verified(asked, value, error)

    def _disturbed(self, asked: int, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        if asked != self._round or self.state not in {State.WAITING, State.HELD}:
            return
        self._watches_itself = self._sees_itself = False
        if not deleted:
            self._watch_itself()
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    def _heed(self, data: bytes) -> None:
        reason = revocation.reason(data) if self.revoked is None else None
        if reason is not None:
            logger.warning("event=revoked path=%s node=%s reason=%r", self.path, self.node, reason)
            self.revoked = reason
            self._notify()

    def _lose_node(self) -> None:
        self.lose("its node was deleted")
        self._finish()

    def _verify(self) -> None:
        self.session.wire.get(self._own_path, partial(self._verified, self._round))

    def _verified(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._round or self.state not in {State.WAITING, State.HELD}:
            return
        if value is not None and value[1].ephemeralOwner == self.session.id:
            self._heed(value[0])
            return
        if value is None and not isinstance(error, NoNodeError):
            logger.warning("event=unverified path=%s node=%s error=%r", self.path, self.node, error)
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    # Getting out.

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._give_up()

    def _give_up(self) -> None:
        self.leave()
        self._notify()

    def _delete(self) -> None:
        if self.session.connected:
            self.session.departing.add(self._own_path)
            self.session.wire.delete(self._own_path, partial(self._deleted, self._round))

    def _deleted(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._round:
            return
        if error is not None and not isinstance(error, NoNodeError):
            logger.error("event=delete_refused path=%s node=%s error=%r", self.path, self.node, error)
        self._finish()

    def _finish(self) -> None:
        self.state = State.GONE
        self.session.departing.discard(self._own_path)
        self.session.detach(self)
        self._notify()
        for call in self._when_gone:
            call()

    def _holder_found(self, holder: Identity | None) -> None:
        self.holder = holder
        self.looks += 1
        self._notify()


def in_order(
    session: Session,
    path: str,
    line: list[nodes.Node],
    use: Callable[[list[nodes.Node], KazooException | None], None],
) -> None:
    """Hand on the line at ``path`` in its true order, first come first, or the server's refusal to tell it."""
    if nodes.order_is_safe(line):
        use(line, None)
        return
    logger.warning("event=sequence_end path=%s consequence=ordered_by_czxid", path)
    czxids: dict[str, int] = {}
    refusals: list[KazooException] = []
    last = line[-1].name

    def read(name: str, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if value is not None:
            czxids[name] = value[1].czxid
        elif error is not None and not isinstance(error, NoNodeError):
            refusals.append(error)
        # Replies come in the order of the requests, so the last one completes the set.
        if name == last:
            there = (node for node in line if node.name in czxids)
            use(sorted(there, key=lambda node: czxids[node.name]), refusals[0] if refusals else None)

    for node in line:
        session.wire.get(f"{path}/{node.name}", partial(read, node.name))


def look_up(session: Session, path: str, rule: Rule, own: str | None, found: Callable[[Identity | None], None]) -> None:
    """Find out who is first of those in the line at ``path`` who are in the way by ``rule``, but ``own`` node."""

    def listed(names: list[str] | None, _error: KazooException | None) -> None:
        line = [node for node in nodes.parse_all(names or ()) if node.kind in rule.conflicts or rule.limit]
        if line:
            in_order(session, path, line, ordered)
        else:
            found(None)

    def ordered(line: list[nodes.Node], refusal: KazooException | None) -> None:
        if refusal is None and line and line[0].name != own:
            read_identity(session, f"{path}/{line[0].name}", found)
        else:
            found(None)

    session.wire.children(path, listed)


def read_identity(session: Session, node: str, found: Callable[[Identity | None], None]) -> None:
    """Find out who owns the node at the full path ``node``; ``None`` if it does not tell, or is gone."""

    def read(value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None) -> None:
        found(identity.decode(value[0]) if value is not None else None)

    session.wire.get(node, read)
