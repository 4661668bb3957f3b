"""The live tree, read and not locked: who holds, who waits, since when.

The names of the nodes in a line tell how many hold and how many wait; who they are is in the data of each. So
:func:`outlines` reads the names of all lines, many in one request, and :func:`read` the data of those that somebody
wants to see. Nodes come and go meanwhile; what vanished is left out. Names of recipes that we do not know are
reported as such.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from django_zklock.zk import identity, inquiry, keys, label, nodes, revocation, rules
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.identity import Identity
from django_zklock.zk.inquiry import Script
from django_zklock.zk.nodes import Node
from django_zklock.zk.order import Order
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, Read, ZnodeStat


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

    ``nodes`` are all who stand there, by name; ``places`` are those whose data was read, the first so many of them.
    ``foreign`` are the names of children that are of no lock recipe that we know.
    """

    key: str
    path: str
    nodes: tuple[Node, ...] = ()
    places: tuple[Place, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[Place, ...]:
        """The places that hold, of those read."""
        return tuple(place for place in self.places if place.held)

    @property
    def waiters(self) -> tuple[Place, ...]:
        """The places that wait, of those read."""
        return tuple(place for place in self.places if not place.held)

    @cached_property
    def holding(self) -> int:
        """How many hold, read or not. Of leases that were not read it is believed that they have the others' limit."""
        if not self.nodes:
            return 0
        if self.nodes[0].kind in rules.NOT_SHARED:
            return 1
        order = Order(self.nodes)
        limit = next((place.limit for place in reversed(self.places) if place.limit), None)
        unread = self.nodes[len(self.places) :]
        return len(self.holders) + sum(_rule(node, limit).holds(node.name, order) for node in unread)

    @property
    def waiting(self) -> int:
        """How many wait, read or not; see ``holding``."""
        return len(self.nodes) - self.holding


def lines(pool: Pool, *, timeout: float) -> list[Line]:
    """Read every lock in use as a whole, sorted by key, in at most ``timeout`` seconds.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it refuses.
    """
    deadline = Deadline.after(timeout)
    found = outlines(pool, names(pool, timeout=deadline.remaining()), timeout=deadline.remaining())
    in_use = (line for line in read(pool, found, timeout=deadline.remaining()) if line.nodes or line.foreign)
    return sorted(in_use, key=attrgetter("key"))


def names(pool: Pool, *, timeout: float | None) -> list[str]:
    """Read the names of all lines, sorted, whether anybody stands there or not; raises as :func:`lines`.

    See :mod:`~django_zklock.zk.keys` for what they say of the keys.
    """
    root = pool.options.root
    session = pool.session(root)
    return sorted(inquiry.ask(session, partial(_list_root, session, root), aim=f"list {root}", timeout=timeout))


def outlines(pool: Pool, names: Sequence[str], *, timeout: float | None) -> list[Line]:
    """Read who stands in the lines of these names, without ``places``; raises as :func:`lines`.

    Those where nobody stands are left out.
    """
    root = pool.options.root
    session = pool.session(root)
    script = partial(_list, session, root, names)
    found = inquiry.ask(session, script, aim=f"list what is in {root}", timeout=timeout)
    return [_outline(root, *listing) for listing in found if listing[1]]


def read(pool: Pool, lines: Sequence[Line], *, timeout: float | None, depth: int | None = None) -> list[Line]:
    """Give ``lines`` with the data of the first ``depth`` who stand there, of all without it; raises as :func:`lines`.

    What has vanished since the lines were read is left out of them.
    """
    session = pool.session(pool.options.root)
    # Without all of it there would be no order.
    chosen = [line.nodes[: depth if nodes.order_is_safe(line.nodes) else None] for line in lines]
    reads = [Read(f"{line.path}/{node.name}") for line, some in zip(lines, chosen, strict=True) for node in some]
    script = partial(inquiry.read_many, session, reads)
    outcomes = iter(inquiry.ask(session, script, aim=f"read what is in {pool.options.root}", timeout=timeout))
    return [
        _line(line, [(node, _granted(next(outcomes))) for node in some])
        for line, some in zip(lines, chosen, strict=True)
    ]


def line(pool: Pool, key: str, *, timeout: float) -> Line:
    """Read the line of one lock, in at most ``timeout`` seconds; empty if nobody is there.

    Raises as :func:`lines`, and ``ValueError`` for a key that cannot name a lock.
    """
    keys.check(key)
    deadline = Deadline.after(timeout)
    found = outlines(pool, [keys.escape(key)], timeout=deadline.remaining())
    if not found:
        return Line(key=key, path=pool.path(key))
    return replace(read(pool, found, timeout=deadline.remaining())[0], key=key)


def _list_root(session: Session, root: str) -> Script[list[str]]:
    found: list[str] = []
    with suppress(NoNodeError):
        (found,) = yield [partial(session.wire.children, root)]
    return found


def _list(session: Session, root: str, names: Sequence[str]) -> Script[list[tuple[str, list[str], bytes]]]:
    """Give of each line its name, those in it, and its own data where its name alone does not tell the key."""
    listings = yield from inquiry.read_many(session, [Read(f"{root}/{name}", children=True) for name in names])
    shortened = [name for name in names if keys.is_shortened(name)]
    contents = yield from inquiry.read_many(session, [Read(f"{root}/{name}") for name in shortened])
    labels = {name: _granted(content)[0] for name, content in zip(shortened, contents, strict=True) if content}
    return [
        (name, _granted(listing) or [], labels.get(name, b"")) for name, listing in zip(names, listings, strict=True)
    ]


def _granted(outcome: Any) -> Any:
    if isinstance(outcome, KazooException):
        raise outcome
    return outcome


def _outline(root: str, name: str, children: Sequence[str], data: bytes) -> Line:
    parsed = [nodes.parse(child) for child in children]
    return Line(
        key=_key(name, data),
        path=f"{root}/{name}",
        nodes=tuple(nodes.in_sequence(node for node in parsed if node)),
        foreign=tuple(sorted(child for child, node in zip(children, parsed, strict=True) if node is None)),
    )


def _key(name: str, data: bytes) -> str:
    """Give the key of a line; the name itself, if somebody else made it and no key leads there."""
    key = keys.unescape(name)
    if key is None:
        written = label.decode(data)
        key = written.key if written else None
    return key if key and keys.leads_to(key, name) else name


def _line(outline: Line, found: Sequence[tuple[Node, tuple[bytes, ZnodeStat] | None]]) -> Line:
    """Give the line with what was found of the first nodes in it."""
    read = [(node, *content) for node, content in found if content is not None]
    if not nodes.order_is_safe([node for node, _data, _stat in read]):
        read.sort(key=lambda content: content[2].czxid)
    standing = (*(node for node, _data, _stat in read), *outline.nodes[len(found) :])
    order = Order(standing)
    places = tuple(_place(outline.path, content, order, position) for position, content in enumerate(read))
    return replace(outline, nodes=standing, places=places)


def _place(path: str, content: tuple[Node, bytes, ZnodeStat], order: Order, position: int) -> Place:
    node, data, stat = content
    who = identity.decode(data)
    limit = who.limit if who and node.kind is nodes.Kind.LEASE else None
    return Place(
        node=node.name,
        path=f"{path}/{node.name}",
        kind=node.kind.value,
        sequence=node.sequence,
        position=position,
        held=_rule(node, limit).holds(node.name, order),
        token=stat.czxid,
        session_id=stat.ephemeralOwner,
        since=stat.ctime / 1000.0,
        identity=who,
        limit=limit,
        revoked=revocation.reason(data),
    )


def _rule(node: Node, limit: int | None) -> rules.Rule:
    if node.kind is not nodes.Kind.LEASE:
        return rules.RULES[node.kind]
    # Each caller enforces a limit of its own, which it tells us if it is one of ours; others we believe to hold.
    return rules.semaphore(limit or sys.maxsize)
