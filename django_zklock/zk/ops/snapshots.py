"""Snapshots of locks: their queues as read from ZooKeeper, without taking a lock.

The names of the nodes in a queue show how many hold the lock and how many wait; the data of each node shows its owner.
So :func:`list_queues` lists the nodes of many locks in few requests, and :func:`read_entries` reads the data of those
that are shown. Nodes that are deleted in between are left out. Nodes of unknown lock recipes are reported by name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import node_data, paths, queue, scripts, wire
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.node_data import Identity, Owner
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import PERMITS, Kind, Node, Queue
from django_zklock.zk.scripts import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import Deadline

if TYPE_CHECKING:
    from django_zklock.zk.wire import ZnodeStat

Span = tuple[int, int]
"""The first and the last of consecutive positions in a queue."""

# How often the holders of a lock are listed until none of them leaves before its data is read.
MAX_LISTS = 5
# Readers and writers in turns make as many spans as there are entries.
MAX_SPANS = 20


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """One node in a queue. ``since`` is its creation at the server, in seconds since the Unix epoch."""

    node: str
    path: str
    kind: str
    position: int
    held: bool
    token: int
    session_id: int
    since: float
    identity: Identity | None
    # How many may hold at once according to this contender; only semaphores of this package have it.
    limit: int | None = None
    # The reason of the revoke request, if there is one.
    revoked: str | None = None
    # When the lock was granted, where that is known: the server stores no time of it.
    granted: float | None = None
    # How many keys this contender takes at once; only those of this package that take several have it.
    keys: int | None = None
    # Of a holder that is a Celery task: it waits for a slot of its worker.
    needs_slot: bool = False

    @property
    def state(self) -> str:
        """Return "held", "granted" if the holder waits for a slot of its worker to begin, or "waiting"."""
        return "waiting" if not self.held else "granted" if self.needs_slot else "held"

    @property
    def held_since(self) -> float:
        """When it was granted the lock; if that is not known, when it joined the queue, which was not later."""
        return self.since if self.granted is None else self.granted

    @property
    def may_wait_elsewhere(self) -> bool:
        """Whether it is first here, and may still wait for another one of its keys."""
        return self.held and self.keys is not None and self.granted is None

    @property
    def owner_text(self) -> str:
        """Its owner as text without control characters: work, process and host, or the session if that is all."""
        if self.identity is None:
            return f"unknown client, session 0x{self.session_id:x}"
        return escape_controls(str(self.identity))

    @property
    def arguments(self) -> str:
        """The arguments of a task that are in the key of its lock, without control characters; nothing if unknown."""
        work = self.identity.work if self.identity else None
        return escape_controls(work.arguments) if work else ""


@dataclass(frozen=True, kw_only=True)
class LockSnapshot:
    """One lock and its queue, first come first.

    ``nodes`` are all nodes of the queue, by their names; ``entries`` are those whose data was read: the first ones, or
    a single one. ``unknown_nodes`` are the names of children that belong to no known lock recipe.
    """

    key: str
    path: str
    nodes: tuple[Node, ...] = ()
    entries: tuple[QueueEntry, ...] = ()
    unknown_nodes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the lock's node."""
        return self.path.rpartition("/")[2]

    @property
    def holders(self) -> tuple[QueueEntry, ...]:
        """The holders among ``entries``."""
        return tuple(entry for entry in self.entries if entry.held)

    @cached_property
    def holder_count(self) -> int:
        """The number of holders in the whole queue."""
        if len(self.nodes) <= 1:
            # By every rule the first node holds. Most of ten thousand locks have no other.
            return len(self.nodes)
        # Behind a waiter there are only waiters.
        return sum(1 for _ in takewhile(lambda node: queue.RULES[node.kind].holds(node.name, self._queue), self.nodes))

    @property
    def waiter_count(self) -> int:
        """The number of waiters in the whole queue."""
        return len(self.nodes) - self.holder_count

    @property
    def state(self) -> str:
        """Return "held", "unknown" (only nodes of unknown recipes) or "free"."""
        # By every rule the first node of a queue holds the lock.
        if self.nodes:
            return "held"
        return "unknown" if self.unknown_nodes else "free"

    @property
    def kind(self) -> str:
        """The kind of lock that the first node holds; empty without a node."""
        return self.nodes[0].kind.value if self.nodes else ""

    def blockers_of(self, entry: QueueEntry) -> list[Span]:
        """Return the positions that ``entry`` waits for, at most the first 20 spans; none if it holds the lock.

        A waiter for a semaphore waits until any of the leases is released.
        """
        if entry.held:
            return []
        rule = queue.RULES[Kind(entry.kind)]
        kinds = rule.conflicts if rule.has_room(entry.node, self._queue) else rule.conflicts | PERMITS
        if kinds not in self._spans:
            groups = groupby(range(len(self.nodes)), lambda position: self.nodes[position].kind in kinds)
            found = [list(positions) for wanted, positions in groups if wanted]
            self._spans[kinds] = [(positions[0], positions[-1]) for positions in found]
        spans = self._spans[kinds]
        before = spans[: min(bisect_left(spans, (entry.position,)), MAX_SPANS)]
        return [(first, min(last, entry.position - 1)) for first, last in before]

    def thread_of(self, entry: QueueEntry) -> str:
        """Return the thread of ``entry`` if it tells it from contenders of its process that look alike, else nothing.

        Without control characters. Where the data of some holders was not read, these may look alike.
        """
        is_unlike = self._alike[entry.owner_text] < 2 and len(self.entries) >= self.holder_count
        if entry.identity is None or is_unlike:
            return ""
        return escape_controls(entry.identity.thread)

    @cached_property
    def _alike(self) -> Counter[str]:
        return Counter(entry.owner_text for entry in self.entries)

    @cached_property
    def _queue(self) -> Queue:
        return Queue(self.nodes)

    @cached_property
    def _spans(self) -> dict[frozenset[Kind], list[Span]]:
        """The spans of the nodes of these kinds, of those that were asked for."""
        return {}


