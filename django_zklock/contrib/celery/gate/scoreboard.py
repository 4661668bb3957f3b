"""Shared memory in which a worker's main process publishes which of its children's locks are still held.

The children inherit it by the fork. A hold is used by the child or given up by the parent, never both; and its body
ends, or its child is killed for the loss of the lock, never both. The two decide under a lock of the kernel on one byte
of an inherited file, for a few microseconds; the kernel frees it if the one that decides dies, or closes any descriptor
of that file. So what was decided stands in the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_zklock.zk.contender import Contender
from django_zklock.zk.session import SessionListener
from django_zklock.zk.waiting import boottime

# More than the processes of any pool.
MAX_CELLS = 4096
# A longer reason is cut.
REASON_BYTES = 1024


class HoldState(enum.IntEnum):
    """What the parent knows about a hold; LOSING is LOST while the reason is being read."""

    HELD = 1
    REVOKED = 2
    LOST = 3
    LOSING = 4


class _Words(ctypes.Structure):
    # Each is aligned, written and read at once. `lease_end` is on the clock of `boottime()`, and `ended` is the id of
    # the hold that has ended: a child that is late writes nothing about the next one.
    _fields_ = (
        ("hold_id", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("claimed_by", ctypes.c_uint64),
        ("ended", ctypes.c_uint64),
        ("lease_end", ctypes.c_double),
    )


class _Reasons(ctypes.Structure):
    # Of the states that have one. None is overwritten while a child reads it.
    _fields_ = tuple((state.name, ctypes.c_char * REASON_BYTES) for state in (HoldState.REVOKED, HoldState.LOST))


class Scoreboard:
    """The memory for each :class:`Cell`. The reason of a state is written before the state."""

    def __init__(self) -> None:
        self.words = (_Words * MAX_CELLS).from_buffer(mmap.mmap(-1, MAX_CELLS * ctypes.sizeof(_Words)))
        # Pages that are never written use no memory.
        self.reasons = (_Reasons * MAX_CELLS).from_buffer(mmap.mmap(-1, MAX_CELLS * ctypes.sizeof(_Reasons)))
        # The one that got free last is used last: a child may be late.
        self.free = deque(range(MAX_CELLS))
        # Guards the cells against other threads of the parent; taken after the monitor of a session. Reentrant for a
        # signal handler that ends the worker.
        self.writing = threading.RLock()
        self._claims = InheritedDescriptor(_anonymous_file())
        # By process: the kernel does not keep threads of one process apart.
        self._deciding: dict[int, threading.RLock] = {}

    def close(self) -> None:
        """Close the file; no body uses a hold of this scoreboard any more."""
        self._claims.close()

    @contextmanager
    def deciding(self, number: int, *, waits: bool = False) -> Iterator[bool]:
        """Whether this process alone decides about the cell ``number`` meanwhile; if it ``waits``, after the other."""
        with self._deciding.setdefault(os.getpid(), threading.RLock()):
            try:
                fcntl.lockf(self._claims.intact, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
            except OSError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(self._claims.fd, fcntl.LOCK_UN, 1, number)


def finalizer_of(owner: object, *descriptors: int) -> weakref.finalize[Any, Any]:
    """Return what closes ``descriptors``, once: when it is called, or when nothing refers to ``owner`` any more."""

    def close() -> None:
        for each in descriptors:
            with contextlib.suppress(OSError):
                os.close(each)

    finalizer = weakref.finalize(owner, close)
    finalizer.atexit = False
    return finalizer


class InheritedDescriptor:
    """A descriptor that children inherit. A body may close it, and its number may be that of another file then."""

    def __init__(self, fd: int) -> None:
        self.fd, self._status = fd, os.fstat(fd)
        self._finalizer = finalizer_of(self, fd)

    def close(self) -> None:
        """Close it in this process; calling this again does nothing."""
        self._finalizer()

    @property
    def intact(self) -> int:
        """The number; raises ``OSError`` if it is not that of our file any more."""
        if not os.path.samestat(os.fstat(self.fd), self._status):
            raise OSError(errno.EBADF, "it is another file")
        return self.fd


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("zklock-claims")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


class Cell:
    """The cell of the hold ``hold_id``, as a child sees it. When another hold uses the cell, nothing is written."""

    def __init__(self, scoreboard: Scoreboard, number: int, hold_id: int) -> None:
        self.number = number
        self._scoreboard = scoreboard
        self._hold_id = hold_id
        self._words: Any = scoreboard.words[number]
        self._reasons: Any = scoreboard.reasons[number]

    @property
    def state(self) -> HoldState | None:
        """The state of the hold, or ``None`` if the cell is not its own any more."""
        state = self._words.state
        return HoldState(state) if self._words.hold_id == self._hold_id else None

    def reason(self, state: HoldState) -> str:
        # One that was cut may end in a part of a character.
        return str(getattr(self._reasons, state.name), errors="ignore")

    @property
    def lease_end(self) -> float:
        return float(self._words.lease_end)

    @property
    def claimed_by(self) -> int | None:
        """The process id of the child that has claimed the hold."""
        pid = self._words.claimed_by
        return pid if pid and self._words.hold_id == self._hold_id else None

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended the hold."""
        return bool(self._words.ended == self._hold_id)

    def end(self) -> None:
        """Write that the body has ended, or has released the lock: the child is not killed for its loss any more.

        If the parent is killing the child, this does not return. A body that has closed the descriptor decides alone.
        """
        with self._scoreboard.deciding(self.number, waits=True):
            self._words.ended = self._hold_id

    def claim(self, pid: int) -> bool:
        """Claim the hold for the child ``pid``, which calls this; return ``False`` if the hold must not be used."""
        with self._scoreboard.deciding(self.number) as alone:
            if not alone or self.state is None or self.claimed_by is not None:
                return False
            # First: a parent that writes a loss, then reads the claim, finds this child; or the child finds the loss.
            self._words.claimed_by = pid
            if self.state in {HoldState.HELD, HoldState.REVOKED} and boottime() < self.lease_end:
                return True
            if self.state is not None:
                self._words.claimed_by = 0
            return False


