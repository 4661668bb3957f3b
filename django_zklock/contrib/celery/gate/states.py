"""The states of a request at the gate, and the steps between them, as data. This module imports nothing of ours.

The phase says where the request is, and the verdict what became of its lock. Up to DECIDED the request belongs to the
gate, and only the gate's loop moves it on. From SUBMITTED on it belongs to Celery's pool. CLAIMED is what the main
process knows: a child claims the hold in its cell of the scoreboard, where the main process reads it when it has to.

A request that cannot be served here goes to its slot without the lock, and the task acquires the lock there, as
without the gate (IN_SLOT): when ZooKeeper does not answer, and when a granted lock was released because others wait for
it and there was no slot, or no body that has taken it.

What happens to a request is an event. ``STEPS`` says which pair of phase and verdict each event makes of which one;
:func:`effects_of` says what is to be done then. The drawings in the documentation are made from this table.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import NamedTuple


class Phase(enum.Enum):
    """Where a request is."""

    QUEUED = "it waits for its turn, and has not asked for its lock"
    JOINING = "it has asked, and there is no answer"
    WAITING = "another contender is first"
    DECIDED = "it waits for the next slot"
    SUBMITTED = "Celery's pool has it"
    CLAIMED = "the body has the hold"
    RELEASED = "the body has released the lock, and the task has not ended"
    OVER = "over"


class Verdict(enum.Enum):
    """What became of the lock of a request."""

    NONE = "none"
    GRANTED = "granted"
    REFUSED = "refused"
    IN_SLOT = "the task acquires it itself"
    KILLED = "it was lost under the body, whose child was killed for that"


class Event(enum.Enum):
    """What happens to a request."""

    TURN = "there is a slot for it, or will be soon: it asks for its lock"
    BLOCKED = "ZooKeeper has answered: another contender is first"
    GRANTED = "it has the lock"
    REFUSED = "its timeout is over, or another error ends the wait"
    LOST = "the lock was lost before a slot was there; it asks again"
    UNSERVED = "no answer, no slot for it while others wait, or no cell"
    SUBMITTED = "it has a slot"
    NOT_CLAIMED = "the body has not taken the hold in time, and others wait"
    CLAIMED = "a child has claimed the hold"
    KILLED = "its child was killed, or has ended itself, because the lock is lost"
    BODY_ENDED = "the body has ended, or has released the lock"
    GIVEN_BACK = "the broker is to deliver the message again"
    ENDED = "result, revocation, end of the child, a cut from the broker, stop"


class Effect(enum.Enum):
    """What is to be done after a step."""

    RELEASE = "leave the queue of the lock, or release it"
    FORGET = "close its cell, and drop it from the gate and from Celery's request"
    SETTLE = "use the slot that was kept for it"
    FAIL = "let the task fail with the loss of its lock"
    REPORT = "send the Celery event about the end of the run"
    GIVE_BACK = "let the broker deliver the message again"
    SEEK = "let it have the next slot"
    SUBMIT = "hand it over to Celery's pool"


class Pair(NamedTuple):
    """Phase and verdict of a request."""

    phase: Phase
    verdict: Verdict


QUEUED, JOINING, WAITING = (Pair(phase, Verdict.NONE) for phase in (Phase.QUEUED, Phase.JOINING, Phase.WAITING))
_VERDICTS = (Verdict.GRANTED, Verdict.REFUSED, Verdict.IN_SLOT)
GRANTED, REFUSED, IN_SLOT = _DECIDED = tuple(Pair(Phase.DECIDED, verdict) for verdict in _VERDICTS)
RUN_GRANTED, RUN_REFUSED, RUN_IN_SLOT = _SUBMITTED = tuple(Pair(Phase.SUBMITTED, verdict) for verdict in _VERDICTS)
CLAIMED, KILLED = (Pair(Phase.CLAIMED, verdict) for verdict in (Verdict.GRANTED, Verdict.KILLED))
RELEASED = Pair(Phase.RELEASED, Verdict.GRANTED)

# The pairs that exist, and what they are for `manage.py zklock`, which has no word for a task that is in no queue.
STATES = {
    QUEUED: "queued",
    JOINING: "queued",
    WAITING: "waiting",
    GRANTED: "granted",
    REFUSED: "refused",
    IN_SLOT: "queued",
    RUN_GRANTED: "granted",
    RUN_REFUSED: "refused",
    # The body acquires the lock itself, or has released it.
    RUN_IN_SLOT: "running",
    CLAIMED: "held",
    KILLED: "lost",
    RELEASED: "running",
    # Celery may report the end of a killed child after that of its request.
    **{Pair(Phase.OVER, verdict): "over" for verdict in Verdict},
}


def _over(*pairs: Pair) -> dict[Pair, Pair]:
    return {pair: Pair(Phase.OVER, pair.verdict) for pair in pairs}


# What each event makes of which pair. No other step is known.
STEPS: dict[Event, dict[Pair, Pair]] = {
    Event.TURN: {QUEUED: JOINING},
    Event.BLOCKED: {JOINING: WAITING},
    Event.GRANTED: {JOINING: GRANTED, WAITING: GRANTED},
    Event.REFUSED: {JOINING: REFUSED, WAITING: REFUSED},
    Event.LOST: {GRANTED: WAITING},
    Event.UNSERVED: {JOINING: IN_SLOT, GRANTED: IN_SLOT},
    Event.SUBMITTED: {GRANTED: RUN_GRANTED, REFUSED: RUN_REFUSED, IN_SLOT: RUN_IN_SLOT},
    Event.NOT_CLAIMED: {RUN_GRANTED: RUN_IN_SLOT},
    Event.CLAIMED: {RUN_GRANTED: CLAIMED},
    Event.KILLED: {CLAIMED: KILLED},
    # The word about the end may come before the main process has read the claim.
    Event.BODY_ENDED: {RUN_GRANTED: RELEASED, CLAIMED: RELEASED},
    # Up to the hand-over, and out of the queue of threads or greenlets.
    Event.GIVEN_BACK: _over(QUEUED, JOINING, WAITING, *_DECIDED, *_SUBMITTED),
    Event.ENDED: _over(QUEUED, JOINING, WAITING, *_DECIDED, *_SUBMITTED, CLAIMED, KILLED, RELEASED),
}

# An attempt may change them.
ASKING = frozenset({Phase.JOINING, Phase.WAITING, Phase.DECIDED})
BEFORE_DECISION = frozenset({Phase.QUEUED, Phase.JOINING, Phase.WAITING})
IN_POOL = frozenset({Phase.SUBMITTED, Phase.CLAIMED, Phase.RELEASED})
UNCLAIMED = frozenset({GRANTED, RUN_GRANTED})
# A contender has a node in the queue of the lock, or will have.
WITH_NODE = frozenset({JOINING, WAITING, GRANTED, RUN_GRANTED, CLAIMED, KILLED})


def meant(event: Event, before: Pair) -> Pair:
    """Return what ``event`` makes of a pair that it should not meet: the same as of others, so that no task is lost."""
    afters = list(STEPS[event].values())
    keeps_verdict = len({after.verdict for after in afters}) > 1
    return Pair(afters[0].phase, before.verdict if keeps_verdict else afters[0].verdict)


@cache
def effects_of(event: Event, before: Pair, after: Pair) -> tuple[Effect, ...]:
    """Return what is to be done after a step, in that order."""
    is_over = after.phase is Phase.OVER
    effects = {
        # Also if an earlier step should have done so: releasing again does nothing.
        Effect.RELEASE: after not in WITH_NODE,
        Effect.FORGET: is_over,
        Effect.SETTLE: is_over and before == JOINING,
        Effect.FAIL: is_over and before == KILLED,
        Effect.REPORT: is_over and before.phase in IN_POOL,
        Effect.GIVE_BACK: event is Event.GIVEN_BACK,
        Effect.SEEK: after.phase is Phase.DECIDED and before.phase is not Phase.DECIDED,
        # Not by the phase: what the pool has is never submitted again.
        Effect.SUBMIT: event is Event.SUBMITTED,
    }
    return tuple(effect for effect, is_due in effects.items() if is_due)
