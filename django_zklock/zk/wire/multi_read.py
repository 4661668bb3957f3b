"""Many reads in one request and one answer (opcode 22, ZOOKEEPER-3402); kazoo has no such request."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from kazoo.exceptions import EXCEPTIONS, KazooException, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import ZnodeStat

_HEADER = struct.Struct("!i?i")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_LIST = _HEADER.pack(GetChildren.type, False, -1)
_GET = _HEADER.pack(GetData.type, False, -1)
_NO_WATCH = b"\0"
_END = _HEADER.pack(-1, True, -1)
_ERROR = -1


class Read(NamedTuple):
    """One of many reads: the data and stat of a node, or the names of its children."""

    path: str
    children: bool = False


class MultiRead:
    """The request. Its answer has an outcome for each read; see :meth:`deserialize`."""

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
