"""The tree of znodes, and the changes that move it from one state to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from . import acl
from .acl import AclEntry
from .protocol import Code, RefusedError
from .znode import NodeKind, Znode, signed32


@dataclass(frozen=True)
class Created:
    """A node was created."""

    path: str
    data: bytes | None
    acl: tuple[AclEntry, ...]
    owner: int


@dataclass(frozen=True)
class Deleted:
    """A node was deleted."""

    path: str


@dataclass(frozen=True)
class DataSet:
    """The data of a node was replaced."""

    path: str
    data: bytes | None


@dataclass(frozen=True)
class AclSet:
    """The access control list of a node was replaced."""

    path: str
    acl: tuple[AclEntry, ...]


@dataclass(frozen=True)
class SequenceSet:
    """The next sequence number was set, which only a fault can do."""

    path: str
    value: int


Change = Created | Deleted | DataSet | AclSet | SequenceSet


@dataclass(frozen=True)
class Transaction:
    """The changes of one zxid; none if the request was refused."""

    zxid: int
    now: int
    changes: tuple[Change, ...] = ()


class AclPair(NamedTuple):
    """The access control lists that restrict the events of a change: the node's and its parent's."""

    node: tuple[AclEntry, ...]
    parent: tuple[AclEntry, ...]


class Tree:
    """Znodes by path. It checks nothing except that a node exists."""

    def __init__(self) -> None:
        """Start with the nodes of a new server."""
        self.nodes: dict[str, Znode] = {"/": Znode.new(b"", acl.OPEN, 0, 0, 0)}
        # The ephemeral nodes of each session, in the order of their creation.
        self.ephemerals: dict[int, dict[str, None]] = {}
        # Nodes that the server may remove: containers and TTL nodes.
        self.reapable: dict[str, None] = {}
        for path, entries in (
            ("/zookeeper", acl.OPEN),
            ("/zookeeper/config", acl.READ_ONLY),
            ("/zookeeper/quota", acl.OPEN),
        ):
            self.apply(Created(path, b"", entries, 0), 0, 0)
        # The server does not count its own nodes as creations.
        for path in ("/", "/zookeeper"):
            self.nodes[path].creations = 0
        self.nodes["/zookeeper/config"].acl_version = -1

    def __getitem__(self, path: str) -> Znode:
        """Return the node, or raise RefusedError(NO_NODE)."""
        try:
            return self.nodes[path]
        except KeyError:
            raise RefusedError(Code.NO_NODE) from None

    def __contains__(self, path: str) -> bool:
        """Return whether the node exists."""
        return path in self.nodes

    def descendants(self, path: str) -> Iterator[str]:
        """Return the paths below ``path``."""
        prefix = path.rstrip("/") + "/"
        return (each for each in self.nodes if each.startswith(prefix) and each != "/")

    def acls(self, change: Change) -> AclPair:
        """Return the access control lists for the events of a change, before it is applied."""
        node = change.acl if isinstance(change, Created) else self.nodes[change.path].acl
        return AclPair(node, self.nodes[parent(change.path)].acl)

    def apply(self, change: Change, zxid: int, now: int) -> None:
        """Apply a change that has been checked."""
        if isinstance(change, Created):
            self._create(change, zxid, now)
        elif isinstance(change, Deleted):
            self._delete(change.path, zxid)
        elif isinstance(change, DataSet):
            node = self.nodes[change.path]
            node.data = change.data
            node.version = signed32(node.version + 1)
            node.modified_zxid, node.changed_at = zxid, now
        elif isinstance(change, AclSet):
            node = self.nodes[change.path]
            node.acl = change.acl
            node.acl_version = signed32(node.acl_version + 1)
        else:
            self.nodes[change.path].creations = change.value

    def anticipate(self, change: Change, zxid: int, now: int) -> None:
        """Apply a change that will be undone; until then the counter of creations can overflow."""
        above = self.nodes[parent(change.path)]
        creations = above.creations
        self.apply(change, zxid, now)
        if isinstance(change, Created):
            above.creations = signed32(creations + 1)

    def copy(self) -> Tree:
        """Return an independent copy."""
        copied = Tree()
        copied.nodes = {path: node.copy() for path, node in self.nodes.items()}
        copied.ephemerals = {owner: dict(paths) for owner, paths in self.ephemerals.items()}
        copied.reapable = dict(self.reapable)
        return copied

    def save(self, path: str, saved: dict[str, Znode | None]) -> None:
        """Save the nodes that a change of ``path`` can modify, for ``restore``; nodes already saved stay as saved."""
        for each in (parent(path), path):
            if each not in saved:
                saved[each] = self.nodes[each].copy() if each in self.nodes else None

    def restore(self, saved: dict[str, Znode | None]) -> None:
        """Undo all changes since the first call of ``save``."""
        for path, node in saved.items():
            if path in self.nodes:
                self._unindex(path, self.nodes.pop(path))
            if node is not None:
                self.nodes[path] = node
                self._index(path, node)

    def _create(self, change: Created, zxid: int, now: int) -> None:
        above = self.nodes[parent(change.path)]
        above.children[change.path.rpartition("/")[2]] = None
        # At its maximum the counter of creations stays.
        if above.creations < 2**31 - 1:
            above.creations += 1
            above.children_zxid = zxid
        node = Znode.new(change.data, change.acl, change.owner, zxid, now)
        self.nodes[change.path] = node
        self._index(change.path, node)

    def _delete(self, path: str, zxid: int) -> None:
        above = self.nodes[parent(path)]
        above.children.pop(path.rpartition("/")[2])
        above.children_zxid = max(above.children_zxid, zxid)
        self._unindex(path, self.nodes.pop(path))

    def _index(self, path: str, node: Znode) -> None:
        kind = node.kind
        if kind is NodeKind.EPHEMERAL:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        elif kind is not NodeKind.PERSISTENT:
            self.reapable[path] = None

    def _unindex(self, path: str, node: Znode) -> None:
        kind = node.kind
        if kind is NodeKind.EPHEMERAL:
            mine = self.ephemerals[node.owner]
            del mine[path]
            if not mine:
                del self.ephemerals[node.owner]
        elif kind is not NodeKind.PERSISTENT:
            del self.reapable[path]


def parent(path: str) -> str:
    """Return the path of the parent; the parent of the root is the root."""
    return path.rpartition("/")[0] or "/"
