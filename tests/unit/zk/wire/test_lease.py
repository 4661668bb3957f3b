"""What answers prove about a session's life, in a world where followers know less than they say."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_zklock.zk.session import ENOUGH, HEARTBEATS_PER_SESSION
from django_zklock.zk.wire.lease import CLOCK_SHARE, MARGIN, Lease, Sent

TIMEOUT = 12.0
LIFE = TIMEOUT * (1 - CLOCK_SHARE)
GAP = TIMEOUT * MARGIN


def read(lease: Lease, at: float, *, takes: float = 0.01) -> None:
    """Send a request that a follower answers by itself."""
    lease.answered(Sent(at), at + takes, seen_by_leader=False)


def sync(lease: Lease, at: float, *, refused: bool = False, takes: float = 0.01) -> None:
    """Send a request that the leader answers by itself."""
    lease.answered(lease.forwarded(at), at + takes, seen_by_leader=not refused)


def write(lease: Lease, at: float, *, refused: bool = False, takes: float = 0.01) -> None:
    """Send a request that a majority accepts."""
    lease.answered(lease.forwarded(at), at + takes, seen_by_leader=not refused, written=not refused)


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
    write(lease, 5.0)
    write(lease, 7.0)
    write(lease, 9.0)
    assert lease.end == -math.inf


def test_pings_alone(lease: Lease) -> None:
    """An idle session keeps few answers, and the lock after that builds on the last one that is old enough."""
    for number in range(1, 1000):
        read(lease, number * TIMEOUT / 3)
    assert len(lease._answered) <= 3
    now = 1000 * TIMEOUT / 3
    lease.forget()
    write(lease, now)
    write(lease, now + 0.1)
    assert lease.end == now - TIMEOUT / 3 + LIFE


@pytest.mark.shows("faults#a-session-moves-to-a-server-that-grants-another-timeout")
def test_connected__to_a_server_that_grants_less(lease: Lease) -> None:
    """The leader counts the lower timeout from the handshake on, whatever was proven before."""
    lease.connected(2.0, 1.0, 1.01, moved=True)
    assert lease.timeout == 2.0
    assert lease.end == 1.0 + 2.0 * (1 - CLOCK_SHARE)


@pytest.mark.shows("faults#a-session-moves-to-a-server-that-grants-another-timeout")
def test_connected__to_a_server_that_grants_more(lease: Lease) -> None:
    """A new leader gives a session the timeout of its creation, so the lower one counts."""
    lease.connected(2 * TIMEOUT, 1.0, 1.01, moved=True)
    write(lease, 1.02)
    assert lease.timeout == TIMEOUT
    assert lease.end == 1.0 + LIFE


def test_connected__in_a_new_session(lease: Lease) -> None:
    """What an earlier session was granted and has proven does not count for the next one."""
    lease.connected(2.0, 1.0, 1.01, moved=False)
    assert lease.end == 1.0 + 2.0 * (1 - CLOCK_SHARE)
    lease.connected(2 * TIMEOUT, 2.0, 2.01, moved=False)
    assert lease.timeout == 2 * TIMEOUT
    assert lease.end == 2.0 + 2 * LIFE


def test_reads_prove_nothing(lease: Lease) -> None:
    """A follower that is cut off answers reads and pings as before."""
    for second in range(1, 100):
        read(lease, float(second))
    assert lease.end == LIFE


def test_syncs_prove_nothing(lease: Lease) -> None:
    """A leader answers a sync without its followers, which may have elected another one."""
    for second in range(1, 100):
        sync(lease, float(second))
    assert lease.end == LIFE


@pytest.mark.parametrize("first", [sync, write])
def test_proof__for_what_was_answered_before(lease: Lease, first: Callable[[Lease, float], None]) -> None:
    """A write behind a request to the leader renews the lease from what was answered a margin before that request."""
    read(lease, 2.0)
    first(lease, 2.02 + GAP)
    assert lease.end == LIFE
    write(lease, 2.04 + GAP)
    assert lease.end == 2.0 + LIFE


def test_proof__not_by_a_second_sync(lease: Lease) -> None:
    """The leader may have lost its majority when it answers the second request, unless that is a write."""
    read(lease, 2.0)
    sync(lease, 2.02 + GAP)
    sync(lease, 2.04 + GAP)
    assert lease.end == LIFE


def test_proof__both_sent_together(lease: Lease) -> None:
    """A write that leaves together with the request before it proves nothing."""
    read(lease, 2.0)
    first, second = lease.forwarded(2.1 + GAP), lease.forwarded(2.1 + GAP)
    lease.answered(first, 6.0, seen_by_leader=True)
    lease.answered(second, 6.0, seen_by_leader=True, written=True)
    assert lease.end == LIFE


def test_proof__answered_too_late(lease: Lease) -> None:
    """What was answered less than a margin before the first request may not have been reported."""
    read(lease, 2.0, takes=0.5)
    sync(lease, 2.4 + GAP)
    write(lease, 2.5 + GAP)
    assert lease.end == LIFE


@pytest.mark.parametrize("refused", [0, 1])
def test_proof__one_refused(lease: Lease, refused: int) -> None:
    """A refusal may be the follower's own."""
    read(lease, 2.0)
    sync(lease, 3.0 + GAP, refused=refused == 0)
    write(lease, 4.0 + GAP, refused=refused == 1)
    assert lease.end == LIFE


