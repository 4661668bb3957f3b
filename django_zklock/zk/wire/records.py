"""The records of the protocol that kazoo has not, and what an answer to a request proves."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from kazoo.exceptions import EXCEPTIONS, KazooException, NoNodeError
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
    int_struct,
    long_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

_HEADER = struct.Struct("!i?i")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_LIST = _HEADER.pack(GetChildren.type, False, -1)
_GET = _HEADER.pack(GetData.type, False, -1)
_NO_WATCH = b"\0"
_END = _HEADER.pack(-1, True, -1)
_ERROR = -1


class EncodingError(KazooException):
    """A request that cannot be encoded, or an answer that cannot be decoded."""


class CreateContainer(Create2):
    """The request for a container node (opcode 19, ZOOKEEPER-2163)."""

    type = 19


# Requests that are committed by a majority, and those that a follower forwards to the leader. The lease counts on them:
# one that is missing here costs proofs, and one that is wrong here costs safety.
WRITES = (Create, Create2, CreateContainer, Delete, SetData, Transaction)
SEEN_BY_LEADER = (*WRITES, Sync)


class _Request:
    """A request whose answer has no content."""

    @classmethod
    def deserialize(cls, _data: bytes, _offset: int) -> bool:
        """Return true: the answer was no error."""
        return True


@dataclass(frozen=True)
class RemoveWatches(_Request):
    """The request to remove the watches of this session on a node (opcode 18, ZOOKEEPER-442)."""

    type: ClassVar[int] = 18

    path: str
    watcher_type: int

    def serialize(self) -> bytes:
        """Encode the record."""
        return bytes(write_string(self.path) + int_struct.pack(self.watcher_type))


@dataclass(frozen=True)
class SetWatches(_Request):
    """The request to set the watches of the last connection again (opcode 101).

    For each watched node that changed after the transaction ``seen`` the server sends the event at once, before the
    answer.
    """

    type: ClassVar[int] = 101

    seen: int
    data: tuple[str, ...]
    children: tuple[str, ...]

    def serialize(self) -> bytes:
        """Encode the record; its second list is for the watches of ``exists``, which this package never sets."""
        packet = bytearray(long_struct.pack(self.seen))
        for paths in (self.data, (), self.children):
            packet += int_struct.pack(len(paths))
            for path in paths:
                packet += write_string(path)
        return bytes(packet)


# Many reads in one request.


class Read(NamedTuple):
    """One of many reads: the data and stat of a node, or the names of its children."""

    path: str
    children: bool = False


class MultiRead:
    """The request for many reads (opcode 22, ZOOKEEPER-3402). Its answer has an outcome for each read."""

    type: ClassVar[int] = 22

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        """Encode the records, each after its header."""
        packet = bytearray()
        for path, children in self._reads:
            text = path.encode()
            packet += _LIST if children else _GET
            packet += _INT.pack(len(text))
            packet += text
            packet += _NO_WATCH
        packet += _END
        return bytes(packet)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """Return the result of each read: what ``get`` or ``children`` returns, ``None`` if missing, or the error."""
        outcomes: list[Any] = []
        while True:
            kind, done, _error = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return outcomes
            outcome, offset = _READERS[kind](data, offset)
            outcomes.append(outcome)


def _read_error(data: bytes, offset: int) -> tuple[KazooException | None, int]:
    (code,) = _INT.unpack_from(data, offset)
    error = EXCEPTIONS[code]() if code in EXCEPTIONS else KazooException(f"ZooKeeper's error {code}")
    return None if isinstance(error, NoNodeError) else error, offset + _INT.size


def _read_children(data: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(data, offset)
    offset += _INT.size
    names = []
    for _number in range(count):
        start = offset + _INT.size
        offset = start + _INT.unpack_from(data, offset)[0]
        names.append(data[start:offset].decode())
    return names, offset


def _read_data(data: bytes, offset: int) -> tuple[tuple[bytes, ZnodeStat], int]:
    (size,) = _INT.unpack_from(data, offset)
    start = offset + _INT.size
    # A node that was created without data has a size of -1.
    end = start + max(0, size)
    return (bytes(data[start:end]), ZnodeStat._make(_STAT.unpack_from(data, end))), end + _STAT.size


_READERS = {_ERROR: _read_error, GetChildren.type: _read_children, GetData.type: _read_data}
