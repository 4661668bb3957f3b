"""The requests that change the tree: their checks and their changes.

The order of the checks decides which error a client gets; it is the order in ZooKeeper's ``PrepRequestProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from . import acl, jute, paths
from .acl import AclEntry, AuthId
from .jute import MalformedError, Reader
from .protocol import Code, Opcode, Perms, RefusedError
from .tree import AclSet, Change, Created, DataSet, Deleted, Tree, parent
from .znode import CONTAINER_OWNER, MAX_TTL, NodeKind, ttl_owner

# The numbers of CreateMode, and which of them are ephemeral, sequential, or have a time to live.
MODES = range(7)
EPHEMERAL_MODES = frozenset({1, 3})
SEQUENTIAL_MODES = frozenset({2, 3, 6})
CONTAINER_MODE = 4
TTL_MODES = frozenset({5, 6})


@dataclass(frozen=True)
class Author:
    """The session and the identities of a write."""

    session: int
    identities: tuple[AuthId, ...]


@dataclass(frozen=True)
class Step:
    """The change of a permitted write, or None, and the body of the reply after it."""

    change: Change | None
    reply: Callable[[Tree], bytes]


class Write(Protocol):
    """A decoded write request."""

    @property
    def answered_as(self) -> Opcode:
        """The opcode of its reply inside a multi."""
        ...

    def step(self, tree: Tree, author: Author) -> Step:
        """Check the write and return its change, or raise RefusedError."""
        ...


@dataclass(frozen=True)
class Create:
    """Create a node of any kind."""

    opcode: Opcode
    path: str | None
    data: bytes | None
    entries: tuple[AclEntry | None, ...]
    mode: int
    ttl: int | None

    @classmethod
    def read(cls, opcode: Opcode, reader: Reader) -> Create:
        """Read the record; only createTtl has a time to live."""
        return cls(
            opcode,
            reader.optional_text(),
            reader.buffer(),
            acl.read_entries(reader),
            reader.integer(),
            reader.long() if opcode is Opcode.CREATE_TTL else None,
        )

    @classmethod
    def read_part(cls, opcode: Opcode, reader: Reader) -> Write:
        """Read the record inside a multi, where the mode alone decides the kind of the node."""
        whole = cls.read(opcode, reader)
        if whole.mode in TTL_MODES:
            return whole if opcode is Opcode.CREATE_TTL else CreateWithoutTtl()
        return replace(
            whole, opcode=Opcode.CREATE_CONTAINER if whole.mode == CONTAINER_MODE else Opcode.CREATE, ttl=None
        )

    def step(self, tree: Tree, author: Author) -> Step:
        """Check the mode, the path, the access control lists and the parent."""
        owner = self._owner(author)
        if self.path is None:
            msg = "a node without a path"
            raise MalformedError(msg)
        if "/" not in self.path or "\0" in self.path:
            raise RefusedError(Code.BAD_ARGUMENTS)
        entries = acl.resolve(self.entries, author.identities)
        above = tree[parent(self.path)]
        acl.require(above.acl, Perms.CREATE, author.identities)
        path = self.path
        if self.mode in SEQUENTIAL_MODES:
            # Ten characters, sign included, like Java's %010d.
            path += f"{above.creations:010d}"
        paths.check(path)
        if path in tree:
            raise RefusedError(Code.NODE_EXISTS)
        if above.kind is NodeKind.EPHEMERAL:
            raise RefusedError(Code.NO_CHILDREN_FOR_EPHEMERALS)

        def reply(tree: Tree) -> bytes:
            return jute.text(path) + (b"" if self.opcode is Opcode.CREATE else tree[path].stat())

        return Step(Created(path, self.data, entries, owner), reply)

    @property
    def answered_as(self) -> Opcode:
        """The opcode of its reply inside a multi."""
        return Opcode.CREATE if self.opcode is Opcode.CREATE else Opcode.CREATE2

    def _owner(self, author: Author) -> int:
        """Return the owner in the Stat, which tells what ends the node."""
        if self.mode in TTL_MODES and self.ttl is not None and 0 < self.ttl <= MAX_TTL:
            return ttl_owner(self.ttl)
        # Here a negative time to live for a node without one is refused; the real server crashes.
        if self.mode not in MODES or self.mode in TTL_MODES or self.ttl is not None:
            raise RefusedError(Code.BAD_ARGUMENTS)
        if self.opcode is Opcode.CREATE_CONTAINER:
            return CONTAINER_OWNER
        return author.session if self.mode in EPHEMERAL_MODES else 0


@dataclass(frozen=True)
class CreateWithoutTtl:
    """Create a TTL node inside a multi without a time to live: the real server fails to decode it."""

    answered_as: ClassVar[Opcode] = Opcode.ERROR

    def step(self, _tree: Tree, _author: Author) -> Step:
        """Raise MalformedError for the whole request."""
        msg = "a part without a time to live"
        raise MalformedError(msg)


@dataclass(frozen=True)
class Delete:
    """Delete a node without children."""

    path: str
    version: int
    answered_as: ClassVar[Opcode] = Opcode.DELETE

    @classmethod
    def read(cls, _opcode: Opcode, reader: Reader) -> Delete:
        """Read the record."""
        return cls(reader.text(), reader.integer())

    def step(self, tree: Tree, author: Author) -> Step:
        """Check that the node has no children and is not one of the server."""
        if "/" not in self.path or "\0" in self.path or self.path in paths.SYSTEM:
            raise RefusedError(Code.BAD_ARGUMENTS)
        acl.require(tree[parent(self.path)].acl, Perms.DELETE, author.identities)
        node = tree[self.path]
        _check_version(self.version, node.version)
        if node.children:
            raise RefusedError(Code.NOT_EMPTY)
        return Step(Deleted(self.path), _nothing)


@dataclass(frozen=True)
class SetData:
    """Replace the data of a node."""

    path: str | None
    data: bytes | None
    version: int
    answered_as: ClassVar[Opcode] = Opcode.SET_DATA

    @classmethod
    def read(cls, _opcode: Opcode, reader: Reader) -> SetData:
        """Read the record."""
        return cls(reader.optional_text(), reader.buffer(), reader.integer())

    def step(self, tree: Tree, author: Author) -> Step:
        """Check the version."""
        path = paths.check(self.path)
        node = tree[path]
        acl.require(node.acl, Perms.WRITE, author.identities)
        _check_version(self.version, node.version)
        return Step(DataSet(path, self.data), lambda tree: tree[path].stat())


@dataclass(frozen=True)
class SetAcl:
    """Replace the access control list of a node."""

    path: str | None
    entries: tuple[AclEntry | None, ...]
    version: int
    answered_as: ClassVar[Opcode] = Opcode.SET_ACL

    @classmethod
    def read(cls, _opcode: Opcode, reader: Reader) -> SetAcl:
        """Read the record."""
        return cls(reader.optional_text(), acl.read_entries(reader), reader.integer())

    def step(self, tree: Tree, author: Author) -> Step:
        """Check the new list, and the version of the old one."""
        path = paths.check(self.path)
        entries = acl.resolve(self.entries, author.identities)
        node = tree[path]
        acl.require(node.acl, Perms.ADMIN, author.identities)
        _check_version(self.version, node.acl_version)
        return Step(AclSet(path, entries), lambda tree: tree[path].stat())


@dataclass(frozen=True)
class Check:
    """Change nothing, and fail unless the node has the version."""

    path: str
    version: int
    answered_as: ClassVar[Opcode] = Opcode.CHECK

    @classmethod
    def read(cls, _opcode: Opcode, reader: Reader) -> Check:
        """Read the record."""
        return cls(reader.text(), reader.integer())

    def step(self, tree: Tree, author: Author) -> Step:
        """Check the version."""
        paths.check(self.path)
        node = tree[self.path]
        acl.require(node.acl, Perms.READ, author.identities)
        _check_version(self.version, node.version)
        return Step(None, _nothing)


@dataclass(frozen=True)
class Reconfig:
    """Change the members of the ensemble, which this server does not support."""

    answered_as: ClassVar[Opcode] = Opcode.RECONFIG

    @classmethod
    def read(cls, _opcode: Opcode, _reader: Reader) -> Reconfig:
        """Skip the record: the reply does not depend on it."""
        return cls()

    def step(self, _tree: Tree, _author: Author) -> Step:
        """Refuse, like a server with reconfiguration disabled."""
        raise RefusedError(Code.RECONFIG_DISABLED)


ReadWrite = Callable[[Opcode, Reader], Write]

CREATES = (Opcode.CREATE, Opcode.CREATE2, Opcode.CREATE_CONTAINER, Opcode.CREATE_TTL)
OTHERS: dict[Opcode, ReadWrite] = {
    Opcode.DELETE: Delete.read,
    Opcode.SET_DATA: SetData.read,
    Opcode.CHECK: Check.read,
}
WRITES: dict[Opcode, ReadWrite] = {
    **dict.fromkeys(CREATES, Create.read),
    **OTHERS,
    Opcode.SET_ACL: SetAcl.read,
    Opcode.RECONFIG: Reconfig.read,
}
PARTS: dict[Opcode, ReadWrite] = {**dict.fromkeys(CREATES, Create.read_part), **OTHERS}


def _check_version(asked: int, actual: int) -> None:
    if asked not in {-1, actual}:
        raise RefusedError(Code.BAD_VERSION)


def _nothing(_tree: Tree) -> bytes:
    return b""