def test_proofs__not_across_connections(lease: Lease) -> None:
    """The reports of one server say nothing about the order of another's."""
    read(lease, 1.0)
    sync(lease, 5.0)
    lease.connected(TIMEOUT, 5.5, 5.6, moved=True)
    write(lease, 5.7)
    # By the handshake, and not by what was answered before it.
    assert lease.end == 5.5 + LIFE
    write(lease, 5.8)
    assert lease.end == 5.5 + LIFE


@pytest.mark.shows("faults#servers-are-cut-off-from-each-other")
def test_moved__by_a_leader_without_followers(lease: Lease) -> None:
    """A leader that has lost its followers still lets a session come back, and cannot make a new one."""
    lease.connected(TIMEOUT, 8.0, 8.1, moved=True)
    assert (lease.end, lease.handshake is None) == (LIFE, False)
    lease.connected(TIMEOUT, 8.5, 8.6, moved=False)
    assert (lease.end, lease.handshake is None) == (8.5 + LIFE, True)


def test_moved__written(lease: Lease) -> None:
    """A write that a majority has accepted proves that it was there when the session came back."""
    lease.connected(TIMEOUT, 8.0, 8.1, moved=True)
    lease.answered(lease.forwarded(8.2), 8.3, seen_by_leader=True)
    lease.answered(Sent(8.2), 8.3, seen_by_leader=False)
    assert lease.end == LIFE
    lease.answered(lease.forwarded(8.4), 8.5, seen_by_leader=True, written=True)
    assert (lease.end, lease.handshake is None) == (8.0 + LIFE, True)
    # Later writes are proofs as any other.
    lease.answered(lease.forwarded(8.6), 8.7, seen_by_leader=True, written=True)
    assert lease.end == 8.0 + LIFE


def test_many_answers__few_are_kept(lease: Lease) -> None:
    """A busy connection costs no memory, and little of its lease."""
    for step in range(100_000):
        (write if step % 3 == 0 else read)(lease, step / 1000, takes=0.0005)
    assert len(lease._answered) < 30
    assert 99.9 - GAP - GAP / 8 + LIFE < lease.end < 99.999 - GAP + LIFE


def test_heartbeats__what_is_left(lease: Lease) -> None:
    """A proof with every second heartbeat keeps more than a half of the session timeout in hand."""
    proofs = 0
    for beat in range(1, 50):
        at = beat * TIMEOUT / HEARTBEATS_PER_SESSION
        left = lease.end - at
        assert left > TIMEOUT / 2
        sync(lease, at, takes=0.02)
        if left < ENOUGH * TIMEOUT:
            write(lease, at + 0.02, takes=0.1)
            assert lease.end - at > TIMEOUT * 0.8
            proofs += 1
    assert 20 <= proofs <= 25


