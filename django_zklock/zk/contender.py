"""The heart: one node in one line, as a state machine driven by callbacks.

Nothing here blocks, polls or owns a thread. Blocking callers, asyncio and whoever else waits for a lock are
thin users: they post :meth:`Contender.join` and :meth:`Contender.leave`, and ``notify`` tells them that there is
something new to see. The recipe is Curator's: each waiter watches only the node before it, so a release wakes
one waiter (ZooKeeper Recipes, "Locks").

::

    NEW --join--> JOINING --created, listed--> HELD   (nobody ahead)
                    |  ^                        WAITING --the one ahead is gone, listed--> HELD
                    |  '--node gone, session gone--'
                    '--leave, failure, busy--> LEAVING --deleted--> GONE
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable
from functools import partial

from django_zklock.zk import identity, nodes
from django_zklock.zk.identity import Identity
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NodeExistsError, NoNodeError, UnimplementedError, ZnodeStat

logger = logging.getLogger("django_zklock.contender")

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
    The attributes ``state``, ``node``, ``token``, ``error``, ``busy``, ``lost``, ``holder`` and ``looks`` may be read
    from any thread; ``notify`` is called, without arguments and under the monitor, whenever one of them has changed.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        rule: nodes.Rule,
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
        # The name of the node that we watch, and what takes the watch off again.
        self._watched: str | None = None
        self._unwatch: Callable[[], None] | None = None
        self._watches_itself = False

    def __repr__(self) -> str:
        return f"<Contender {self.state.value} {self.path}/{self.node or '?'}>"

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
            if self._unwatch is not None:
                self._unwatch()
            if self.node is not None:
                self._delete()
            elif not self._creating:
                self._finish()

    def look(self) -> None:
        """Find out who is first in the line now; ``looks`` grows when the answer is there."""
        if self.session.connected:
            self.session.wire.children(self.path, self._looked)

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
        self._watched = None
        self._watches_itself = False

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
        if error is None and self._is_full(nodes.parse_all(names or ())):
            self.busy = True
            self._give_up()
        elif error is None or isinstance(error, NoNodeError):
            self._create()
        else:
            self._fail(error)

    def _is_full(self, line: list[nodes.Node]) -> bool:
        return sum(node.kind in self.rule.conflicts for node in line) >= self.rule.limit

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
            self._in_order(line, partial(self._ranked, asked))

    def _in_order(self, line: list[nodes.Node], use: Callable[[list[nodes.Node], KazooException | None], None]) -> None:
        """Hand on a line in its true order, first come first, or the server's refusal to tell it."""
        if nodes.order_is_safe(line):
            use(line, None)
            return
        logger.warning("event=sequence_end path=%s consequence=ordered_by_czxid", self.path)
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
            self.session.wire.get(f"{self.path}/{node.name}", partial(read, node.name))

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
        ahead = self.rule.blockers(self.node or "", line)
        if len(ahead) < self.rule.limit:
            self._grant()
        elif self.wait:
            self._queue_behind(ahead)
        else:
            self.busy = True
            self._give_up()

    def _grant(self) -> None:
        if self.session.lease_over:
            # This process slept after the answer was sent: somebody else may hold by now. Ask again; a fresh
            # answer renews the lease, and no answer suspends the session.
            self._list()
            return
        self.state = State.HELD
        self._notify()

    def _queue_behind(self, ahead: list[nodes.Node]) -> None:
        self.state = State.WAITING
        wire = self.session.wire
        if not self._watches_itself:
            self._watches_itself = True
            wire.get(self._own_path, partial(self._verified, self._round), partial(self._disturbed, self._round))
        first, last = ahead[0].name, ahead[-1].name
        if self._watched != last:
            self._watched = last
            self._unwatch = wire.get(
                f"{self.path}/{last}",
                partial(self._watch_set, self._round, last, first),
                partial(self._moved, self._round, last),
            )
        if first != last:
            wire.get(f"{self.path}/{first}", self._holder_read)

    def _watch_set(
        self,
        asked: int,
        watched: str,
        first: str,
        value: tuple[bytes, ZnodeStat] | None,
        error: KazooException | None,
    ) -> None:
        if asked != self._round or self.state is not State.WAITING:
            return
        if isinstance(error, NoNodeError):
            # It went between the list and the watch.
            self._watched = None
            self._list()
        elif error is not None:
            # Another owner's node that we may not read, and so not watch.
            self._fail(error)
        elif watched == first:
            self._holder_read(value, error)

    def _moved(self, asked: int, name: str) -> None:
        if asked == self._round and self.state is State.WAITING and self._watched == name:
            self._watched = None
            self._list()

    def _start_again(self) -> None:
        """Our node vanished while we waited: removed by an operator, or with the whole parent."""
        logger.warning("event=place_lost path=%s node=%s", self.path, self.node)
        self.node = None
        self.state = State.JOINING
        self._watched = None
        self._watches_itself = False
        self._enter()

    # The own node.

    @property
    def _own_path(self) -> str:
        return f"{self.path}/{self.node}"

    def _disturbed(self, asked: int) -> None:
        if asked == self._round and self.state in {State.WAITING, State.HELD}:
            self.session.wire.get(
                self._own_path, partial(self._verified, self._round), partial(self._disturbed, self._round)
            )

    def _verify(self) -> None:
        self.session.wire.get(self._own_path, partial(self._verified, self._round))

    def _verified(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._round or self.state not in {State.WAITING, State.HELD}:
            return
        if value is not None and value[1].ephemeralOwner == self.session.id:
            return
        if value is None and not isinstance(error, NoNodeError):
            logger.warning("event=unverified path=%s node=%s error=%r", self.path, self.node, error)
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self.lose("its node was deleted")
            self._finish()

    # Getting out.

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._give_up()

    def _give_up(self) -> None:
        self.leave()
        self._notify()

    def _delete(self) -> None:
        if self.session.connected:
            self.session.wire.delete(self._own_path, partial(self._deleted, self._round))

    def _deleted(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._round:
            return
        if error is not None and not isinstance(error, NoNodeError):
            logger.error("event=delete_refused path=%s node=%s error=%r", self.path, self.node, error)
        self._finish()

    def _finish(self) -> None:
        self.state = State.GONE
        self.session.detach(self)
        self._notify()
        for call in self._when_gone:
            call()

    # Who is in the way.

    def _looked(self, names: list[str] | None, error: KazooException | None) -> None:
        line = [node for node in nodes.parse_all(names or ()) if node.kind in self.rule.conflicts]
        if error is None and line:
            self._in_order(line, self._name_first)
        else:
            self._holder_read(None, error)

    def _name_first(self, line: list[nodes.Node], refusal: KazooException | None) -> None:
        if refusal is None and line and line[0].name != self.node:
            self.session.wire.get(f"{self.path}/{line[0].name}", self._holder_read)
        else:
            self._holder_read(None, refusal)

    def _holder_read(self, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None) -> None:
        self.holder = identity.decode(value[0]) if value is not None else None
        self.looks += 1
        self._notify()