class ParentCell(Cell, SessionListener):
    """The cell of a hold in the main process. Any thread of the main process may call it."""

    def __init__(self, scoreboard: Scoreboard, hold_id: int, contender: Contender) -> None:
        """Use a cell for the hold of ``contender``; raises ``IndexError`` if all are in use."""
        # Not posted: that would wake the connection for nothing.
        with contender.session.monitor, scoreboard.writing:
            super().__init__(scoreboard, scoreboard.free.popleft(), hold_id)
            self._contender = contender
            words = self._words
            words.state, words.claimed_by, words.lease_end = HoldState.HELD, 0, contender.session.lease_end
            words.hold_id = hold_id
            contender.session.add_listener(self)

    def update(self) -> HoldState | None:
        """Write the state of the hold if it was lost or revoked, and return it; ``None`` if it was not."""
        contender = self._contender
        with self._scoreboard.writing:
            # Before the loss and after it: the reason may be known in between, and then this is called once more.
            pending, lost = contender.loss_reason_pending, contender.lost
            state, reason = (HoldState.REVOKED, contender.revoked) if lost is None else (HoldState.LOST, lost)
            if reason is not None and self._words.hold_id == self._hold_id:
                if state is HoldState.LOST and (pending or contender.loss_reason_pending):
                    # At once, because ZooKeeper may not answer. The child waits a moment for the reason.
                    self._words.state = HoldState.LOSING
                else:
                    # One byte is left for the end of the text.
                    setattr(self._reasons, state.name, reason.encode(errors="replace")[: REASON_BYTES - 1])
                    self._words.state = state
        return state if reason is not None else None

    def withdraw(self) -> bool:
        """Free the cell if no child has claimed it; return whether it is free, so that no child can claim it."""
        with self._scoreboard.deciding(self.number) as alone:
            if not alone or self.claimed_by is not None:
                return False
            self.close()
            return True

    def kill(self, kill: Callable[[], object]) -> bool:
        """Call ``kill``, which kills the child that has claimed the hold, and return ``True``, unless it has ended."""
        with self._scoreboard.deciding(self.number) as alone:
            # Otherwise the child is writing that at this moment.
            if not alone or self.has_ended:
                return False
            kill()
            return True

    def close(self) -> None:
        """Free the cell: the hold is over, and its node is deleted if the child waits for that."""
        self._contender.session.listeners.pop(self, None)
        with self._scoreboard.writing:
            if self._words.hold_id == self._hold_id:
                self._words.hold_id = 0
                self._scoreboard.free.append(self.number)

    # The session calls these, under its monitor.

    def heartbeat(self) -> None:
        """Write until when the lease lasts."""
        with self._scoreboard.writing:
            # It may just have been closed.
            if self._words.hold_id == self._hold_id:
                self._words.lease_end = self._contender.session.lease_end

    def resumed(self) -> None:
        self._contender.session.catch_up(self.heartbeat)
