"""What a session does at each heartbeat: renew the lease, and read the nodes that are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.wire import MAX_READS_PER_REQUEST

if TYPE_CHECKING:
    from django_zklock.zk.retries import Retries
    from django_zklock.zk.wire import KazooException, Wire

logger = DeferredLogger("django_zklock.heartbeat")

# Two heartbeats take a little longer than the margin of a lease (see wire.lease), as each builds on the one before the
# last. A heartbeat leaves a lease of 0.69 of the session timeout, and 0.55 are left when the next is due.
HEARTBEATS_PER_SESSION = 7
# Without listeners every other heartbeat renews the lease, so that the next lock needs no request for it.
IDLE_HEARTBEATS = 2
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
    """Renews the lease of a session by requests that the leader answers; :mod:`.wire.lease` says why.

    Every method runs under the session's monitor.
    """

    def __init__(
        self,
        wire_: Wire,
        retries: Retries,
        *,
        post: Callable[[Callable[[], object]], None],
        renewed: Callable[[], object],
    ) -> None:
        self._wire = wire_
        self._retries = retries
        self._post = post
        self._renewed = renewed
        # Grows with each connection, which makes replies on earlier ones void.
        self._generation = 0
        # Whether the server has caught up since this connection began; None as long as that was not requested.
        self._caught_up: bool | None = None
        self._when_caught_up: list[Callable[[], object]] = []

    def reset(self) -> None:
        """Forget everything about a connection that is lost."""
        self._generation += 1
        self._caught_up = None
        self._when_caught_up.clear()

    def renew(self) -> None:
        """Send two requests, the second when the first is answered, and call ``renewed`` after the second answer."""
        self._wire.sync("/", partial(self._half_renewed, self._generation))

    def _half_renewed(self, asked: int, _value: object, error: KazooException | None) -> None:
        if self._is_done(asked, error):
            self._wire.sync("/", partial(self._on_renewed, asked))

    def _on_renewed(self, asked: int, _value: object, error: KazooException | None) -> None:
        if self._is_done(asked, error):
            self._renewed()

    def _is_done(self, asked: int, error: KazooException | None) -> bool:
        if asked == self._generation and error is not None and wire.is_temporary(error):
            self._retries.add(self.renew, error)
        return asked == self._generation and error is None

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
            self._wire.write_nothing(partial(self._on_caught_up, self._generation))

    def _on_caught_up(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._generation:
            return
        if error is not None and wire.is_temporary(error):
            self._caught_up = None
            self._retries.add(self.catch_up, error)
            return
        self._caught_up = True
        calls, self._when_caught_up = self._when_caught_up, []
        for call in calls:
            self._post(call)

    def regain(self, again: Callable[[], object] = lambda: None) -> None:
        """Renew a lease that has expired.

        If this connection has not renewed it yet, it does, and ``again`` is called. Otherwise the connection is
        replaced by another one, on which every contender asks again.
        """
        if self._wire.lease.wants_write and not self._caught_up:
            self.catch_up(again)
        else:
            self._wire.drop(LEASE_EXPIRED)


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
