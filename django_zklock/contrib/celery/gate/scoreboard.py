"""Shared memory in which a worker's main process publishes which of its children's locks are still held.

The children inherit it by the fork. A child never waits for its parent, and knows by its own clock when the leases of a
stopped parent are over.
"""

from __future__ import annotations

import enum
import mmap
import secrets
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender

# More than the processes of any pool.
MAX_SLOTS = 4096
_WORDS = 4
_NONCE, _LEASE, _STATE, _CLAIMED = range(_WORDS)
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


# The states with a reason. Each has memory of its own, so that no reason is overwritten while a child reads it.
_REASONED = (HoldState.REVOKED, HoldState.LOST)


class Scoreboard:
    """Slots of one hold each. ``origin`` identifies the process that writes them.

    A slot has the nonce of its hold, the end of the lease (on the clock of
    :func:`~django_zklock.zk.waiting.boottime`), the state, and the process that has claimed the hold. Each is one
    aligned word, written and read at once. The reason of a state is text, and is written before the state.
    """

    def __init__(self) -> None:
        self.origin = secrets.token_hex(8)
        memory = memoryview(mmap.mmap(-1, MAX_SLOTS * _WORDS * 8))
        self._words = memory.cast("Q")
        self._times = memory.cast("d")
        # Pages that are never written use no memory.
        self._reasons = mmap.mmap(-1, MAX_SLOTS * len(_REASONED) * REASON_BYTES)
        self._free = deque(range(MAX_SLOTS))
        # Guards the slots against other threads of the parent. Reentrant, because a signal handler that ends the
        # worker may interrupt the owner.
        self._writing = threading.RLock()

    @property
    def used(self) -> int:
        """How many slots are in use."""
        return MAX_SLOTS - len(self._free)

    # Called by the parent.

    def open(self, nonce: int, lease_end: float) -> int | None:
        """Return a slot for the hold ``nonce``; ``None`` if all are in use."""
        with self._writing:
            if not self._free:
                return None
            slot = self._free.popleft()
            self._times[slot * _WORDS + _LEASE] = lease_end
            self._words[slot * _WORDS + _STATE] = HoldState.HELD
            self._words[slot * _WORDS + _CLAIMED] = 0
            self._words[slot * _WORDS + _NONCE] = nonce
            return slot

    def renew(self, slot: int, nonce: int, lease_end: float) -> None:
        """Set the end of the lease."""
        with self._writing:
            if self._words[slot * _WORDS + _NONCE] == nonce:
                self._times[slot * _WORDS + _LEASE] = lease_end

    def set_state(self, slot: int, nonce: int, state: HoldState, reason: str = "") -> None:
        """Set the state of the hold, with the reason if it was revoked or lost."""
        with self._writing:
            if self._words[slot * _WORDS + _NONCE] == nonce:
                if state in _REASONED:
                    self._write_reason(slot, state, reason)
                self._words[slot * _WORDS + _STATE] = state

    def claimed_by(self, slot: int, nonce: int) -> int | None:
        """Return the process id of the child that has claimed the hold."""
        pid = self._words[slot * _WORDS + _CLAIMED]
        return pid if pid and self._words[slot * _WORDS + _NONCE] == nonce else None

    def close(self, slot: int, nonce: int) -> None:
        """Free the slot of the hold."""
        with self._writing:
            if self._words[slot * _WORDS + _NONCE] == nonce:
                self._words[slot * _WORDS + _NONCE] = 0
                self._free.append(slot)

    def _write_reason(self, slot: int, state: HoldState, reason: str) -> None:
        offset = _reason_offset(slot, state)
        text = reason.encode(errors="replace")[: REASON_BYTES - 1] + b"\0"
        self._reasons[offset : offset + len(text)] = text

    # Called by children.

    def claim(self, slot: int, nonce: int, pid: int) -> bool:
        """Contender the hold for the calling process ``pid``; return ``False`` if the hold must not be used.

        A parent that withdraws a hold sets the state, waits, and reads the claim. A claim that it does not find was
        made later, and so finds the state.
        """
        if self.state(slot, nonce) is None:
            return False
        self._words[slot * _WORDS + _CLAIMED] = pid
        if self.state(slot, nonce) in {HoldState.HELD, HoldState.REVOKED}:
            return True
        if self._words[slot * _WORDS + _NONCE] == nonce:
            self._words[slot * _WORDS + _CLAIMED] = 0
        return False

    def state(self, slot: int, nonce: int) -> HoldState | None:
        """Return the state of the hold, or ``None`` if the slot is not its own any more."""
        state = self._words[slot * _WORDS + _STATE]
        return HoldState(state) if self._words[slot * _WORDS + _NONCE] == nonce else None

    def reason(self, slot: int, state: HoldState) -> str:
        """Return the reason of the hold's ``state``."""
        offset = _reason_offset(slot, state)
        # A reason that was cut may end in a part of a character.
        return self._reasons[offset : offset + REASON_BYTES].partition(b"\0")[0].decode(errors="ignore")

    def lease_end(self, slot: int) -> float:
        """Return until when the lease of the hold lasts."""
        return self._times[slot * _WORDS + _LEASE]


