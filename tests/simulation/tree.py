"""The tree of nodes at one server, and what a leader makes of a write: a transaction, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import CheckVersion, Create, Create2, Delete, SetData, Transaction
from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.queue import SEQUENCE_END
from django_zklock.zk.wire.requests import CONTAINER, EPHEMERAL_SEQUENTIAL

Touch = Callable[[str, str], None]
"""Called with "created", "changed" or "deleted", and the path."""

SEQUENTIAL = 2
ROOT = "/"


@dataclass(slots=True)
class Znode:
    """A node. ``made`` counts the children that were created, which gives them their numbers."""

    data: bytes
    czxid: int
    owner: int = 0
    is_container: bool = False
    mzxid: int = 0
    pzxid: int = 0
    version: int = 0
    made: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> ZnodeStat:
        """Return what a read tells of the node beside its data."""
        size = len(self.data or b"")
        return ZnodeStat(
            self.czxid, self.mzxid, 0, 0, self.version, self.made, 0, self.owner, size, len(self.children), self.pzxid
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one node, as a transaction has it: of "create", "delete", "set", and "close" for a whole session."""

    what: str
    path: str = ""
    data: bytes = b""
    owner: int = 0
    is_container: bool = False
    made: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of the log, and the session that it begins or ends."""

    zxid: int
    changes: tuple[Change, ...]
    opens: int | None = None
    closes: int | None = None


def parent_of(path: str) -> str:
    """Return the path above."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _nothing(_what: str, _path: str) -> None: ...


class Tree:
    """Nodes by path. What is there already, or is gone already, is passed over: a server may have strays."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.nodes: dict[str, Znode] = {ROOT: Znode(b"", 0)}
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry, touch: Touch = _nothing) -> None:
        """Make all changes of a transaction."""
        for change in entry.changes:
            self.change(change, entry.zxid, touch)

    def change(self, change: Change, zxid: int, touch: Touch = _nothing) -> None:
        """Make one change, and call ``touch`` for each node of it."""
        nodes, path = self.nodes, change.path
        if change.what == "close":
            for own in [each for each, node in nodes.items() if node.owner == change.owner]:
                self.change(Change("delete", own), zxid, touch)
        elif change.what == "create":
            parent = nodes.get(parent_of(path))
            if parent is None or path in nodes:
                return
            nodes[path] = Znode(change.data, zxid, change.owner, change.is_container, mzxid=zxid, pzxid=zxid)
            parent.children.add(name_of(path))
            parent.made, parent.pzxid = change.made, zxid
            touch("created", path)
        elif path in nodes and change.what == "set":
            node = nodes[path]
            node.data, node.mzxid = change.data, zxid
            node.version += 1
            touch("changed", path)
        elif path in nodes:
            del nodes[path]
            parent = nodes[parent_of(path)]
            parent.children.discard(name_of(path))
            parent.pzxid = zxid
            touch("deleted", path)

    def names(self, path: str) -> list[str]:
        """Return the names of the children, in no order of use."""
        return sorted(self.nodes[path].children, key=lambda name: (crc32(name.encode()), name))

    def ephemerals(self) -> dict[str, int]:
        """Return the sessions of the nodes that have one, by path."""
        return {path: node.owner for path, node in self.nodes.items() if node.owner}


class _Plan:
    """What the changes of one request would leave of the nodes that they touch."""

    def __init__(self, tree: Tree, session: int) -> None:
        self._tree = tree
        self._session = session
        # None for a node that is deleted; and how many children were created below a path.
        self._nodes: dict[str, Znode | None] = {}
        self._made: dict[str, int] = {}
        self._born: dict[str, int] = {}

    def _get(self, path: str) -> Znode:
        node = self._nodes[path] if path in self._nodes else self._tree.nodes.get(path)
        if node is None:
            raise NoNodeError
        return node

    def add(self, request: Any) -> tuple[list[Change], Any]:
        """Return the changes and the result of a part of the request; raise the error that the server answers."""
        if isinstance(request, (Create, Create2)):
            return self._create(request)
        node = self._get(request.path)
        if request.version not in {-1, node.version}:
            raise BadVersionError
        if isinstance(request, CheckVersion):
            return [], True
        if isinstance(request, SetData):
            return [Change("set", request.path, request.data)], True
        assert isinstance(request, Delete)
        if node.children or self._born.get(request.path):
            raise NotEmptyError
        self._nodes[request.path] = None
        return [Change("delete", request.path)], True

    def _create(self, request: Any) -> tuple[list[Change], str]:
        path, above = request.path, parent_of(request.path)
        made = self._made.get(above, self._get(above).made)
        if request.flags & SEQUENTIAL:
            path = f"{path}{made:010d}"
        if self._nodes.get(path) is not None or (path not in self._nodes and path in self._tree.nodes):
            raise NodeExistsError
        # From 3.6 on the numbers stay at the end (ZOOKEEPER-2719).
        self._made[above] = min(made + 1, SEQUENCE_END)
        self._born[above] = self._born.get(above, 0) + 1
        owner = self._session if request.flags in {1, EPHEMERAL_SEQUENTIAL} else 0
        self._nodes[path] = Znode(request.data, 0, owner)
        is_container = request.flags == CONTAINER
        return [Change("create", path, request.data, owner, is_container, self._made[above])], path


def plan(tree: Tree, session: int, request: Any) -> tuple[tuple[Change, ...], Any, KazooException | None]:
    """Return the changes that a write makes on the newest tree of the leader, its result, and its error."""
    planned = _Plan(tree, session)
    is_multi = isinstance(request, Transaction)
    changes: list[Change] = []
    results: list[Any] = []
    parts = request.operations if is_multi else [request]
    for part in parts:
        try:
            made, result = planned.add(part)
        except KazooException as error:
            if not is_multi:
                return (), None, error
            undone = [RolledBackError() for _ in results]
            rest = [RuntimeInconsistency() for _ in parts[len(results) + 1 :]]
            return (), [*undone, error, *rest], None
        changes += made
        results.append(result)
    return tuple(changes), results if is_multi else results[0], None
