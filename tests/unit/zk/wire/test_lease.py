"""What answers prove about a session's life, in a world where followers know less than they say."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_zklock.zk.wire.lease import CLOCK_SHARE, MARGIN, Lease, Sent

TIMEOUT = 12.0
LIFE = TIMEOUT * (1 - CLOCK_SHARE)
QUARTER = TIMEOUT * MARGIN


def exchange(lease: Lease, at: float, *, forwarded: bool = True, proof: bool = True, takes: float = 0.01) -> None:
    """Send one request and have it answered."""
    sent = lease.forwarded(at) if forwarded else Sent(at)
    lease.answered(sent, at + takes, proof=proof and forwarded)


@pytest.fixture
def lease() -> Lease:
    """Return a lease whose connection was made at 0."""
    lease = Lease()
    lease.connected(TIMEOUT, 0.0, 0.0, moved=False)
    return lease


def test_connected(lease: Lease) -> None:
    """The handshake begins the lease."""
    assert lease.end == LIFE


def test_nothing_yet() -> None:
    """Without a session there is no lease, whatever is answered."""
    lease = Lease()
    exchange(lease, 5.0)
    exchange(lease, 6.0)
    assert lease.end == -math.inf


def test_reads_prove_nothing(lease: Lease) -> None:
    """A follower that is cut off answers reads and pings as before."""
    for second in range(1, 100):
        exchange(lease, float(second), forwarded=False)
    assert lease.end == LIFE


def test_two_proofs__for_what_was_answered_before(lease: Lease) -> None:
    """The second of two requests to the leader renews the lease from what was answered a margin before the first."""
    exchange(lease, 2.0, forwarded=False)
    exchange(lease, 2.02 + QUARTER)
    assert lease.end == LIFE
    exchange(lease, 2.04 + QUARTER)
    assert lease.end == 2.0 + LIFE


def test_two_proofs__the_second_too_early(lease: Lease) -> None:
    """Two requests that leave together are one proof."""
    exchange(lease, 2.0, forwarded=False)
    first, second = lease.forwarded(2.1 + QUARTER), lease.forwarded(2.1 + QUARTER)
    lease.answered(first, 6.0, proof=True)
    lease.answered(second, 6.0, proof=True)
    assert lease.end == LIFE


def test_two_proofs__answered_too_late(lease: Lease) -> None:
    """What was answered less than a margin before the first proof may not have been reported."""
    exchange(lease, 2.0, forwarded=False, takes=0.5)
    exchange(lease, 2.4 + QUARTER)
    exchange(lease, 2.5 + QUARTER)
    assert lease.end == LIFE


@pytest.mark.parametrize("refused", [0, 1])
def test_two_proofs__one_refused(lease: Lease, refused: int) -> None:
    """A refusal may be the follower's own."""
    exchange(lease, 2.0, forwarded=False)
    exchange(lease, 3.0 + QUARTER, proof=refused != 0)
    exchange(lease, 4.0 + QUARTER, proof=refused != 1)
    assert lease.end == LIFE


def test_proofs__not_across_connections(lease: Lease) -> None:
    """The reports of one server say nothing about the order of another's."""
    exchange(lease, 1.0, forwarded=False)
    exchange(lease, 5.0)
    lease.connected(TIMEOUT, 5.5, 5.6, moved=True)
    exchange(lease, 5.7)
    assert lease.end == LIFE


def test_moved__by_a_leader_without_followers(lease: Lease) -> None:
    """A leader that has lost its followers still lets a session come back, and cannot make a new one."""
    lease.connected(TIMEOUT, 8.0, 8.1, moved=True)
    assert (lease.end, lease.wants_write) == (LIFE, True)
    lease.connected(TIMEOUT, 8.5, 8.6, moved=False)
    assert (lease.end, lease.wants_write) == (8.5 + LIFE, False)


def test_moved__written(lease: Lease) -> None:
    """A write that a majority has accepted proves that it was there when the session came back."""
    lease.connected(TIMEOUT, 8.0, 8.1, moved=True)
    lease.answered(lease.forwarded(8.2), 8.3, proof=True)
    lease.answered(Sent(8.2), 8.3, proof=False)
    assert lease.end == LIFE
    lease.answered(lease.forwarded(8.4), 8.5, proof=True, written=True)
    assert (lease.end, lease.wants_write) == (8.0 + LIFE, False)
    # Later writes are proofs as any other.
    lease.answered(lease.forwarded(8.6), 8.7, proof=True, written=True)
    assert lease.end == 8.0 + LIFE


