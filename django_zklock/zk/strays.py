"""Nodes that only the server of this connection has, and how a session finds that it waits behind one.

A leader that has lost its majority writes a node, and no other server confirms it. Some servers keep what they have
written as such a leader (ZOOKEEPER-4712). The node is then a stray: it exists at this server alone, and no client can
delete it. The contenders that are connected to this server wait behind it for ever, while those at other servers pass.
An operator sees a queue without a holder, and ``break`` finds no node.

The proof that a node is a stray. A transaction asks the leader whether the node exists, and the leader says no. The
server of this connection gives that answer in the order of all transactions: by then it has applied whatever has
deleted the node elsewhere. It is read after that, and is still there.

That costs a write, so it is done for few nodes, and late: for what blocks a session's first waiter in a queue, when
that has not changed for a session timeout, and once on each connection. A node that the leader knows is no stray, and
its deletion will come. The other waiters of the session are behind the first one. A try asks too, if it finds a lock
taken by the same nodes as a session timeout ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import wire
from django_zklock.zk.wire import MAX_READS_PER_REQUEST

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException, WirePort

# A queue is forgotten when so many locks were found taken.
MAX_TAKEN = 10_000
# After a connection that leads to the same server again, as through one address, the next time comes later: at most
# after as many session timeouts.
MAX_TIMEOUTS = 64


@dataclass(slots=True)
class _Blockage:
    """The nodes that block a queue, since when, and whether the leader was asked about them."""

    nodes: tuple[str, ...]
    since: float
    is_asked: bool = False


class Strays:
    """What blocks the contenders of one session on this connection.

    Every method runs under the session's monitor. ``boottime`` is the clock of leases. ``found`` is called with nodes,
    of which one is a stray, and ``retry`` makes a call after a pause because of a refusal that passes.
    """

    def __init__(
        self,
        wire: WirePort,
        boottime: Callable[[], float],
        *,
        found: Callable[[Sequence[str]], None],
        retry: Callable[[Callable[[], object], KazooException], None],
    ) -> None:
        self._wire = wire
        self._boottime = boottime
        self._found = found
        self._retry = retry
        # By the path of the queue: what blocks the first waiter, and what a lock that was found taken is taken by.
        self._waits: dict[str, _Blockage] = {}
        self._taken: dict[str, _Blockage] = {}
        # The server of this connection has a stray.
        self.is_found = False
        # The server that had a stray last, and how many session timeouts a blockage must last.
        self._server: str | None = None
        self._timeouts = 1

    def disconnected(self) -> None:
        """The next server is another one, or knows more."""
        self._waits, self._taken = {}, {}
        self.is_found = False

    def check(self, waits: Iterable[tuple[str, tuple[str, ...]]], timeout: float) -> None:
        """Ask about what blocks the first waiter of each queue, where that has not changed for long; at heartbeats."""
        before, self._waits = self._waits, {}
        due: list[str] = []
        for queue, nodes in waits:
            self._waits[queue] = wait = self._same(before.get(queue), nodes)
            due += self._if_due(wait, timeout)
        self._ask(due)

    def taken(self, queue: str, nodes: tuple[str, ...], timeout: float) -> None:
        """Note that a lock is taken by ``nodes``; ask about them if it was so a session timeout ago."""
        if len(self._taken) >= MAX_TAKEN:
            self._taken.clear()
        self._taken[queue] = taken = self._same(self._taken.get(queue), nodes)
        self._ask(self._if_due(taken, timeout))

    def _same(self, known: _Blockage | None, nodes: tuple[str, ...]) -> _Blockage:
        return known if known is not None and known.nodes == nodes else _Blockage(nodes, self._boottime())

    def _if_due(self, blockage: _Blockage, timeout: float) -> tuple[str, ...]:
        if blockage.is_asked or self._boottime() < blockage.since + self._timeouts * timeout:
            return ()
        blockage.is_asked = True
        return blockage.nodes

    def _ask(self, nodes: Sequence[str]) -> None:
        for start in range(0, len(nodes), MAX_READS_PER_REQUEST):
            chunk = nodes[start : start + MAX_READS_PER_REQUEST]
            self._wire.confirm(chunk, partial(self._confirmed, chunk))

    def _confirmed(self, nodes: Sequence[str], _value: object, error: KazooException | None) -> None:
        if error is None:
            return
        if wire.is_temporary(error):
            self._retry(partial(self._ask, nodes), error)
            return
        # The names of children are the shortest answer that tells whether a node is there; it has none.
        reads = [wire.Read(node, children=True) for node in nodes]
        self._wire.read_many(reads, partial(self._read, nodes, is_missing=isinstance(error, wire.NoNodeError)))

    def _read(self, nodes: Sequence[str], outcomes: list[Any] | None, error: Any, *, is_missing: bool) -> None:
        if outcomes is None:
            if wire.is_temporary(error):
                self._retry(partial(self._ask, nodes), error)
            return
        there = [node for node, outcome in zip(nodes, outcomes, strict=True) if isinstance(outcome, list)]
        if len(there) < len(nodes):
            # Some were deleted meanwhile, or may not be read. The transaction says nothing about the others.
            self._ask(there)
        elif is_missing:
            server = self._wire.peer
            self._timeouts = min(2 * self._timeouts, MAX_TIMEOUTS) if server == self._server else 1
            self._server = server
            self.is_found = True
            self._found(nodes)
