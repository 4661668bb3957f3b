"""The live tree, read and not locked: who holds, who waits, since when.

Every level is read with pipelined requests, so the time is a few round trips and not one for each node. Nodes
come and go meanwhile; what vanished is left out. Names of recipes that we do not know are reported as such.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import identity, keys, nodes, revocation, rules
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.identity import Identity
from django_zklock.zk.order import Order
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat


@dataclass(frozen=True, kw_only=True)
class Place:
    """One node in a line. ``since`` is its creation at the server, in seconds since the Unix epoch."""

    node: str
    path: str
    kind: str
    sequence: int
    position: int
    held: bool
    token: int
    session_id: int
    since: float
    identity: Identity | None
    # How many may hold at once, as this contender has it; of a semaphore of ours only.
    limit: int | None = None
    # Why the owner was asked to let go.
    revoked: str | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One lock and everybody in its line, first come first.

    ``foreign`` are the names of children that are of no lock recipe that we know.
    """

    key: str
    path: str
    places: tuple[Place, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.held)

    @property
    def waiters(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if not place.held)


def lines(pool: Pool, *, timeout: float) -> list[Line]:
    """Read every lock in use, sorted by key, in at most ``timeout`` seconds.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it refuses.
    """
    reading = _Reading(pool.session(pool.options.root), pool.options.root, None)
    return sorted((line for line in reading.result(timeout) if line.places or line.foreign), key=lambda line: line.key)


def line(pool: Pool, key: str, *, timeout: float) -> Line:
    """Read the line of one lock, in at most ``timeout`` seconds; empty if nobody is there.

    Raises as :func:`lines`, and ``ValueError`` for a key that cannot name a lock.
    """
    keys.check(key)
    path = pool.path(key)
    found = _Reading(pool.session(path), pool.options.root, [keys.escape(key)]).result(timeout)
    return replace(found[0], key=key) if found else Line(key=key, path=path)


class _Reading:
    """One survey: a tenant of the session that begins again after a reconnect."""

    def __init__(self, session: Session, root: str, names: list[str] | None) -> None:
        self._session = session
        self._root = root
        self._names = names
        # Not an Event, see Alarm.
        self._finished = False
        self._done = Alarm()
        self._error: Exception | None = None
        self._round = 0
        # Under the session's monitor until _done has rung.
        self._outstanding = 0
        self._children: dict[str, list[str]] = {}
        self._labels: dict[str, str] = {}
        self._contents: dict[str, tuple[bytes, ZnodeStat]] = {}

    def result(self, timeout: float) -> list[Line]:
        session = self._session
        session.post(self._begin)
        try:
            if not self._done.wait(timeout):
                self._error = TimeoutError(f"no answer within {timeout:g} s")
        finally:
            session.post(partial(session.detach, self))
        if self._error is None:
            return [self._line(name) for name in self._children]
        if isinstance(self._error, KazooException):
            raise ZkLockError(f"ZooKeeper at {session.server} refused to list {self._root}: {self._error!r}")
        raise ZooKeeperUnavailable(
            f"ZooKeeper at {session.server}: {self._error}; is it running and reachable, and are HOSTS, TLS and AUTH "
            f"in ZKLOCK right?",
            timeout=timeout,
        ) from self._error

    # Tenant.

    def suspended(self) -> None:
        self._round += 1

    def resumed(self) -> None:
        if not self._finished:
            self._read()

    def session_ended(self, _reason: str) -> None:
        self._round += 1

    def unavailable(self, reason: str, /) -> None:
        self._fail(ConnectionError(reason))

    def heartbeat(self) -> None: ...

    def lose(self, _reason: str) -> None: ...

    # Reading.

    def _begin(self) -> None:
        self._session.attach(self)
        if self._session.connected:
            self._read()

    def _read(self) -> None:
        self._round += 1
        self._outstanding = 0
        self._children, self._labels, self._contents = {}, {}, {}
        if self._names is None:
            self._ask(partial(self._session.wire.children, self._root), self._listed_root)
        else:
            self._read_lines(self._names)

    def _listed_root(self, names: list[str] | None) -> None:
        self._read_lines(names or [])

    def _read_lines(self, names: list[str]) -> None:
        wire = self._session.wire
        for name in names:
            path = f"{self._root}/{name}"
            self._ask(partial(wire.children, path), partial(self._listed, name))
            if keys.unescape(name) is None:
                self._ask(partial(wire.get, path), partial(self._labelled, name))

    def _listed(self, line: str, names: list[str] | None) -> None:
        if names is None:
            return
        self._children[line] = names
        for name in names:
            if nodes.parse(name):
                path = f"{self._root}/{line}/{name}"
                self._ask(partial(self._session.wire.get, path), partial(self._got, path))

    def _labelled(self, name: str, value: tuple[bytes, ZnodeStat] | None) -> None:
        if value is not None and len(value[0]) <= keys.MAX_KEY_BYTES:
            self._labels[name] = value[0].decode(errors="replace")

    def _got(self, path: str, value: tuple[bytes, ZnodeStat] | None) -> None:
        if value is not None:
            self._contents[path] = value

    def _ask(self, request: Callable[..., object], use: Callable[[Any], None]) -> None:
        asked = self._round
        self._outstanding += 1

        def reply(value: Any, error: KazooException | None) -> None:
            if asked != self._round or self._finished:
                return
            if error is not None and not isinstance(error, NoNodeError):
                self._fail(error)
                return
            use(value)
            self._outstanding -= 1
            if self._outstanding == 0:
                self._finish()

        request(reply)

    def _fail(self, error: Exception) -> None:
        if not self._finished:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self._finished = True
        self._done.ring()

    # The result.

    def _line(self, name: str) -> Line:
        path = f"{self._root}/{name}"
        names = self._children[name]
        found = [node for node in nodes.parse_all(names) if f"{path}/{node.name}" in self._contents]
        if not nodes.order_is_safe(found):
            found.sort(key=lambda node: self._contents[f"{path}/{node.name}"][1].czxid)
        order = Order(found)
        return Line(
            key=self._key(name),
            path=path,
            places=tuple(self._place(path, node, position, order) for position, node in enumerate(found)),
            foreign=tuple(sorted(entry for entry in names if nodes.parse(entry) is None)),
        )

    def _key(self, name: str) -> str:
        """Give the key of a line; the name itself, if somebody else made it and no key leads there."""
        key = keys.unescape(name) or self._labels.get(name) or name
        try:
            return key if keys.escape(key) == name else name
        except UnicodeEncodeError:
            return name

    def _place(self, path: str, node: nodes.Node, position: int, order: Order) -> Place:
        data, stat = self._contents[f"{path}/{node.name}"]
        who = identity.decode(data)
        return Place(
            node=node.name,
            path=f"{path}/{node.name}",
            kind=node.kind.value,
            sequence=node.sequence,
            position=position,
            held=_rule(node, who).holds(node.name, order),
            token=stat.czxid,
            session_id=stat.ephemeralOwner,
            since=stat.ctime / 1000.0,
            identity=who,
            limit=who.limit if who and node.kind is nodes.Kind.LEASE else None,
            revoked=revocation.reason(data),
        )


def _rule(node: nodes.Node, who: Identity | None) -> rules.Rule:
    if node.kind is not nodes.Kind.LEASE:
        return rules.RULES[node.kind]
    # Each caller enforces a limit of its own, which it tells us if it is one of ours; others we believe to hold.
    return rules.semaphore(who.limit if who and who.limit else sys.maxsize)
