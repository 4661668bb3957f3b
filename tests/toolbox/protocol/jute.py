"""ZooKeeper's encoding, implemented again: the tests must not share a bug with the code under test."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import TypeAlias

T = TypeVar("T")

# Permissions, scheme, id.
AclEntry: TypeAlias = "tuple[int, str | None, str | None]"
Acl: TypeAlias = "tuple[AclEntry, ...] | None"
# Bytes are a path that is not UTF-8.
Path: TypeAlias = "str | bytes | None"
Value: TypeAlias = "int | str | bytes | Stat | tuple[Value, ...] | None"

INT = struct.Struct("!i")
LONG = struct.Struct("!q")
STAT = struct.Struct("!qqqqiiiqiiq")


class TruncatedError(Exception):
    """A record that ends before its last field, or lacks a field that the server always sends."""


@dataclass(frozen=True)
class Stat:
    """The Stat of a node, in the order of the wire."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


def integer(value: int) -> bytes:
    return INT.pack(value)


def long(value: int) -> bytes:
    return LONG.pack(value)


def boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def buffer(value: bytes | None) -> bytes:
    return integer(-1) if value is None else integer(len(value)) + value


def text(value: Path) -> bytes:
    return buffer(value.encode() if isinstance(value, str) else value)


def vector(items: Iterable[T] | None, encode: Callable[[T], bytes]) -> bytes:
    if items is None:
        return integer(-1)
    encoded = [encode(item) for item in items]
    return integer(len(encoded)) + b"".join(encoded)


def acl(entries: Acl) -> bytes:
    return vector(entries, lambda entry: integer(entry[0]) + text(entry[1]) + text(entry[2]))


class Reader:
    """Decode a record field by field."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._position = 0

    def take(self, count: int) -> bytes:
        piece = self._record[self._position : self._position + count]
        if len(piece) < count:
            raise TruncatedError(self._record)
        self._position += count
        return piece

    def rest(self) -> bytes:
        return self.take(len(self._record) - self._position)

    def integer(self) -> int:
        return int(INT.unpack(self.take(4))[0])

    def long(self) -> int:
        return int(LONG.unpack(self.take(8))[0])

    def boolean(self) -> bool:
        return self.take(1) != b"\0"

    def buffer(self) -> bytes | None:
        length = self.integer()
        return None if length == -1 else self.take(length)

    def text(self) -> str | None:
        value = self.buffer()
        # A wrong reply must be comparable and printable, whatever it contains.
        return None if value is None else value.decode(errors="backslashreplace")

    def vector(self, read: Callable[[], T]) -> tuple[T, ...]:
        count = self.integer()
        if count < 0:
            raise TruncatedError(self._record)
        return tuple(read() for _ in range(count))

    def stat(self) -> Stat:
        return Stat(*STAT.unpack(self.take(STAT.size)))

    def acl(self) -> tuple[AclEntry, ...]:
        return self.vector(lambda: (self.integer(), self.text(), self.text()))
