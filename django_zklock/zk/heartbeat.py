"""What a session does at each heartbeat: show that it lives, renew the lease, and read the nodes that are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire import MAX_READS_PER_REQUEST

if TYPE_CHECKING:
    from django_zklock.zk.retries import Retries
    from django_zklock.zk.wire import KazooException, Wire

logger = DeferredLogger("django_zklock.heartbeat")

# A heartbeat comes a little later than the margin of a lease (see wire.lease) after the one before, on which its proof
# builds. A proof leaves a lease of 0.83 of the session timeout. That is enough for the heartbeat that follows too, so
# every second one is a proof, and more than a half is left when it is due.
HEARTBEATS_PER_SESSION = 7
# The share of the session timeout that a heartbeat leaves as it is. A busy process sends heartbeats late, so this is
# less than the 0.69 that are left one heartbeat after a proof.
ENOUGH = 0.66
# The share of the session timeout after which silence means a dead link. It is checked at each heartbeat, so a request
# of one heartbeat is found unanswered at the second one after it; a quarter of the timeout is left to reconnect.
MAX_SILENCE = 0.25
# Where the loss of a connection is the loss of its locks, silence is tolerated for one heartbeat more. The lease allows
# that.
STRICT_MAX_SILENCE = 0.4
# With this number of reads or more they share requests. A request costs ten times as much as a read in it.
MIN_SHARED_READS = 16
LEASE_EXPIRED = "the lease ran out"

Reply = Callable[[Any, "KazooException | None"], None]


class LeaseRenewal:
    """Renews the lease of a session by writes, where something needs it; :mod:`.wire.lease` says why.

    ``needed`` says whether something does, and ``beaten`` is called at the end of each heartbeat. Every method runs
    under the session's monitor.
    """

    def __init__(
        self,
        wire_: Wire,
        retries: Retries,
        *,
        post: Callable[[Callable[[], object]], None],
        needed: Callable[[], bool],
        beaten: Callable[[], object],
    ) -> None:
        self._wire = wire_
        self._retries = retries
        self._post = post
        self._needed = needed
        self._beaten = beaten
        # A write that is not answered yet renews the lease.
        self._is_proving = False
        # Whether the server has caught up since this connection began; None as long as that was not requested.
        self._caught_up: bool | None = None
        self._when_caught_up: list[Callable[[], object]] = []

    def reset(self) -> None:
        """Forget everything about a connection that is lost."""
        self._is_proving = False
        self._caught_up = None
        self._when_caught_up.clear()

    def beat(self) -> None:
        """Send a request that the leader sees, and behind its answer a write if the lease is needed and short.

        The first keeps the session alive, and any later write is a proof by it. So a session that only waits sends no
        writes: the one that lets it hold a lock renews its lease too.
        """
        self._wire.sync("/", self._seen)

    def _seen(self, _value: object, error: KazooException | None) -> None:
        if not self._is_done(error):
            return
        lease = self._wire.lease
        if self._needed() and lease.end - boottime() < ENOUGH * (lease.timeout or 0.0):
            self._wire.write_nothing(self._proven)
        else:
            self._beaten()

    def _proven(self, _value: object, error: KazooException | None) -> None:
        if not self._is_done(error):
            return
        if self._needed() and self._is_over:
            self._wire.drop(LEASE_EXPIRED)
        else:
            self._beaten()

    def _is_done(self, error: KazooException | None) -> bool:
        if error is not None and wire.is_temporary(error):
            self._retries.add(self.beat, error)
        return error is None

    @property
    def _is_over(self) -> bool:
        """Whether the lease is over although a write was answered.

        Then this process was stopped, and no recent answer is left to build a proof on. A new connection renews the
        lease at once, and every contender asks again on it.
        """
        return boottime() >= self._wire.lease.end

    def prove(self) -> None:
        """Send a write, whose answer renews the lease before the requests that follow it are answered."""
        if not self._is_proving:
            self._is_proving = True
            self._wire.write_nothing(self._on_proof)

    def _on_proof(self, _value: object, _error: KazooException | None) -> None:
        self._is_proving = False

    def regain(self, reply: Reply) -> None:
        """Renew a lease that has ended; if a write does not renew it, a new connection does, and there is no answer."""
        self._wire.write_nothing(partial(self._on_regained, reply))

    def _on_regained(self, reply: Reply, _value: object, error: KazooException | None) -> None:
        if error is None and self._is_over:
            self._wire.drop(LEASE_EXPIRED)
        else:
            reply(None, error)

    def catch_up(self, call: Callable[[], object] | None = None) -> None:
        """Make sure, once for each connection, that its server has a majority behind it, and renew the lease.

        Unless the server refuses that, later requests show everything that was done before the connection began;
        ``call`` is called as soon as that is so.
        """
        if self._caught_up:
            if call is not None:
                call()
            return
        if call is not None:
            self._when_caught_up.append(call)
        if self._caught_up is None:
            self._caught_up = False
            self._wire.write_nothing(self._on_caught_up)

    def _on_caught_up(self, _value: object, error: KazooException | None) -> None:
        if error is not None and wire.is_temporary(error):
            self._caught_up = None
            self._retries.add(self.catch_up, error)
            return
        self._caught_up = True
        calls, self._when_caught_up = self._when_caught_up, []
        for call in calls:
            self._post(call)


class HeartbeatReads:
    """The reads of all listeners at one heartbeat, in few requests. Methods are called under the session's monitor."""

    def __init__(self, wire_: Wire) -> None:
        self._wire = wire_
        self._reads: list[tuple[str, Reply]] = []

    def add(self, path: str, reply: Reply) -> None:
        """Read the node at ``path``; the reply is that of :meth:`~django_zklock.zk.wire.Wire.get`."""
        self._reads.append((path, reply))

    def __len__(self) -> int:
        return len(self._reads)

    def flush(self) -> None:
        """Send the requests."""
        reads, self._reads = self._reads, []
        if len(reads) < MIN_SHARED_READS:
            for path, reply in reads:
                self._wire.get(path, reply)
            return
        for start in range(0, len(reads), MAX_READS_PER_REQUEST):
            chunk = reads[start : start + MAX_READS_PER_REQUEST]
            self._wire.read_many([wire.Read(path) for path, _reply in chunk], partial(self._answered, chunk))

    def _answered(
        self, reads: Sequence[tuple[str, Reply]], outcomes: list[Any] | None, error: KazooException | None
    ) -> None:
        if outcomes is None:
            # The next heartbeat reads them again.
            logger.warning("event=unverified nodes=%d error=%r", len(reads), error)
            return
        for (_path, reply), outcome in zip(reads, outcomes, strict=True):
            refusal = wire.NoNodeError() if outcome is None else outcome
            refusal = refusal if isinstance(refusal, wire.KazooException) else None
            # An error in one reply is logged there, so that the others are called too.
            self._wire.notify(reply, outcome if refusal is None else None, refusal)
