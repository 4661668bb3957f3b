"""Coalescing against a model: whatever waits, gives up or dies, each skipped call is followed by a run of its function.

Two functions of one kind, readers and a semaphore share a key with plain blocks. Calls with and without a timeout,
deaths with a second delivery, breaks, lost sessions and lost replies come in an order that chance decides.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from kazoo.exceptions import NoNodeError

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, Rule, name_prefix, new_guid, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import LONG_SESSION, wait_until
from tests.toolbox.zookeeper.observer import Observer

# Two of one kind, and of each other kind one.
FUNCTIONS: dict[str, Rule] = {"a": EXCLUSIVE, "b": EXCLUSIVE, "reads": READ, "shares": semaphore(2)}
POOLS = 3
# So short that no later call makes up for one that was lost.
ROUNDS, STEPS = 30, 25


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Return a server of the test's own."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def operator(server: ZooKeeperServer) -> Iterator[Observer]:
    with contextlib.closing(Observer(server.hosts)) as operator:
        yield operator


class Call:
    """One call of a function, whatever becomes of its deliveries; with ``function=""`` a block of no function."""

    def __init__(self, number: int, function: str, *, stays: bool) -> None:
        self.function = function
        self.rule = FUNCTIONS.get(function, EXCLUSIVE)
        self.stays = stays
        self.work = Work(kind="task", name="t", id=str(number))
        # Times of the model's clock, of the newest delivery: when it came, began to run, was skipped.
        self.came = self.ran = self.skipped = 0
        # If it was ended from outside: when its node was gone. Until then it is in the queue, as a call that waits.
        self.revoked = 0.0
        # Whether a delivery of it has died.
        self.died = False
        self.contender: Contender | None = None

    def __repr__(self) -> str:
        times = f"came={self.came} ran={self.ran} skipped={self.skipped} revoked={self.revoked}"
        return f"<{self.function or 'block'} {self.work.id} stays={self.stays} {times}>"

    @property
    def is_open(self) -> bool:
        return self.contender is not None and not self.ran and not self.skipped

    @property
    def holds(self) -> bool:
        return self.contender is not None and bool(self.ran) and self.contender.state is State.HELD

    def lock(self, pool: Pool) -> Lock:
        return Lock("k", pool, rule=self.rule, coalesces=self.function or None, work=lambda: self.work)


class Model:
    """The calls of one run, and what may happen to them."""

    def __init__(self, pools: list[Pool], server: ZooKeeperServer, operator: Observer, chance: random.Random) -> None:
        self.calls: list[Call] = []
        # Of each function, when its runs began.
        self.runs: dict[str, list[int]] = {function: [] for function in ["", *FUNCTIONS]}
        # Died, and are to be delivered again.
        self.dead: list[Call] = []
        # How to take away what is left of the dead in the queue, by pool; none is of the operator's own session.
        self.ghosts: list[tuple[Pool | None, Callable[[], object]]] = []
        self.queue = pools[0].path("k")
        self._pools = pools
        self._server = server
        self._operator = operator
        self._chance = chance
        self._clock = itertools.count(1)

    def storm(self, *, revokes: bool) -> None:
        """Do one thing after the other, without waiting for what comes of it."""
        weights: dict[Callable[[], None], int] = {
            self.call: 45, self.block: 6, self.release: 12, self.give_up: 10, self.die: 6, self.die_at_once: 4,
            self.lay_ghost: 5, self.deliver_again: 6, self.break_node: 3, self.end_session: 1, self.drop: 1,
            self.cut_reply: 2, self.revoke: 3 if revokes else 0,
        }  # fmt: skip
        for action in self._chance.choices(list(weights), list(weights.values()), k=STEPS):
            action()
            time.sleep(self._chance.choice([0, 0, 0.001, 0.004]))

    def drain(self) -> None:
        """Let the dead calls come again, and all calls run."""

        def is_empty() -> bool:
            while self.ghosts:
                self.lay_ghost()
            while self.dead:
                self.deliver_again()
            self.release()
            return not any(call.is_open for call in self.calls) and not self._operator.children(self.queue)

        wait_until(is_empty, 60, "nobody waits")

    # What callers do.

    def call(self) -> None:
        stays = self._chance.random() < 0.75
        self._deliver(Call(len(self.calls), self._chance.choice([*FUNCTIONS]), stays=stays), is_new=True)

    def block(self) -> None:
        self._deliver(Call(len(self.calls), "", stays=False), is_new=True)

    def release(self) -> None:
        for call in self.calls:
            if call.holds:
                self._leave(call)

    def give_up(self) -> None:
        """A timeout is over."""
        if (call := self._some(lambda call: call.is_open and not call.stays)) is not None:
            self._leave(call)

    def revoke(self) -> None:
        """End a call, but none that may still be in the queue by a delivery that has died."""
        if (call := self._some(lambda call: call.is_open and bool(call.function) and not call.died)) is not None:
            call.revoked = math.inf

            def gone() -> None:
                call.revoked = next(self._clock)

            self._leave(call, gone)

    def _deliver(self, call: Call, *, is_new: bool = False) -> None:
        if is_new:
            self.calls.append(call)

        def changed() -> None:
            # Under the monitor of the session, and for nothing once the process is dead.
            if call.contender is not contender or not call.is_open:
                return
            if contender.state is State.HELD and contender.lost is None:
                call.ran = next(self._clock)
                self.runs[call.function].append(call.ran)
            elif contender.is_taken:
                call.skipped = next(self._clock)

        lock = call.lock(self._chance.choice(self._pools))
        contender = lock._new_contender(wait=True, notify=changed, stays=call.stays)
        contender.has_deadline = True
        call.contender, call.ran, call.skipped, call.came = contender, 0, 0, next(self._clock)
        contender.session.post(contender.join)

    def _leave(self, call: Call, gone: Callable[[], None] | None = None) -> None:
        contender, call.contender = call.contender, None
        assert contender is not None
        if gone is not None:
            contender.session.post(partial(contender.when_deleted, gone))
        contender.session.post(contender.leave)

    def _some(self, condition: Callable[[Call], bool]) -> Call | None:
        return self._chance.choice([call for call in self.calls if condition(call)] or [None])

    # Deaths. What a dead process leaves in the queue stays there for a while. Its calls are delivered again, before
    # that or after.

    def die(self) -> None:
        call = self._some(
            lambda call: (
                call.stays and call.contender is not None and call.contender.state in {State.WAITING, State.HELD}
            )
        )
        if call is None or call.contender is None:
            return
        contender, call.contender = call.contender, None
        pool = next(pool for pool in self._pools if pool.session(self.queue) is contender.session)
        self.ghosts.append((pool, lambda: contender.session.post(contender.leave)))
        self.dead.append(call)
        call.died = True

    def die_at_once(self) -> None:
        """Die between the creation of the node and what follows."""
        call = Call(len(self.calls), self._chance.choice([*FUNCTIONS]), stays=True)
        call.came = next(self._clock)
        mark = call.lock(self._pools[0])._new_contender(wait=True, notify=lambda: None, stays=True).mark
        stem = f"{self.queue}/{name_prefix(new_guid(mark), call.rule.kind, call.rule.limit)}"
        node = self._operator.client.create(stem, ephemeral=True, sequence=True, makepath=True)
        self.calls.append(call)
        self.dead.append(call)
        call.died = True
        self.ghosts.append((None, lambda: self._delete(node)))

    def lay_ghost(self) -> None:
        if self.ghosts:
            _pool, lay = self.ghosts.pop(self._chance.randrange(len(self.ghosts)))
            lay()

    def deliver_again(self) -> None:
        if self.dead:
            self._deliver(self.dead.pop(self._chance.randrange(len(self.dead))))

    # What operators and networks do.

    def break_node(self) -> None:
        call = self._some(lambda call: call.is_open and call.contender is not None and bool(call.contender.token))
        if call is not None and call.contender is not None:
            for node in call.contender.node_paths.values():
                self._delete(node)

    def end_session(self) -> None:
        pool = self._chance.choice(self._pools)
        # A process that is dead does not join again.
        for ghost in [ghost for ghost in self.ghosts if ghost[0] is pool]:
            self.ghosts.remove(ghost)
            ghost[1]()
        self._server.faults.expire(pool.session(self.queue).id or 0)

    def drop(self) -> None:
        self._server.faults.drop(self._chance.choice(self._pools).session(self.queue).id or 0)

    def cut_reply(self) -> None:
        session = self._chance.choice(self._pools).session(self.queue).id or 0
        self._server.faults.cut_reply(self._chance.choice(["create2", "multi", "getChildren"]), session=session)

    def _delete(self, node: str) -> None:
        with contextlib.suppress(NoNodeError):
            self._operator.client.delete(node)

    # What must be.

    def swallowed(self) -> list[Call]:
        """Return the skipped calls after which no run of their function began.

        Without those that may have been skipped for a call that was ended from outside.
        """
        return [
            call
            for call in self.calls
            if call.skipped
            and not any(began > call.came for began in self.runs[call.function])
            and not any(other.revoked > call.came for other in self.calls if other.function == call.function)
        ]


@pytest.mark.shows("faults#a-call-was-skipped-for-a-waiter-that-ends")
@pytest.mark.parametrize("seed", range(12))
def test_every_call_is_followed_by_a_run(
    server: ZooKeeperServer, operator: Observer, make_pool: MakePool, seed: int
) -> None:
    """After each skipped call a run of its function begins, and calls are skipped."""
    # Sessions end only where the model lets them end, and no heartbeat makes up for what is lost.
    pools = [make_pool(session_timeout=LONG_SESSION) for _ in range(POOLS)]
    model = Model(pools, server, operator, random.Random(seed))
    for _ in range(ROUNDS):
        model.storm(revokes=seed % 3 == 2)
        server.faults.heal()
        model.drain()
        assert not model.swallowed()
    skipped = [call for call in model.calls if call.skipped]
    assert {call.function for call in skipped} == {*FUNCTIONS}
    assert len(skipped) > 50