@dataclass
class Progress:
    """How far the reading of many queues is: of ``total``, ``read`` were read."""

    total: int = 0
    read: int = 0

    def __str__(self) -> str:
        return f"{self.read:,} of {self.total:,} queues"

    def failed(self, error: ZooKeeperUnavailable) -> ZooKeeperUnavailable:
        """Return the error that also says how far the reading has come."""
        return ZooKeeperUnavailable(f"{error}; {self} had been read", timeout=error.timeout)


def one_lock(pool: Pool, key: str, *, timeout: float | None) -> LockSnapshot:
    """Read the queue of one lock in at most ``timeout`` seconds; it may be empty.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses, ``ValueError``
    for a key that cannot name a lock.
    """
    paths.check_key(key)
    deadline = Deadline.after(timeout)
    found = list_queues(pool, [paths.escape(key)], timeout=deadline.remaining())
    if not found:
        return LockSnapshot(key=key, path=pool.path(key))
    return replace(read_entries(pool, found, timeout=deadline.remaining())[0], key=key)


def holders(pool: Pool, keys: Sequence[str], *, timeout: float) -> tuple[Identity | None, ...]:
    """Return the identities of the owners that hold any of ``keys``, in at most ``timeout`` seconds.

    They come in the order of the keys, and those of one key in the order of its queue. An owner that holds more than
    one of the keys counts once. Raises what :func:`one_lock` raises.
    """
    deadline = Deadline.after(timeout)
    names = [paths.escape(key) for key in keys]
    for _ in range(MAX_LISTS):
        listed = list_queues(pool, names, timeout=deadline.remaining())
        depth = max((lock.holder_count for lock in listed), default=0)
        found = read_entries(pool, listed, timeout=deadline.remaining(), limit=depth)
        # If a holder left in between, a node whose data was not read may hold now.
        if [len(lock.nodes) for lock in found] == [len(lock.nodes) for lock in listed]:
            break
    owners: list[tuple[int, Identity | None]] = []
    for lock in found:
        here = [(entry.session_id, entry.identity) for entry in lock.holders]
        owners += [owner for owner in here if owner not in owners]
    return tuple(identity for _session, identity in owners)


