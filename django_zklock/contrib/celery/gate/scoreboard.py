"""Shared memory in which a worker's main process publishes which of its children's locks are still held.

The children inherit it by the fork. A child never waits for its parent, and knows by its own clock when the leases of a
stopped parent are over.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk.session import SessionListener

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender

# More than the processes of any pool.
MAX_SLOTS = 4096
# A longer reason is cut.
REASON_BYTES = 1024


class HoldState(enum.IntEnum):
    """What the parent knows about a hold."""

    HELD = 1
    REVOKED = 2
    LOST = 3
    GONE = 4
    # The parent will release it, unless a child has claimed it already.
    WITHDRAWN = 5


class _Words(ctypes.Structure):
    # Each is one aligned word, written and read at once. `lease_end` is on the clock of `boottime()`.
    _fields_ = (
        ("nonce", ctypes.c_uint64),
        ("lease_end", ctypes.c_double),
        ("state", ctypes.c_uint64),
        ("claimed_by", ctypes.c_uint64),
    )


class _Reasons(ctypes.Structure):
    # The reasons of the states that have one. None is overwritten while a child reads it.
    _fields_ = (
        (HoldState.REVOKED.name, ctypes.c_char * REASON_BYTES),
        (HoldState.LOST.name, ctypes.c_char * REASON_BYTES),
    )


class Scoreboard:
    """The memory for each :class:`ScoreboardSlot`. The reason of a state is written before the state."""

    def __init__(self) -> None:
        self.words = (_Words * MAX_SLOTS).from_buffer(mmap.mmap(-1, MAX_SLOTS * ctypes.sizeof(_Words)))
        # Pages that are never written use no memory.
        self.reasons = (_Reasons * MAX_SLOTS).from_buffer(mmap.mmap(-1, MAX_SLOTS * ctypes.sizeof(_Reasons)))
        self.free = deque(range(MAX_SLOTS))
        # Guards the slots against other threads of the parent. Reentrant, because a signal handler that ends the
        # worker may interrupt the owner.
        self.writing = threading.RLock()

    @property
    def used(self) -> int:
        """How many slots are in use."""
        return MAX_SLOTS - len(self.free)


class ScoreboardSlot:
    """The slot of the hold ``nonce``. When the slot is used by another hold, nothing is written any more."""

    def __init__(self, scoreboard: Scoreboard, number: int, nonce: int) -> None:
        self.number = number
        self._scoreboard = scoreboard
        self._nonce = nonce
        self._words = scoreboard.words[number]
        self._reasons = scoreboard.reasons[number]

    @property
    def state(self) -> HoldState | None:
        """The state of the hold, or ``None`` if the slot is not its own any more."""
        state = self._words.state
        return HoldState(state) if self._words.nonce == self._nonce else None

    def reason(self, state: HoldState) -> str:
        """Return why the hold was revoked or lost."""
        # A reason that was cut may end in a part of a character.
        text: bytes = getattr(self._reasons, state.name)
        return text.decode(errors="ignore")

    @property
    def lease_end(self) -> float:
        """Until when the lease of the hold lasts."""
        return float(self._words.lease_end)

    def claim(self, pid: int) -> bool:
        """Claim the hold for the child ``pid``, which calls this; return ``False`` if the hold must not be used.

        A parent that withdraws a hold sets the state, waits, and reads the claim. A claim that it does not find was
        made later, and so finds the state.
        """
        if self.state is None:
            return False
        self._words.claimed_by = pid
        if self.state in {HoldState.HELD, HoldState.REVOKED}:
            return True
        if self._words.nonce == self._nonce:
            self._words.claimed_by = 0
        return False


class ParentSlot(ScoreboardSlot, SessionListener):
    """The slot of a hold in the main process: a listener of the session, whose heartbeats renew the lease.

    Any thread of the main process may call it.
    """

    def __init__(self, scoreboard: Scoreboard, number: int, nonce: int, contender: Contender) -> None:
        super().__init__(scoreboard, number, nonce)
        self._contender = contender
        self._session = contender.session
        self._is_withdrawn = False

    @classmethod
    def open(cls, scoreboard: Scoreboard, nonce: int, contender: Contender) -> ParentSlot | None:
        """Return a slot for the hold of ``contender``; ``None`` if all are in use."""
        with scoreboard.writing:
            if not scoreboard.free:
                return None
            slot = cls(scoreboard, scoreboard.free.popleft(), nonce, contender)
            words = slot._words
            words.lease_end, words.state, words.claimed_by = contender.session.lease_end, HoldState.HELD, 0
            words.nonce = nonce
        # Not posted: that would wake the connection for nothing.
        with slot._session.monitor:
            slot._session.add_listener(slot)
        return slot

    @property
    def claimed_by(self) -> int | None:
        """The process id of the child that has claimed the hold."""
        pid = self._words.claimed_by
        return pid if pid and self._words.nonce == self._nonce else None

    def update(self) -> HoldState | None:
        """Write the state of the hold if it was lost or revoked, and return it; ``None`` if it was not."""
        lost, revoked = self._contender.lost, self._contender.revoked
        # The child words its error when it first sees the loss, so the state is set when the reason is known. That is
        # one round trip later, and the heartbeat that finds a loss takes much longer.
        if lost is not None and not self._contender.loss_reason_pending:
            self._set_state(HoldState.LOST, lost)
            return HoldState.LOST
        if revoked is not None:
            with self._scoreboard.writing:
                if not self._is_withdrawn:
                    self._set_state(HoldState.REVOKED, revoked)
            return HoldState.REVOKED
        return None

    def withdraw(self) -> None:
        """Refuse all later claims."""
        with self._scoreboard.writing:
            self._is_withdrawn = True
            self._set_state(HoldState.WITHDRAWN)

    def restore(self) -> None:
        """Leave the hold to the child that has claimed it."""
        self._is_withdrawn = False
        self._set_state(HoldState.HELD)
        self.update()

    def announce_deletion(self) -> None:
        """Set the state when the server has deleted the node: the child may wait for that."""
        gone = partial(self._set_state, HoldState.GONE)
        self._session.post(partial(self._contender.on_deleted, gone))

    def close(self) -> None:
        """Free the slot."""
        with self._scoreboard.writing:
            if self._words.nonce == self._nonce:
                self._words.nonce = 0
                self._scoreboard.free.append(self.number)
        # After `writing`, which a heartbeat acquires under the monitor.
        with self._session.monitor:
            self._session.remove_listener(self)

    def _set_state(self, state: HoldState, reason: str | None = None) -> None:
        with self._scoreboard.writing:
            if self._words.nonce == self._nonce:
                if reason is not None:
                    # One byte is left for the end of the text.
                    setattr(self._reasons, state.name, reason.encode(errors="replace")[: REASON_BYTES - 1])
                self._words.state = state

    # The session calls these.

    def heartbeat(self) -> None:
        """Renew the lease."""
        with self._scoreboard.writing:
            if self._words.nonce == self._nonce:
                self._words.lease_end = self._session.lease_end

    def resumed(self) -> None:
        self._session.catch_up(self.heartbeat)
