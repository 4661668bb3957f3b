"""Every request of the protocol as a value that encodes itself and decodes its reply.

A path that begins with ``~`` is in the example's own part of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from tests.toolbox.protocol import jute
from tests.toolbox.protocol.jute import Acl, Path, Reader, Value

if TYPE_CHECKING:
    from typing import TypeAlias

# The protocol's OPEN_ACL_UNSAFE.
OPEN: Acl = ((31, "world", "anyone"),)
# The identity of the credential ann:a.
ANN = "ann:i9V/d2HTT0sehGWzvQcFNipywIQ="
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4
CREATE, CREATE2, CREATE_CONTAINER, CREATE_TTL = 1, 15, 19, 21
MULTI, MULTI_READ = 14, 22


@dataclass
class Home:
    """The folder that ``~`` stands for, and the zxid that counts as 0."""

    folder: str = "~"
    base: int = 0

    def path(self, path: Path) -> bytes:
        """Encode a path."""
        if isinstance(path, str) and path.startswith("~"):
            path = self.folder + path[1:]
        return jute.text(path)

    def paths(self, paths: tuple[Path, ...] | None) -> bytes:
        return jute.vector(paths, self.path)

    def short(self, text: str | None) -> str | None:
        """Replace the folder in a path of the server by ``~``."""
        if text is not None and (text + "/").startswith(self.folder + "/"):
            return "~" + text[len(self.folder) :]
        return text


class Operation(Protocol):
    """A request: its number, its body, and the decoded reply if there is no error."""

    @property
    def opcode(self) -> int: ...

    def encode(self, home: Home) -> bytes: ...

    def decode(self, reader: Reader, home: Home) -> Value: ...


@dataclass(frozen=True)
class Create:
    """All four kinds of create; ``ttl`` in milliseconds is sent with CREATE_TTL only."""

    path: Path
    flags: int = 0
    data: bytes | None = b""
    acl: Acl = OPEN
    opcode: int = CREATE
    ttl: int = 60_000

    def encode(self, home: Home) -> bytes:
        body = home.path(self.path) + jute.buffer(self.data) + jute.acl(self.acl) + jute.integer(self.flags)
        return body + jute.long(self.ttl) if self.opcode == CREATE_TTL else body

    def decode(self, reader: Reader, home: Home) -> Value:
        path = home.short(reader.text())
        return path if self.opcode == CREATE else (path, reader.stat())


@dataclass(frozen=True)
class Delete:
    path: Path
    version: int = -1
    opcode: ClassVar[int] = 2

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.integer(self.version)

    def decode(self, reader: Reader, home: Home) -> Value:
        return None


@dataclass(frozen=True)
class Check(Delete):
    """A part of a multi; the real server does not answer it elsewhere."""

    opcode: ClassVar[int] = 13


@dataclass(frozen=True)
class SetData:
    path: Path
    data: bytes | None = b"new"
    version: int = -1
    opcode: ClassVar[int] = 5

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.buffer(self.data) + jute.integer(self.version)

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.stat()


@dataclass(frozen=True)
class SetAcl:
    path: Path
    acl: Acl
    version: int = -1
    opcode: ClassVar[int] = 7

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.acl(self.acl) + jute.integer(self.version)

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.stat()


@dataclass(frozen=True)
class GetAcl:
    path: Path
    opcode: ClassVar[int] = 6

    def encode(self, home: Home) -> bytes:
        return home.path(self.path)

    def decode(self, reader: Reader, home: Home) -> Value:
        # The identities of "auth" come in the order of a hash.
        return tuple(sorted(reader.acl())), reader.stat()


@dataclass(frozen=True)
class Sync:
    path: Path
    opcode: ClassVar[int] = 9

    def encode(self, home: Home) -> bytes:
        return home.path(self.path)

    def decode(self, reader: Reader, home: Home) -> Value:
        return home.short(reader.text())


@dataclass(frozen=True)
class Exists:
    path: Path
    watch: bool = False
    opcode: ClassVar[int] = 3

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.boolean(self.watch)

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.stat()


@dataclass(frozen=True)
class GetData(Exists):
    opcode: ClassVar[int] = 4

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.buffer(), reader.stat()


@dataclass(frozen=True)
class GetChildren(Exists):
    """Children come in the order of a hash."""

    opcode: ClassVar[int] = 8

    def decode(self, reader: Reader, home: Home) -> Value:
        return tuple(sorted(reader.vector(lambda: str(reader.text()))))


@dataclass(frozen=True)
class GetChildren2(GetChildren):
    opcode: ClassVar[int] = 12

    def decode(self, reader: Reader, home: Home) -> Value:
        return super().decode(reader, home), reader.stat()


@dataclass(frozen=True)
class CountDescendants:
    path: Path
    opcode: ClassVar[int] = 104

    def encode(self, home: Home) -> bytes:
        return home.path(self.path)

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.integer()


@dataclass(frozen=True)
class GetEphemerals:
    prefix: Path = "~"
    opcode: ClassVar[int] = 103

    def encode(self, home: Home) -> bytes:
        return home.path(self.prefix)

    def decode(self, reader: Reader, home: Home) -> Value:
        return tuple(sorted(str(home.short(path)) for path in reader.vector(reader.text)))


@dataclass(frozen=True)
class WhoAmI:
    opcode: ClassVar[int] = 107

    def encode(self, home: Home) -> bytes:
        return b""

    def decode(self, reader: Reader, home: Home) -> Value:
        return tuple(sorted(reader.vector(lambda: (str(reader.text()), str(reader.text())))))


@dataclass(frozen=True)
class AddWatch:
    """Mode 0 is persistent, mode 1 is recursive."""

    path: Path
    mode: int = 0
    opcode: ClassVar[int] = 106

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.integer(self.mode)

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.integer()


@dataclass(frozen=True)
class RemoveWatches:
    """Kind 1 is children, 2 is data, 3 is any."""

    path: Path
    kind: int = 3
    opcode: ClassVar[int] = 18

    def encode(self, home: Home) -> bytes:
        return home.path(self.path) + jute.integer(self.kind)

    def decode(self, reader: Reader, home: Home) -> Value:
        return None


@dataclass(frozen=True)
class CheckWatches(RemoveWatches):
    opcode: ClassVar[int] = 17


Paths: TypeAlias = "tuple[Path, ...]"


@dataclass(frozen=True)
class SetWatches:
    """Set watches as after a reconnect; ``seen`` is the zxid that the client claims to know, counted from ``base``.

    With ``persistent`` and ``recursive`` it is the newer one of the two requests.
    """

    seen: int
    data: Paths = ()
    exist: Paths = ()
    child: Paths = ()
    persistent: Paths | None = None
    recursive: Paths = ()

    @property
    def opcode(self) -> int:
        return 101 if self.persistent is None else 105

    def encode(self, home: Home) -> bytes:
        lists = [self.data, self.exist, self.child]
        if self.persistent is not None:
            lists += [self.persistent, self.recursive]
        return jute.long(home.base + self.seen) + b"".join(home.paths(paths) for paths in lists)

    def decode(self, reader: Reader, home: Home) -> Value:
        return None


@dataclass(frozen=True)
class Auth:
    scheme: str | None = "digest"
    credential: bytes | None = b"ann:a"
    opcode: ClassVar[int] = 100

    def encode(self, home: Home) -> bytes:
        return jute.integer(0) + jute.text(self.scheme) + jute.buffer(self.credential)

    def decode(self, reader: Reader, home: Home) -> Value:
        return None


@dataclass(frozen=True)
class Ping:
    opcode: ClassVar[int] = 11

    def encode(self, home: Home) -> bytes:
        return b""

    def decode(self, reader: Reader, home: Home) -> Value:
        return None


@dataclass(frozen=True)
class CloseSession(Ping):
    opcode: ClassVar[int] = -11


@dataclass(frozen=True)
class Raw:
    """Any bytes with any opcode."""

    opcode: int
    body: bytes = b""

    def encode(self, home: Home) -> bytes:
        return self.body

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.rest()


@dataclass(frozen=True)
class Cut:
    """Another operation without the end of its body."""

    whole: Operation
    missing: int = 1

    @property
    def opcode(self) -> int:
        return self.whole.opcode

    def encode(self, home: Home) -> bytes:
        body = self.whole.encode(home)
        return body[: max(len(body) - self.missing, 0)]

    def decode(self, reader: Reader, home: Home) -> Value:
        return reader.rest()


HEADER_END = jute.integer(-1) + jute.boolean(True) + jute.integer(-1)


@dataclass(frozen=True)
class Multi:
    """Several operations in one; with ``opcode`` MULTI_READ they are reads."""

    operations: tuple[Operation, ...] = field(default=())
    opcode: int = MULTI

    def encode(self, home: Home) -> bytes:
        parts = [
            jute.integer(operation.opcode) + jute.boolean(False) + jute.integer(-1) + operation.encode(home)
            for operation in self.operations
        ]
        return b"".join(parts) + HEADER_END

    def decode(self, reader: Reader, home: Home) -> Value:
        results: list[Value] = []
        while True:
            kind, done, error = reader.integer(), reader.boolean(), reader.integer()
            if done:
                return (*results, ("end", kind, error))
            results.append((kind, error, _result(kind, reader, home)))


def _result(kind: int, reader: Reader, home: Home) -> Value:
    # The opcode in the reply decides, not the one that was sent: they differ.
    decoders: dict[int, Operation] = {
        CREATE: Create("~"),
        CREATE2: Create("~", opcode=CREATE2),
        Delete.opcode: Delete("~"),
        SetData.opcode: SetData("~"),
        Check.opcode: Check("~"),
        GetData.opcode: GetData("~"),
        GetChildren.opcode: GetChildren("~"),
    }
    return reader.integer() if kind == -1 else decoders[kind].decode(reader, home)