def check_answers(pool: Pool, *, timeout: float | None) -> None:
    """Read one small node; raises what :func:`one_lock` raises, if ZooKeeper does not answer."""
    session, root = pool.inspection(), pool.options.root
    scripts.run(session, partial(scripts.read_many, session, [wire.Read(root)]), action=f"read {root}", timeout=timeout)


def list_names(pool: Pool, *, timeout: float | None) -> list[str]:
    """Return the sorted names of all lock nodes, in use or not; raises what :func:`one_lock` raises.

    See :mod:`~django_zklock.zk.paths` for the relation of names and keys.
    """
    root = pool.options.root
    session = pool.inspection()

    def script() -> RequestScript[list[str]]:
        names: list[str] = []
        # The locks may have been taken through other servers; without a sync the list may be older than this call.
        session.wire.sync(root)
        with suppress(wire.NoNodeError):
            (names,) = yield [partial(session.wire.children, root)]
        return names

    names = scripts.run(session, script, action=f"list {root}", timeout=timeout)
    return sorted(name for name in names if name not in {paths.TRAIL, paths.SENT})


def list_queues(pool: Pool, names: Sequence[str], *, timeout: float | None) -> list[LockSnapshot]:
    """Read the queues of the locks with these names, without ``entries``; locks without any node are left out.

    Raises what :func:`one_lock` raises.
    """
    root = pool.options.root
    session = pool.inspection()
    # The data of a lock node is read only where its name does not contain the whole key.
    shortened = [name for name in names if paths.is_shortened(name)]

    def script() -> RequestScript[tuple[list[Any], list[Any]]]:
        session.wire.sync(root)
        children = yield from _read_many(session, [wire.Read(f"{root}/{name}", children=True) for name in names])
        contents = yield from _read_many(session, [wire.Read(f"{root}/{name}") for name in shortened])
        return children, contents

    found, contents = scripts.run(session, script, action=f"list what is in {root}", timeout=timeout)
    data = {name: content[0] for name, content in zip(shortened, contents, strict=True) if content}
    queues = []
    for name, children in zip(names, found, strict=True):
        parsed = {child: queue.parse_name(child) for child in children or () if child != paths.BEAT_RECORD}
        if parsed:
            nodes = tuple(queue.sort_by_sequence(node for node in parsed.values() if node)[0])
            unknown = tuple(sorted(child for child, node in parsed.items() if node is None))
            key = _key(name, data.get(name, b""))
            queues.append(LockSnapshot(key=key, path=f"{root}/{name}", nodes=nodes, unknown_nodes=unknown))
    return queues


def read_entries(
    pool: Pool,
    locks: Sequence[LockSnapshot],
    *,
    timeout: float | None,
    limit: int | None = None,
    holders: bool = False,
    node: str | None = None,
) -> list[LockSnapshot]:
    """Return ``locks`` with their first ``limit`` entries, by default with all.

    With ``holders`` these are those of the holders alone, and with ``node`` the one of the node with that name. Raises
    what :func:`one_lock` raises.

    Nodes that were deleted since the queues were listed are left out.
    """
    session = pool.inspection()
    chosen = [_chosen(lock, lock.holder_count if holders else limit, node) for lock in locks]
    reads = [wire.Read(f"{lock.path}/{node.name}") for lock, nodes in zip(locks, chosen, strict=True) for node in nodes]
    script = partial(_read_many, session, reads)
    outcomes = iter(scripts.run(session, script, action=f"read what is in {pool.options.root}", timeout=timeout))
    found = [
        _add_entries(lock, [(node, next(outcomes)) for node in nodes])
        for lock, nodes in zip(locks, chosen, strict=True)
    ]
    if holders:
        # If a holder left in between, a node whose data was not read holds now.
        unread = [number for number, lock in enumerate(found) if len(lock.entries) < lock.holder_count]
        if unread:
            again = read_entries(pool, [found[number] for number in unread], timeout=timeout, holders=True)
            for number, lock in zip(unread, again, strict=True):
                found[number] = lock
    return found


