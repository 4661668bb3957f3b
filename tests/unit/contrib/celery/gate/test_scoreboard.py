"""The memory in which a worker's main process publishes its holds, seen by both sides."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.scoreboard import HoldState, ParentSlot, Scoreboard, ScoreboardSlot

pytestmark = pytest.mark.celery


class Session:
    """A session that does nothing."""

    lease_end = 1.0
    monitor = threading.RLock()

    def post(self, _call: Any) -> None: ...

    def __init__(self) -> None:
        self.listeners: dict[Any, None] = {}

    def add_listener(self, slot: Any) -> None:
        self.listeners[slot] = None

    def remove_listener(self, slot: Any) -> None:
        self.listeners.pop(slot, None)


class Contender:
    """A contender that holds."""

    session = Session()
    lost: str | None = None
    revoked: str | None = None
    loss_reason_pending = False


def opened(scoreboard: Scoreboard, nonce: int, contender: Contender | None = None) -> tuple[ParentSlot, ScoreboardSlot]:
    """Return the slot of a new hold as the main process and as a child see it."""
    slot = ParentSlot.open(scoreboard, nonce, contender or Contender())  # type: ignore[arg-type]
    assert slot is not None
    return slot, ScoreboardSlot(scoreboard, slot.number, nonce)


def test_close__the_session_calls_it_no_more() -> None:
    """The session calls the slots that are in use, and no others."""
    slot, _ = opened(Scoreboard(), 1)
    listeners = Contender.session.listeners
    assert slot in listeners
    slot.close()
    assert slot not in listeners


def test_claim__once_it_is_withdrawn() -> None:
    """A withdrawn hold cannot be claimed; an earlier claim is kept."""
    scoreboard = Scoreboard()
    (claimed, in_child), (withdrawn, in_other) = opened(scoreboard, 1), opened(scoreboard, 2)
    assert in_child.claim(71)
    for slot in (claimed, withdrawn):
        slot.withdraw()
    assert not in_other.claim(72)
    assert (claimed.claimed_by, withdrawn.claimed_by) == (71, None)
    claimed.restore()
    assert in_child.state is HoldState.HELD


def test_claim__of_a_hold_that_is_over() -> None:
    """A hold that was lost or released cannot be claimed."""
    scoreboard, contender = Scoreboard(), Contender()
    slot, in_child = opened(scoreboard, 1, contender)
    contender.lost = "its node was deleted"
    slot.update()
    assert not in_child.claim(71)
    slot.close()
    assert not in_child.claim(71)
    assert slot.claimed_by is None
    assert scoreboard.used == 0


def test_withdrawn__stays_so_when_revoked() -> None:
    """A revocation does not make a withdrawn hold claimable again."""
    contender = Contender()
    slot, in_child = opened(Scoreboard(), 1, contender)
    slot.withdraw()
    contender.revoked = "deploy"
    slot.update()
    assert not in_child.claim(71)
    slot.restore()
    assert in_child.state is HoldState.REVOKED


def test_reasons() -> None:
    """A reason is kept for each state, cut at a whole character."""
    contender = Contender()
    slot, in_child = opened(Scoreboard(), 1, contender)
    contender.revoked = "deploy"
    slot.update()
    contender.lost = "é" * 2000
    slot.update()
    assert in_child.state is HoldState.LOST
    assert in_child.reason(HoldState.LOST) == "é" * 511
    assert in_child.reason(HoldState.REVOKED) == "deploy"


def test_slot_of_another_hold() -> None:
    """When a slot has been given to another hold, the first one neither changes it nor sees its state."""
    scoreboard, contender = Scoreboard(), Contender()
    first, in_child = opened(scoreboard, 1, contender)
    scoreboard.free.clear()
    first.close()
    second, in_second_child = opened(scoreboard, 2)
    assert second.number == first.number
    assert in_second_child.claim(72)
    contender.lost = "its node was deleted"
    first.update()
    first.close()
    assert (in_child.state, in_second_child.state) == (None, HoldState.HELD)
    assert (first.claimed_by, second.claimed_by) == (None, 72)


def test_full() -> None:
    """Without a free slot there is none."""
    scoreboard = Scoreboard()
    scoreboard.free.clear()
    assert ParentSlot.open(scoreboard, 1, Contender()) is None  # type: ignore[arg-type]
