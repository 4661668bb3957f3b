"""Jute, the encoding of ZooKeeper's records: big-endian numbers, and texts and buffers behind their length."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INT = struct.Struct("!i")
LONG = struct.Struct("!q")
# In place of a length or a count: there is not even an empty one.
NONE = -1
# A record with more elements than this is not meant; the real server trusts the packet's size alone.
MAX_ELEMENTS = 0x100000


class MalformedError(Exception):
    """A record ends too early, or a length or a text in it makes no sense."""


class Reader:
    """Takes a record apart, field by field; every method raises MalformedError."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: bytes) -> None:
        """Begin at the first byte."""
        self._data = data
        self._place = 0

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self._place

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
        """Read bytes; the length -1 stands for none at all."""
        length = self.integer()
        return None if length == NONE else self._take(length)

    def text(self) -> str:
        """Read UTF-8, what is not valid replaced as Java does."""
        text = self.optional_text()
        if text is None:
            msg = "no text where one was expected"
            raise MalformedError(msg)
        return text

    def optional_text(self) -> str | None:
        """Read UTF-8, or that there is none."""
        data = self.buffer()
        return None if data is None else data.decode("utf-8", "replace")

    def vector(self, element: Callable[[], T]) -> list[T]:
        """Read a counted list, each element by ``element``."""
        elements = self.optional_vector(element)
        if elements is None:
            msg = "no vector where one was expected"
            raise MalformedError(msg)
        return elements

    def optional_vector(self, element: Callable[[], T]) -> list[T] | None:
        """Read a counted list, or that there is none; any other negative count is a list without elements."""
        count = self.integer()
        if count == NONE:
            return None
        if count > MAX_ELEMENTS:
            msg = f"a vector of {count} elements"
            raise MalformedError(msg)
        return [element() for _ in range(count)]

    def _number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._place)
        except struct.error as error:
            msg = f"{self.left} bytes left where {form.size} were expected"
            raise MalformedError(msg) from error
        self._place += form.size
        number: int = value
        return number

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            msg = f"{self.left} bytes left where {length} were announced"
            raise MalformedError(msg)
        start, self._place = self._place, self._place + length
        return self._data[start : self._place]


def buffer(data: bytes | None) -> bytes:
    """Write bytes behind their length, None as the length -1."""
    return INT.pack(NONE) if data is None else INT.pack(len(data)) + data


def text(value: str | None) -> bytes:
    """Write UTF-8 behind its length, None as the length -1."""
    return buffer(None if value is None else value.encode("utf-8", "replace"))


def vector(elements: list[bytes]) -> bytes:
    """Write elements that are encoded already behind their number."""
    return INT.pack(len(elements)) + b"".join(elements)