def _chosen(lock: LockSnapshot, limit: int | None, node: str | None) -> Sequence[Node]:
    """Return the nodes of ``lock`` to be read: the one named ``node``, or the first ones."""
    # Where the sequence numbers are not reliable, the order is known only when every node is read.
    if not queue.sort_by_sequence(lock.nodes)[1]:
        return lock.nodes
    return lock.nodes[:limit] if node is None else [each for each in lock.nodes if each.name == node]


def _read_many(session: Session, reads: Sequence[wire.Read]) -> RequestScript[list[Any]]:
    """Return what was read, ``None`` for a node that does not exist; raise the first refusal."""
    outcomes = yield from scripts.read_many(session, reads)
    for outcome in outcomes:
        if isinstance(outcome, wire.KazooException):
            raise outcome
    return outcomes


def _key(name: str, data: bytes) -> str:
    """Return the key of a lock node; the name itself if another client made the node and no key has that name."""
    key = paths.unescape(name)
    if key is None:
        written = node_data.decode_lock_node(data)
        key = written.key if written else None
    return key if key and paths.names_key(key, name) else name


def _add_entries(lock: LockSnapshot, found: Sequence[tuple[Node, tuple[bytes, ZnodeStat] | None]]) -> LockSnapshot:
    """Return ``lock`` with the entries of the nodes whose data is in ``found``; others of these are gone."""
    contents = {node.name: content for node, content in found if content is not None}
    gone = {node.name for node, content in found if content is None}
    nodes = tuple([node for node in lock.nodes if node.name not in gone]) if gone else lock.nodes
    # Where the sequence numbers are not reliable, all were read.
    if len(contents) == len(nodes) and not queue.sort_by_sequence(nodes)[1]:
        nodes = tuple(queue.sort_by_creation((node, contents[node.name][1].czxid) for node in nodes))
    if nodes != lock.nodes:
        lock = replace(lock, nodes=nodes)
    entries = []
    for position, node in enumerate(nodes):
        if node.name not in contents:
            continue
        data, stat = contents[node.name]
        owner = node_data.decode_owner(data)
        work = owner.identity.work if owner.identity else None
        entry = QueueEntry(
            node=node.name,
            path=f"{lock.path}/{node.name}",
            kind=node.kind.value,
            position=position,
            held=position < lock.holder_count,
            token=stat.czxid,
            session_id=stat.ephemeralOwner,
            since=stat.ctime / 1000.0,
            identity=owner.identity,
            limit=node.limit,
            revoked=node_data.decode_revoke(data),
            granted=_granted(node, owner, stat),
            keys=owner.keys,
            # The gate writes that while it knows of no child that runs the task.
            needs_slot=owner.granted is not None and work is not None and work.child == 0,
        )
        entries.append(entry)
    return replace(lock, entries=tuple(entries))


def _granted(node: Node, owner: Owner, stat: ZnodeStat) -> float | None:
    """Return when the holder of ``node`` was granted the lock, where that is known or written by the holder."""
    created: float = stat.ctime / 1000.0
    # The first node that was ever in the queue had no predecessor; but if it takes several keys, it may have waited for
    # another one.
    if node.sequence == 0 and owner.keys is None:
        return created
    # The holder's clock may be behind the server's.
    return None if owner.granted is None else max(created, owner.granted)
