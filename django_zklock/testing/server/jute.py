"""Jute, the encoding of ZooKeeper's records: big-endian numbers; texts and buffers after their length."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INT = struct.Struct("!i")
LONG = struct.Struct("!q")
# The length or count of a missing value, which is not the same as an empty one.
NONE = -1
# A record with more elements is taken as malformed; the real server limits only the size of the packet.
MAX_ELEMENTS = 0x100000


class MalformedError(Exception):
    """A record that ends too early, or that contains an impossible length or value."""


class Reader:
    """Reads a record field by field; every method raises MalformedError."""

    __slots__ = ("_data", "_offset")

    def __init__(self, data: bytes) -> None:
        """Start at the first byte."""
        self._data = data
        self._offset = 0

    @property
    def left(self) -> int:
        """The number of bytes that have not been read."""
        return len(self._data) - self._offset

    def integer(self) -> int:
        """Read 32 bits, signed."""
        return self._number(INT)

    def long(self) -> int:
        """Read 64 bits, signed."""
        return self._number(LONG)

    def boolean(self) -> bool:
        """Read one byte."""
        return self._take(1) != b"\0"

    def buffer(self) -> bytes | None:
        """Read bytes, or None, whose length is -1."""
        length = self.integer()
        return None if length == NONE else self._take(length)

    def text(self) -> str:
        """Read UTF-8; invalid bytes are replaced like in Java."""
        text = self.optional_text()
        if text is None:
            msg = "no text where one was expected"
            raise MalformedError(msg)
        return text

    def optional_text(self) -> str | None:
        """Read UTF-8, or None."""
        data = self.buffer()
        return None if data is None else data.decode("utf-8", "replace")

    def vector(self, element: Callable[[], T]) -> list[T]:
        """Read a counted list; ``element`` reads each element."""
        elements = self.optional_vector(element)
        if elements is None:
            msg = "no vector where one was expected"
            raise MalformedError(msg)
        return elements

    def optional_vector(self, element: Callable[[], T]) -> list[T] | None:
        """Read a counted list, or None; a negative count other than -1 is an empty list."""
        count = self.integer()
        if count == NONE:
            return None
        if count > MAX_ELEMENTS:
            msg = f"a vector of {count} elements"
            raise MalformedError(msg)
        return [element() for _ in range(count)]

    def _number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._offset)
        except struct.error as error:
            msg = f"{self.left} bytes left where {form.size} were expected"
            raise MalformedError(msg) from error
        self._offset += form.size
        number: int = value
        return number

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            msg = f"{self.left} bytes left where {length} were announced"
            raise MalformedError(msg)
        start, self._offset = self._offset, self._offset + length
        return self._data[start : self._offset]


def buffer(data: bytes | None) -> bytes:
    """Return bytes after their length, None as the length -1."""
    return INT.pack(NONE) if data is None else INT.pack(len(data)) + data


def text(value: str | None) -> bytes:
    """Return UTF-8 after its length, None as the length -1."""
    return buffer(None if value is None else value.encode("utf-8", "replace"))


def vector(elements: list[bytes]) -> bytes:
    """Return encoded elements after their count."""
    return INT.pack(len(elements)) + b"".join(elements)
