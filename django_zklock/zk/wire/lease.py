"""The lease: how long a session is certain to live at the server, proven by requests and their answers.

Only the leader of an ensemble ends sessions. A follower answers reads and pings itself. It reports the sessions that
have sent something in its answer to the leader's next ping, which comes every half tick. So the answer to a read proves
nothing about the leader, and a follower that is cut off from the leader still answers for ``syncLimit`` ticks.

Nor does an answer of the leader prove that it still leads. It answers a ``sync`` alone, without its followers. It may
notice late that they have left it: what they sent before may arrive at any time, as TCP sends it again. They may have
elected another leader by then. Only a write needs a majority.

The proof is this. Let P1 be a request that the leader must see (``sync`` or a write), and P2 a write that is sent over
the same connection after the answer to P1 arrived. Let the answer to some request A arrive at least ``margin`` before
P1 was sent. The requests that a follower forwards and its answers to pings share one ordered stream, and so do the
pings and answers in the other direction. The leader handled P1 after it was sent. Within the ``margin`` before that,
the leader sent a ping. The follower received the ping after A and before the answer to P1. Its answer to the ping,
which reports the session, reached the leader before P2. So when P2 is answered, that leader counts the session timeout
from the sending of A or later. And a majority has accepted P2 from that leader after P2 was sent. So every later leader
began after that, and a leader that begins gives each session the whole timeout (``SessionTrackerImpl``). So the session
lives until the timeout after A, at any leader.

A new session is created by a majority of the servers; its timeout counts from the sending of the handshake. When a
session moves to a new connection, the server tells its leader, but that leader may have lost its followers: a leader
that was stopped for a while still accepts sessions for a moment when it goes on. So the handshake counts only after a
write over that connection is answered: then a majority has committed it.

Servers may grant different timeouts, as after a change of their configuration. The leader then gives the session that
of the server to which it is connected, and a new leader that of its creation (``touchSession``, ``Leader``). So the
lowest one that was granted to the session counts. If the session moves to a server that grants less, the leader counts
that from the handshake on, whatever was proven before.

``margin`` must cover the time between two pings of the leader, which is half a tick (``Leader.lead``, ZooKeeper 3.6 to
3.9), and some delay. A client does not know the length of a tick. Where the timeout is at least six ticks, an eighth of
it is three quarters of a tick. Behind an observer master (``observerMasterPort``) a report takes two pings, so the
timeout must be twelve ticks.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MARGIN = 1 / 8
# The maximum drift between the clocks of client and leader over one session timeout, as a share of it.
CLOCK_SHARE = 1 / 50
# The resolution of the recorded times of answers, as a share of the margin.
_RESOLUTION = 1 / 16
NEVER = float("-inf")


class Sent(NamedTuple):
    """One request under way: when it was sent, and what its answer proves if it is a write or a ``sync``."""

    at: float
    # The sending time of the newest request that was answered a margin before this one was sent.
    before: float = NEVER
    # The latest `before` of the requests to the leader that were answered before this one was sent.
    proves: float = NEVER


class Lease:
    """The lease of a session, updated by the connection's thread; times are in seconds of the boot-time clock.

    ``timeout`` is the lowest timeout that was granted to the session, ``None`` before the first session. Any thread may
    read ``end``.
    """

    def __init__(self) -> None:
        self.timeout: float | None = None
        self.end = NEVER
        self._margin = 0.0
        # The times at which answers arrived on this connection and their requests were sent, oldest first.
        self._answered: deque[tuple[float, float]] = deque()
        self._first = NEVER
        # The sending time of the handshake while it does not count yet.
        self._handshake: float | None = None

    def connected(self, timeout: float, sent: float, now: float, *, moved: bool) -> None:
        """Start a connection whose handshake was sent at ``sent``; ``moved`` if the session had a connection before.

        The proof of an earlier connection stays valid, as far as the server grants that time.
        """
        self.timeout = timeout if self.timeout is None or not moved else min(timeout, self.timeout)
        self._margin = self.timeout * MARGIN
        granted = sent + timeout * (1 - CLOCK_SHARE)
        self.end = min(self.end, granted) if moved else granted
        self._answered.clear()
        self._answered.append((now, sent))
        self._first = NEVER
        self._handshake = sent if moved else None

    @property
    def wants_write(self) -> bool:
        """Whether the session has moved to a new connection, whose handshake counts only after a write."""
        return self._handshake is not None

    def forwarded(self, now: float) -> Sent:
        """Return the record of a request, sent now, that the leader must see."""
        answers, moment = self._answered, now - self._margin
        while len(answers) > 1 and answers[1][0] <= moment:
            answers.popleft()
        before = answers[0][1] if answers and answers[0][0] <= moment else NEVER
        return Sent(now, before, self._first)

    def answered(self, sent: Sent, now: float, *, proof: bool, written: bool = False) -> None:
        """Record an answer.

        ``proof`` means that the leader has seen the request, ``written`` that a majority has committed it.
        """
        answers = self._answered
        if not answers or now - answers[-1][0] >= self._margin * _RESOLUTION:
            answers.append((now, sent.at))
        if proof:
            self._first = max(self._first, sent.before)
        if written and self.timeout is not None:
            since = sent.proves if self._handshake is None else max(sent.proves, self._handshake)
            self._handshake = None
            self.end = max(self.end, since + self.timeout * (1 - CLOCK_SHARE))