def _reason_offset(slot: int, state: HoldState) -> int:
    return (slot * len(_REASONED) + _REASONED.index(state)) * REASON_BYTES


class ScoreboardSlot:
    """The slot of one hold in the main process: a listener of the session, whose heartbeats renew the lease.

    Any thread of the main process may call it: the scoreboard has its own lock, and checks the nonce of the hold.
    """

    def __init__(self, scoreboard: Scoreboard, nonce: int, number: int, contender: Contender) -> None:
        self.number = number
        self._scoreboard = scoreboard
        self._nonce = nonce
        self._contender = contender
        self._session = contender.session
        self._closed = False
        self._is_withdrawn = False

    @classmethod
    def open(cls, scoreboard: Scoreboard, nonce: int, contender: Contender) -> ScoreboardSlot | None:
        """Return a slot for the hold of ``contender``; ``None`` if the scoreboard is full."""
        number = scoreboard.open(nonce, contender.session.lease_end)
        if number is None:
            return None
        slot = cls(scoreboard, nonce, number, contender)
        slot._session.post(partial(slot._session.add_listener, slot))
        return slot

    @property
    def claimed_by(self) -> int | None:
        """The process id of the child that has claimed the hold."""
        return self._scoreboard.claimed_by(self.number, self._nonce)

    def update(self) -> HoldState | None:
        """Write the state of the hold if it was lost or revoked, and return it; ``None`` if it was not."""
        lost, revoked = self._contender.lost, self._contender.revoked
        # The child words its error when it first sees the loss, so the state is set when the reason is known. That is
        # one round trip later, and the heartbeat that finds a loss takes much longer.
        if lost is not None and not self._contender.loss_reason_pending:
            self._set_state(HoldState.LOST, lost)
            return HoldState.LOST
        if revoked is not None:
            if not self._is_withdrawn:
                self._set_state(HoldState.REVOKED, revoked)
            return HoldState.REVOKED
        return None

    def withdraw(self) -> None:
        """Refuse all later claims."""
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
        self._closed = True
        self._scoreboard.close(self.number, self._nonce)

    def _set_state(self, state: HoldState, reason: str = "") -> None:
        self._scoreboard.set_state(self.number, self._nonce, state, reason)

    # The session calls these.

    def heartbeat(self) -> None:
        """Renew the lease, or stop listening when the task has ended."""
        if self._closed:
            self._session.remove_listener(self)
        else:
            self._scoreboard.renew(self.number, self._nonce, self._session.lease_end)

    def resumed(self) -> None:
        self._session.renewal.catch_up(self.heartbeat)

    def suspended(self) -> None: ...

    def session_ended(self, _reason: str) -> None: ...

    def unavailable(self, _reason: str) -> None: ...

    def lose(self, _reason: str) -> None: ...