# An ensemble in small: a leader, the follower of the client, other followers, and one-way streams between them.
# Either the leader or the follower has the client.


@dataclass
class Small:
    """Two servers' view of one session; ``tick`` and ``timeout`` as configured, all times given by the test.

    Each of the streams between leader and follower may be cut from some moment on; ``abandoned`` is when the others
    follow another leader, to which the sessions of the old one are as new. What they said before may arrive later, so
    the old leader goes on as if nothing had happened; but no write of it finds a majority.
    """

    tick: float
    timeout: float
    delay: float
    cut_up: float
    cut_down: float
    abandoned: float
    touched: bool = False
    last_touch: float = 0.0
    # What is under way between the two, by the time of its arrival.
    up: deque[tuple[float, str]] = field(default_factory=deque)
    down: deque[tuple[float, str]] = field(default_factory=deque)
    next_ping: float = 0.0
    answers: list[str] = field(default_factory=list)

    @property
    def session_end(self) -> float:
        """Return when the session can be ended first, by what has happened until now."""
        return min(self.last_touch, self.abandoned) + self.timeout

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
                elif packet.startswith("sync") or (packet.startswith("write") and at < self.abandoned):
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

    def ask_leader(self, now: float, packet: str) -> None:
        """Take a request of a client whose server leads: it answers at once what needs no majority."""
        self.last_touch = now
        if packet.startswith("sync") or now < self.abandoned:
            self.answers.append(packet)

    def ask_follower(self, now: float, packet: str) -> None:
        """Take a request of a client whose server follows."""
        self.touched = True
        self.send_up(now, packet)


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "faults#servers-are-cut-off-from-each-other")
@given(
    leads=st.booleans(),
    # An eighth of the session timeout is at least half a tick.
    tick=st.one_of(st.just(TIMEOUT / 4), st.floats(0.2, TIMEOUT / 4)),
    delay=st.one_of(st.just(0.0), st.floats(0.0, 2.0)),
    cut_up=st.floats(0.0, 60.0),
    cut_down=st.floats(0.0, 60.0),
    abandoned=st.floats(0.0, 80.0),
    phase=st.floats(0.0, 1.0),
    beat=st.floats(0.2, 4.0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_never_longer_than_the_leader_counts(
    leads: bool,
    tick: float,
    delay: float,
    cut_up: float,
    cut_down: float,
    abandoned: float,
    phase: float,
    beat: float,
    seed: int,
) -> None:
    """The lease ends before the session can, whichever stream is cut and whichever server leads.

    It does so whenever others follow another one. A leader that the others have left still answers all that it can
    answer by itself.
    """
    world = Small(tick, TIMEOUT, delay, cut_up, cut_down, abandoned, next_ping=phase * tick / 2)
    ask = world.ask_leader if leads else world.ask_follower
    lease = Lease()
    lease.connected(TIMEOUT, 0.0, 0.0, moved=False)
    chance = random.Random(seed)
    pending: dict[str, Sent] = {}
    now, next_beat, number = 0.0, 0.0, 0
    while now < 90.0:
        now += chance.uniform(0.0, 0.3)
        world.advance(now)
        answers, world.answers = world.answers, []
        for name in answers:
            lease.answered(pending.pop(name), now, seen_by_leader=True, written=name.startswith("write"))
            if "behind" not in name:
                second = f"{chance.choice(['sync', 'write'])} behind {name}"
                pending[second] = lease.forwarded(now)
                ask(now, second)
        if now >= next_beat:
            next_beat = now + beat
            number += 1
            pending[f"sync {number}"] = lease.forwarded(now)
            ask(now, f"sync {number}")
        if chance.random() < 0.3 and not pending:
            # A read, which each server answers by itself. One session's answers come in order.
            world.touched = True
            world.last_touch = now if leads else world.last_touch
            lease.answered(Sent(now), now, seen_by_leader=False)
        assert lease.end <= world.session_end