def test_many_answers__few_are_kept(lease: Lease) -> None:
    """A busy connection costs no memory, and little of its lease."""
    for step in range(100_000):
        exchange(lease, step / 1000, forwarded=step % 3 == 0, takes=0.0005)
    assert len(lease._answered) < 30
    assert 99.9 - QUARTER - QUARTER / 8 + LIFE < lease.end < 99.999 - QUARTER + LIFE


def test_heartbeats__what_is_left(lease: Lease) -> None:
    """Pairs of proofs, a seventh of the session timeout apart, keep more than a half of it in hand."""
    for beat in range(1, 50):
        at = beat * TIMEOUT / 7
        assert lease.end - at > TIMEOUT * 0.55
        exchange(lease, at, takes=0.1)
        exchange(lease, at + 0.1, takes=0.1)


# An ensemble in small: one leader, one follower, and two one-way streams between them.


@dataclass
class Small:
    """The leader's view of one session, as far as its follower reports it; ``tick`` and ``timeout`` as configured.

    Time is given by the test, and each of the two streams may be cut from some moment on.
    """

    tick: float
    timeout: float
    delay: float
    cut_up: float
    cut_down: float
    touched: bool = False
    last_touch: float = 0.0
    # What is under way between the two, by the time of its arrival.
    up: deque[tuple[float, str]] = field(default_factory=deque)
    down: deque[tuple[float, str]] = field(default_factory=deque)
    next_ping: float = 0.0
    answers: list[str] = field(default_factory=list)

    def advance(self, now: float) -> None:
        """Let everything happen that is due by ``now``, in order."""
        while True:
            events = [(self.next_ping, "ping")]
            events += [(self.up[0][0], "up")] if self.up else []
            events += [(self.down[0][0], "down")] if self.down else []
            at, what = min(events)
            if at > now:
                return
            if what == "ping":
                self.send_down(at, "ping")
                self.next_ping = at + self.tick / 2
            elif what == "up":
                packet = self.up.popleft()[1]
                if packet == "report":
                    self.last_touch = at
                elif packet != "nothing":
                    self.send_down(at, packet)
            else:
                packet = self.down.popleft()[1]
                if packet == "ping":
                    self.send_up(at, "report" if self.touched else "nothing")
                    self.touched = False
                else:
                    self.answers.append(packet)

    def send_up(self, at: float, packet: str) -> None:
        if at < self.cut_up:
            self.up.append((at + self.delay, packet))

    def send_down(self, at: float, packet: str) -> None:
        if at < self.cut_down:
            self.down.append((at + self.delay, packet))


@given(
    tick=st.floats(0.2, TIMEOUT / 2),
    delay=st.floats(0.0, 2.0),
    cut_up=st.floats(0.0, 60.0),
    cut_down=st.floats(0.0, 60.0),
    phase=st.floats(0.0, 1.0),
    beat=st.floats(0.2, 4.0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=400, deadline=None)
def test_never_longer_than_the_leader_counts(
    tick: float, delay: float, cut_up: float, cut_down: float, phase: float, beat: float, seed: int
) -> None:
    """Whichever stream between follower and leader is cut, and when: the lease ends before the session can."""
    world = Small(tick, TIMEOUT, delay, cut_up, cut_down, next_ping=phase * tick / 2)
    lease = Lease()
    lease.connected(TIMEOUT, 0.0, 0.0, moved=False)
    chance = random.Random(seed)
    pending: dict[str, Sent] = {}
    now, next_beat, number = 0.0, 0.0, 0
    while now < 70.0:
        now += chance.uniform(0.0, 0.3)
        world.advance(now)
        for name in world.answers:
            lease.answered(pending.pop(name), now, proof=True)
            if name.startswith("first"):
                second = name.replace("first", "second")
                pending[second] = lease.forwarded(now)
                world.touched = True
                world.send_up(now, second)
        world.answers.clear()
        if now >= next_beat:
            next_beat = now + beat
            number += 1
            pending[f"first{number}"] = lease.forwarded(now)
            world.touched = True
            world.send_up(now, f"first{number}")
        if chance.random() < 0.3 and not pending:
            # A read, which the follower answers by itself. One session's answers come in order.
            world.touched = True
            lease.answered(Sent(now), now, proof=False)
        assert lease.end <= world.last_touch + TIMEOUT
