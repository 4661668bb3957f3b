"""Where a worker's main process writes up, for its children, which of their locks are still held.

Memory that the children share with their parent from the fork on. The parent writes and the children read; a child
never waits for its parent, and knows by its own clock when a parent that stands still has lost its leases.
"""

from __future__ import annotations

import enum
import mmap
import secrets
import threading
from collections import deque

# More than any pool has processes.
CELLS = 4096
_WORDS = 4
_NONCE, _LEASE, _STATE = range(3)
# The end of a reason says less than its beginning.
REASON_BYTES = 1024


class Mark(enum.IntEnum):
    """What the parent knows about a hold."""

    HELD = 1
    REVOKED = 2
    LOST = 3
    GONE = 4


# What the parent gives a reason for, each in a place of its own: it is not written over while a child reads it.
_REASONED = (Mark.REVOKED, Mark.LOST)


class Board:
    """Cells of one hold each. ``origin`` tells the boards of different processes, and of their restarts, apart.

    A cell has the number that its hold goes by, when the lease is over (by the clock of
    :func:`~django_zklock.zk.clock.lease_now`), and the state. Each is one aligned word, written and read at once.
    The reason of a state is text, and written before it.
    """

    def __init__(self) -> None:
        self.origin = secrets.token_hex(8)
        memory = memoryview(mmap.mmap(-1, CELLS * _WORDS * 8))
        self._words = memory.cast("Q")
        self._times = memory.cast("d")
        # Pages of it that are never written take no room.
        self._reasons = mmap.mmap(-1, CELLS * len(_REASONED) * REASON_BYTES)
        self._free = deque(range(CELLS))
        # Of the parent's threads. Reentrant, for a signal handler that ends the worker.
        self._writing = threading.RLock()

    # The parent's.

    def open(self, nonce: int, lease_end: float) -> int | None:
        """Give a cell for the hold ``nonce``; ``None`` if all are taken."""
        with self._writing:
            if not self._free:
                return None
            cell = self._free.popleft()
            self._times[cell * _WORDS + _LEASE] = lease_end
            self._words[cell * _WORDS + _STATE] = Mark.HELD
            self._words[cell * _WORDS + _NONCE] = nonce
            return cell

    def renew(self, cell: int, nonce: int, lease_end: float) -> None:
        """Say that the lease lasts until ``lease_end``."""
        with self._writing:
            if self._words[cell * _WORDS + _NONCE] == nonce:
                self._times[cell * _WORDS + _LEASE] = lease_end

    def mark(self, cell: int, nonce: int, mark: Mark, reason: str = "") -> None:
        """Say what has become of the hold, and why if it was revoked or lost."""
        with self._writing:
            if self._words[cell * _WORDS + _NONCE] == nonce:
                if mark in _REASONED:
                    self._write_reason(cell, mark, reason)
                self._words[cell * _WORDS + _STATE] = mark

    def close(self, cell: int, nonce: int) -> None:
        """Take the hold off the board."""
        with self._writing:
            if self._words[cell * _WORDS + _NONCE] == nonce:
                self._words[cell * _WORDS + _NONCE] = 0
                self._free.append(cell)

    def _write_reason(self, cell: int, mark: Mark, reason: str) -> None:
        place = _place(cell, mark)
        text = reason.encode(errors="replace")[: REASON_BYTES - 1] + b"\0"
        self._reasons[place : place + len(text)] = text

    # The children's.

    def look(self, cell: int, nonce: int) -> Mark | None:
        """Give the state of the hold, or ``None`` if it is no longer on the board."""
        state = self._words[cell * _WORDS + _STATE]
        return Mark(state) if self._words[cell * _WORDS + _NONCE] == nonce else None

    def reason(self, cell: int, mark: Mark) -> str:
        """Give why the hold on ``cell``, which is in the state ``mark``, was revoked or lost."""
        place = _place(cell, mark)
        # What was cut may end in half a character.
        return self._reasons[place : place + REASON_BYTES].partition(b"\0")[0].decode(errors="ignore")

    def lease_end(self, cell: int) -> float:
        """Give until when the hold on ``cell`` is surely good."""
        return self._times[cell * _WORDS + _LEASE]


def _place(cell: int, mark: Mark) -> int:
    return (cell * len(_REASONED) + _REASONED.index(mark)) * REASON_BYTES
