"""The tree of znodes, and the changes that move it from one state to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from . import acl
from .acl import Entry
from .protocol import Code, RefusedError
from .znode import Kind, Znode, signed32


@dataclass(frozen=True)
class Created:
    """A node came to be."""

    path: str
    data: bytes | None
    acl: tuple[Entry, ...]
    owner: int


@dataclass(frozen=True)
class Deleted:
    """A node is gone."""

    path: str


@dataclass(frozen=True)
class DataSet:
    """A node has new data."""

    path: str
    data: bytes | None


@dataclass(frozen=True)
class AclSet:
    """Other clients than before may use a node."""

    path: str
    acl: tuple[Entry, ...]


@dataclass(frozen=True)
class SequenceSet:
    """The next number in a sequence was chosen by hand: no client can do it, a fault does."""

    path: str
    value: int


Change = Created | Deleted | DataSet | AclSet | SequenceSet


@dataclass(frozen=True)
class Transaction:
    """What one zxid stands for: changes that happen together, or none if the request was refused."""

    zxid: int
    now: int
    changes: tuple[Change, ...] = ()


class Audience(NamedTuple):
    """The access control lists that decide who may hear of a change: the node's and its parent's."""

    node: tuple[Entry, ...]
    parent: tuple[Entry, ...]


class Tree:
    """Znodes by their path. It knows no client and refuses nothing but a missing node."""

    def __init__(self) -> None:
        """Begin with what a new server has."""
        self.nodes: dict[str, Znode] = {"/": Znode.new(b"", acl.OPEN, 0, 0, 0)}
        # The ephemeral nodes of each session, in the order of their creation.
        self.ephemerals: dict[int, dict[str, None]] = {}
        # Nodes that the server itself may remove.
        self.reapable: dict[str, None] = {}
        for path, entries in (
            ("/zookeeper", acl.OPEN),
            ("/zookeeper/config", acl.READ_ONLY),
            ("/zookeeper/quota", acl.OPEN),
        ):
            self.apply(Created(path, b"", entries, 0), 0, 0)
        # What the server puts there itself it does not count as it counts creations by clients.
        for path in ("/", "/zookeeper"):
            self.nodes[path].creations = 0
        self.nodes["/zookeeper/config"].acl_version = -1

    def __getitem__(self, path: str) -> Znode:
        """Give the node, or raise RefusedError(NO_NODE)."""
        try:
            return self.nodes[path]
        except KeyError:
            raise RefusedError(Code.NO_NODE) from None

    def __contains__(self, path: str) -> bool:
        """Tell whether there is such a node."""
        return path in self.nodes

    def descendants(self, path: str) -> Iterator[str]:
        """Give the paths below ``path``."""
        prefix = path.rstrip("/") + "/"
        return (each for each in self.nodes if each.startswith(prefix) and each != "/")

    def audience(self, change: Change) -> Audience:
        """Say who may hear of a change that is about to be made."""
        node = change.acl if isinstance(change, Created) else self.nodes[change.path].acl
        return Audience(node, self.nodes[parent(change.path)].acl)

    def apply(self, change: Change, zxid: int, now: int) -> None:
        """Make a change that is known to be possible."""
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
        """Make a change that will be undone; until then the counter of creations runs over its end."""
        above = self.nodes[parent(change.path)]
        creations = above.creations
        self.apply(change, zxid, now)
        if isinstance(change, Created):
            above.creations = signed32(creations + 1)

    def copy(self) -> Tree:
        """Copy the tree, so that the two can change apart."""
        twin = Tree()
        twin.nodes = {path: node.copy() for path, node in self.nodes.items()}
        twin.ephemerals = {owner: dict(paths) for owner, paths in self.ephemerals.items()}
        twin.reapable = dict(self.reapable)
        return twin

    def remember(self, path: str, remembered: dict[str, Znode | None]) -> None:
        """Note what a change of ``path`` can touch, for ``restore``; what was noted before an earlier change stays."""
        for each in (parent(path), path):
            if each not in remembered:
                remembered[each] = self.nodes[each].copy() if each in self.nodes else None

    def restore(self, remembered: dict[str, Znode | None]) -> None:
        """Undo all changes since ``remember`` was called first."""
        for path, node in remembered.items():
            if path in self.nodes:
                self._unindex(path, self.nodes.pop(path))
            if node is not None:
                self.nodes[path] = node
                self._index(path, node)

    def _create(self, change: Created, zxid: int, now: int) -> None:
        above = self.nodes[parent(change.path)]
        above.children[change.path.rpartition("/")[2]] = None
        # The counter of creations sticks at its end: the server lets it only grow.
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
        if kind is Kind.EPHEMERAL:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        elif kind is not Kind.PERSISTENT:
            self.reapable[path] = None

    def _unindex(self, path: str, node: Znode) -> None:
        kind = node.kind
        if kind is Kind.EPHEMERAL:
            mine = self.ephemerals[node.owner]
            del mine[path]
            if not mine:
                del self.ephemerals[node.owner]
        elif kind is not Kind.PERSISTENT:
            del self.reapable[path]


def parent(path: str) -> str:
    """Give the path of the node above; the root's is the root."""
    return path.rpartition("/")[0] or "/"
