"""The lease of a session: until when a client may believe that the session lives, and the proof of it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

# Of the session timeout, the margin between an answer and the request that makes it a proof.
MARGIN = 1 / 8
# The maximum drift between the clocks of client and leader over one session timeout, as a share of it.
CLOCK_SHARE = 1 / 50
# The resolution of the recorded times of answers, as a share of the margin.
_RESOLUTION = 1 / 16
NEVER = float("-inf")


class Sent(NamedTuple):
    """One request under way: when it was sent, and what its answer proves, in the words of :class:`Lease`."""

    at: float
    # A, if this request is P1: when the newest request was sent that was answered a margin before this one was sent.
    answered_a_margin_before: float = NEVER
    # A, if this request is P2: the latest that an answer to a P1 had proven to be known when this one was sent.
    known_to_leader: float = NEVER


class Lease:
    """How long a session is certain to live at the server, proven by requests and their answers.

    Only the leader of an ensemble ends sessions. A follower answers reads and pings itself. It reports the sessions
    that have sent something in its answer to the leader's next ping, which comes every half tick. So the answer to a
    read proves nothing about the leader, and a follower that is cut off from the leader still answers for ``syncLimit``
    ticks.

    Nor does an answer of the leader prove that it still leads. It answers a ``sync`` alone, without its followers. It
    may notice late that they have left it: what they sent before may arrive at any time, as TCP sends it again. They
    may have elected another leader by then. Only a write needs a majority.

    The proof is this. Let P1 be a request that the leader must see (``sync`` or a write), and P2 a write that is sent
    over the same connection after the answer to P1 arrived. Let the answer to some request A arrive at least ``margin``
    before P1 was sent. The requests that a follower forwards and its answers to pings share one ordered stream, and so
    do the pings and answers in the other direction. The leader handled P1 after it was sent. Within the ``margin``
    before that, the leader sent a ping. The follower received the ping after A and before the answer to P1. Its answer
    to the ping, which reports the session, reached the leader before P2. So when P2 is answered, that leader counts the
    session timeout from the sending of A or later. And a majority has accepted P2 from that leader after P2 was sent.
    So every later leader began after that, and a leader that begins gives each session the whole timeout
    (``SessionTrackerImpl``). So the session lives until the timeout after A, at any leader.

    A new session is created by a majority of the servers; its timeout counts from the sending of the handshake. When a
    session moves to a new connection, the server tells its leader, but that leader may have lost its followers: a
    leader that was stopped for a while still accepts sessions for a moment when it goes on. So the handshake counts
    only after a write over that connection is answered: then a majority has committed it.

    Servers may grant different timeouts, as after a change of their configuration. The leader then gives the session
    that of the server to which it is connected, and a new leader that of its creation (``touchSession``, ``Leader``).
    So the lowest one that was granted to the session counts. If the session moves to a server that grants less, the
    leader counts that from the handshake on, whatever was proven before.

    ``margin`` must cover the time between two pings of the leader, which is half a tick (``Leader.lead``, ZooKeeper 3.6
    to 3.9), and some delay. A client does not know the length of a tick. Where the timeout is at least six ticks, an
    eighth of it is three quarters of a tick. Behind an observer master (``observerMasterPort``) a report takes two
    pings, so the timeout must be twelve ticks.

    Updated by the connection's thread; times are in seconds of the boot-time clock. ``timeout`` is the lowest timeout
    that was granted to the session, ``None`` before the first session. Any thread may read ``end``.
    """

    def __init__(self) -> None:
        self.timeout: float | None = None
        self.end = NEVER
        self._margin = 0.0
        # The times at which answers arrived on this connection and their requests were sent, oldest first.
        self._answered: deque[tuple[float, float]] = deque()
        # The latest A that the leader knows of: an answer to a P1 on this connection proves it.
        self._known_to_leader = NEVER
        # When the handshake of a session that has moved was sent, as long as it does not count: it does after a write.
        self.handshake: float | None = None

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
        self._known_to_leader = NEVER
        self.handshake = sent if moved else None

    def forget(self) -> None:
        """End the lease, and build no new one on what was proven before."""
        self.end = self._known_to_leader = NEVER
        self.handshake = None

    def forwarded(self, now: float) -> Sent:
        """Return the record of a request, sent now, that the leader must see."""
        answers, moment = self._answered, now - self._margin
        while len(answers) > 1 and answers[1][0] <= moment:
            answers.popleft()
        answered = answers[0][1] if answers and answers[0][0] <= moment else NEVER
        return Sent(now, answered, self._known_to_leader)

    def answered(self, sent: Sent, now: float, *, seen_by_leader: bool, written: bool = False) -> None:
        """Record an answer.

        ``seen_by_leader`` says that the leader has seen the request, if it is of a kind that must reach it; ``written``
        that a majority has committed it.
        """
        answers = self._answered
        if not answers or now - answers[-1][0] >= self._margin * _RESOLUTION:
            answers.append((now, sent.at))
            # An idle session has the answers to pings alone, for days.
            while len(answers) > 1 and answers[1][0] <= now - self._margin:
                answers.popleft()
        if seen_by_leader:
            self._known_to_leader = max(self._known_to_leader, sent.answered_a_margin_before)
        if written and self.timeout is not None:
            since = sent.known_to_leader if self.handshake is None else max(sent.known_to_leader, self.handshake)
            self.handshake = None
            self.end = max(self.end, since + self.timeout * (1 - CLOCK_SHARE))
