"""What each contestant in Python provides: a connection, and a cycle of acquiring and releasing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from benchmarks.peers.load import Load

# Acquires and releases once; with the kind "try" it is refused once.
Cycle = Callable[[], object]


class MakeCycle(Protocol):
    """Makes the cycle of one contender: of one key, or with the kind "several" of all keys together.

    ``kind`` is one of the load's, and "read" or "write" for its kind "mixed".
    """

    def __call__(self, kind: str, keys: Sequence[str]) -> Cycle:
        """Return the cycle."""
        ...


# Connects, and holds what has to be held by another session.
Recipe = Callable[[Load], AbstractContextManager[MakeCycle]]


def granted(lock: AbstractContextManager[object]) -> Cycle:
    """Return the usual block."""

    def cycle() -> None:
        with lock:
            pass

    return cycle


def refused(try_once: Callable[[], object]) -> Cycle:
    """Return a try that must fail."""

    def cycle() -> None:
        assert not try_once()

    return cycle
