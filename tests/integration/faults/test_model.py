"""The contender against a model: whatever is done or breaks, the tree says which contenders may hold, and they do."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kazoo.exceptions import NoNodeError

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server.faults import DirectionName
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, parse_name, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

EXAMPLES = 80
STEPS = 20
POOLS = 3
KEYS = ("a", "b")
# What contenders ask for in one run. Queues of one kind come to states that a mixture hardly ever does.
THEMES = {
    "all": [EXCLUSIVE, WRITE, READ, READ, semaphore(1), semaphore(2), semaphore(3)],
    "exclusive": [EXCLUSIVE],
    "read and write": [READ, READ, WRITE],
    "semaphore": [semaphore(2)],
    "limits differ": [semaphore(1), semaphore(2), semaphore(3), semaphore(4)],
}
# Where the numbers of a queue begin: most queues at 0, others close to what is the end for some reason.
STARTS = [0, 0, 0, 2**31 - 3, 2**31 - 2**20 - 3, -(2**31), -3]
# To what they jump later on.
JUMPS = [2**31 - 2, 2**31 - 2**20 - 2, -(2**31)]
SHARED = {"__READ__", "-lease-"}
LABELS = {"exclusive": "-lock-", "write": "__WRIT__", "read": "__READ__", "lease": "-lease-"}

pools = st.integers(0, POOLS - 1)
numbers = st.integers(0, 50)
bytes_left = st.sampled_from([0, 3, 20, 60, 100, 150])
# Of which process a contender is, what it asks for (a place in the theme), and of what.
asks = st.tuples(pools, numbers, st.sampled_from([("a",), ("a",), ("a",), ("a",), ("b",), ("a", "b"), ("b", "a")]))
Ask = tuple[int, int, tuple[str, ...]]


def may_hold(rule: Rule, node: str, queue: list[str]) -> bool:
    """Say by the words of the manual whether ``node`` may hold; ``queue`` is in the order of arrival."""
    own = LABELS[rule.kind.value]
    before = queue[: queue.index(node)]
    if any(own not in other or own not in SHARED for other in before):
        return False
    # A holder is never one of more than its limit, and that goes for all of them.
    limits = [int(found[1]) for name in [*before, node] if (found := re.search(r"-([0-9]+)-lease-", name))]
    return all(len(before) < limit for limit in limits)


@dataclass
class Person:
    """A contender that wants a lock, and what comes of it."""

    contender: Contender
    rule: Rule

    @property
    def holds(self) -> bool:
        """Whether it takes itself for a holder."""
        contender = self.contender
        return contender.state is State.HELD and contender.lost is None and not contender.session.lease_expired

    @property
    def is_through(self) -> bool:
        """Whether there is nothing more to wait for: it has lost, or it was not to wait."""
        return self.contender.lost is not None or self.contender.is_taken


@dataclass
class World:
    """What is the same for all runs: a server, an operator and three processes."""

    server: ZooKeeperServer
    operator: Observer
    pools: list[Pool]
    run: Iterator[int]
    # Of a reader of Java that was a writer: the transaction of its write node, whose place it keeps.
    places: dict[str, int] = field(default_factory=dict)

    def queue(self, path: str) -> list[str]:
        """Return the nodes at ``path`` in the order in which they came."""
        nodes = self.server.service.newest.tree.nodes
        names = nodes[path].children if path in nodes else ()
        made = {name: nodes[f"{path}/{name}"].created_zxid for name in names}
        # With its write node a reader comes second.
        return sorted(names, key=lambda name: (self.places.get(f"{path}/{name}", made[name]), made[name]))

    def skip_numbers(self, path: str, value: int) -> None:
        """Continue the sequence numbers at ``path`` at ``value``, if that is higher.

        Numbers come round after 2**32 nodes. No number can put a contender that has stood in the queue for half of that
        in its place, nor does any contender wait that long.
        """

        def used() -> list[int]:
            tree = self.server.service.newest.tree.nodes
            if path not in tree:
                return []
            nodes = filter(None, map(parse_name, tree[path].children))
            return [node.sequence for node in nodes] + [tree[path].creations]

        numbers = self.server.call(used)
        if numbers and all((value - number) % 2**32 < 2**31 for number in numbers):
            self.server.faults.set_sequence(path, value)

    def watches(self) -> int:
        """Return how many watches the server keeps."""
        watches = self.server.service.newest.watches
        return self.server.call(lambda: watches.data.total + watches.children.total)

    def session(self, number: int) -> int:
        """Return the id of the session of a pool, connected or not; 0, which no session has, if there is none."""
        return self.pools[number].session("/").id or 0


class Machine(RuleBasedStateMachine):
    """One run, on keys of its own."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        run = next(self.world.run)
        self.keys = {key: f"{run}-{key}" for key in KEYS}
        self.paths = [self.world.pools[0].path(key) for key in self.keys.values()]
        self.people: list[Person] = []
        # The contenders that were told to leave.
        self.gone: list[Contender] = []
        # Nodes that were deleted while another queue kept their owner waiting.
        self.void: set[str] = set()
        self.lagging = False
        self.theme: list[Rule] = []
        # The nodes of a writer and a reader of Curator, if there are any.
        self.writer: str | None = None
        self.reader: str | None = None
        # Whether the writer was told to read: in each run of the same steps hypothesis wants to have the same choice.
        self.reading = False
        # In which order contenders go in the end.
        self.seed = 0

    # What contenders do.

    @initialize(
        theme=st.sampled_from(sorted(THEMES)),
        newcomers=st.lists(asks, min_size=3, max_size=8),
        starts=st.tuples(st.sampled_from(STARTS), st.sampled_from(STARTS)),
        settle=st.booleans(),
        seed=numbers,
    )
    def begin(self, theme: str, newcomers: list[Ask], starts: tuple[int, int], settle: bool, seed: int) -> None:
        self.theme, self.seed = THEMES[theme], seed
        for key, path, start in zip(self.keys.values(), self.paths, starts, strict=True):
            if start:
                # So that the queue is there.
                Lock(key, self.world.pools[0]).acquire(timeout=120).release(wait=True)
                self.world.server.faults.set_sequence(path, start)
        self.come(newcomers, settle)

    @rule(newcomers=st.lists(asks, min_size=1, max_size=3), settle=st.booleans())
    def come(self, newcomers: list[Ask], settle: bool) -> None:
        for ask in newcomers:
            self.join(*ask, wait=True)
        if settle:
            self.settle()

    @rule(ask=asks)
    def look_in(self, ask: Ask) -> None:
        self.join(*ask, wait=False)

    @rule(ask=asks, after=bytes_left)
    def come_when_the_answer_is_lost(self, ask: Ask, after: int) -> None:
        self.cut_reply(ask[0], "multi" if len(ask[2]) > 1 else "create2", after)
        self.join(*ask, wait=True)

    def join(self, pool: int, number: int, keys: tuple[str, ...], *, wait: bool) -> None:
        rule = self.theme[number % len(self.theme)]
        lock = Lock([self.keys[key] for key in keys], self.world.pools[pool], rule=rule)
        person = Person(lock._new_contender(wait=wait, notify=lambda: None), rule)
        person.contender.session.post(person.contender.join)
        self.people.append(person)

    @precondition(lambda self: self.people)
    @rule(number=numbers, settle=st.booleans())
    def let_go(self, number: int, settle: bool) -> None:
        """Let a holder leave, or any contender if there is none; the choice is the same in each run, for hypothesis."""
        candidates = [person for person in self.people if person.holds] or self.people
        self.leave(candidates[number % len(candidates)])
        if settle:
            self.settle()

    @precondition(lambda self: self.people)
    @rule(number=numbers)
    def give_up(self, number: int) -> None:
        """Let a contender leave."""
        self.leave(self.people[number % len(self.people)])

    def leave(self, person: Person) -> None:
        person.contender.session.post(person.contender.leave)
        self.people.remove(person)
        self.gone.append(person.contender)

    @rule()
    def settle(self) -> None:
        """Let what is under way end between the faults, if it can."""
        with contextlib.suppress(AssertionError):
            wait_until(self.is_settled, 0.05)

    # What Curator's read-write lock does.

    @precondition(lambda self: self.writer is None and not self.reading)
    @rule(number=numbers)
    def java_writes(self, number: int) -> None:
        stem = f"{self.paths[number % len(self.paths)]}/_c_{uuid.UUID(int=number, version=4)}-__WRIT__"
        self.writer = self.world.operator.client.create(stem, ephemeral=True, sequence=True, makepath=True)

    @precondition(lambda self: self.writer is not None and not self.reading)
    @rule()
    def java_reads(self) -> None:
        """Downgrade the writer to a reader, if it holds."""
        self.reading = True
        path, _, name = (self.writer or "").rpartition("/")
        queue = self.queues()[path]
        number = name.rpartition("__WRIT__")[2]
        # Where the counter has come to its end Curator cannot tell one node from the next.
        if queue[:1] == [name] and int(number) < 2**31 - 1:
            client = self.world.operator.client
            reader = f"{path}/_c_{uuid.UUID(int=99, version=4)}-__READ__{number}"
            self.world.places[reader] = client.get(f"{path}/{name}")[1].czxid
            self.reader = client.create(reader, ephemeral=True)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def java_stops_writing(self) -> None:
        node, self.writer = self.writer, None
        self.world.operator.client.delete(node)

    @precondition(lambda self: self.reading)
    @rule()
    def java_stops_reading(self) -> None:
        node, self.reader, self.reading = self.reader, None, False
        if node is not None:
            self.world.operator.client.delete(node)
            self.world.places.pop(node)

    # What operators, networks and servers do.

    @precondition(lambda self: self.people)
    @rule(number=numbers, several=st.booleans())
    def delete(self, number: int, several: bool) -> None:
        """Delete a node; with ``several`` one of a contender that wants both locks, if there are any."""
        everybody = [list(person.contender.node_paths.values()) for person in self.people]
        chosen = [nodes for nodes in everybody if several and len(nodes) > 1] or everybody
        nodes = [node for nodes in chosen for node in nodes]
        node = nodes[number % len(nodes)] if nodes else "/none"
        with contextlib.suppress(NoNodeError):
            self.world.operator.client.delete(node)
        # What is in the way now goes later than the node, in the order of the server.
        owners = [person for person in self.people if node in person.contender.node_paths.values()]
        if any(self.blocked(owners)):
            self.void.add(node)

    @rule(pool=pools, ends=st.booleans())
    def break_connection(self, pool: int, ends: bool) -> None:
        faults, session = self.world.server.faults, self.world.session(pool)
        (faults.expire if ends else faults.drop)(session)

    @rule(
        pool=pools,
        opcode=st.sampled_from(["getChildren", "getData", "setData", "delete", "notification"]),
        after=bytes_left,
    )
    def cut_reply(self, pool: int, opcode: str, after: int) -> None:
        self.world.server.faults.cut_reply(opcode, after_bytes=after, session=self.world.session(pool))

    @rule(pool=pools, direction=st.sampled_from(["requests", "replies", "both"]))
    def black_hole(self, pool: int, direction: DirectionName) -> None:
        self.world.server.faults.black_hole(direction, session=self.world.session(pool))

    @precondition(lambda self: not self.lagging)
    @rule(zxids=st.integers(1, 4))
    def lag(self, zxids: int) -> None:
        self.lagging = True
        self.world.server.faults.lag_reads(zxids)

    @rule()
    def heal(self) -> None:
        self.world.server.faults.heal()
        self.lagging = False

    @rule(number=numbers, value=st.sampled_from(JUMPS), reap=st.booleans())
    def meddle(self, number: int, value: int, reap: bool) -> None:
        """Move the sequence numbers of a queue to their end, or delete its parent."""
        path = self.paths[number % len(self.paths)]
        # What Curator's client has made here is no container, and stays.
        with contextlib.suppress(LookupError, ValueError):
            self.world.server.faults.reap(path) if reap else self.world.skip_numbers(path, value)

    # What must be.

    @invariant()
    def who_holds_may(self) -> None:
        """No contender holds that another one blocks, as far as its own node is still there.

        One that lets go blocks none of its own session, also while the server does not know of it.
        """
        holders = [person for person in self.people if person.holds]
        for person in holders:
            assert self.void.isdisjoint(person.contender.node_paths.values()), person
        for blocked in self.blocked(holders):
            raise AssertionError(blocked)

    def blocked(self, people: list[Person]) -> Iterator[tuple[Person, list[str]]]:
        """Yield those that another contender blocks, with the queue."""
        # First what contenders know, then the tree: what it still contains was there when they knew that.
        places = [(person, dict(person.contender.node_paths)) for person in people]
        released = [(each.session, each.node_paths.values()) for each in self.gone]
        queues = self.queues()
        for person, nodes in places:
            left = {node for session, gone in released if session is person.contender.session for node in gone}
            for path, node in nodes.items():
                name = node.rpartition("/")[2]
                queue = [other for other in queues[path] if f"{path}/{other}" not in left]
                if name in queue and not may_hold(person.rule, name, queue):
                    yield person, queues[path]

    def queues(self) -> dict[str, list[str]]:
        """Return both queues at one moment."""
        return self.world.server.call(lambda: {path: self.world.queue(path) for path in self.paths})

    def is_settled(self) -> bool:
        """Whether all that may hold do, and all others know that they do not."""
        opinions = [(p, p.contender.state, dict(p.contender.node_paths)) for p in self.people if not p.is_through]
        queues = self.queues()
        return all(self.is_right(*opinion, queues) for opinion in opinions)

    @staticmethod
    def is_right(person: Person, state: State, nodes: dict[str, str], queues: dict[str, list[str]]) -> bool:
        assert person.contender.error is None, person
        names = {path: node.rpartition("/")[2] for path, node in nodes.items()}
        if state not in {State.HELD, State.WAITING} or any(name not in queues[path] for path, name in names.items()):
            return False
        expected = all(may_hold(person.rule, name, queues[path]) for path, name in names.items())
        return (state is State.HELD) is expected

    def teardown(self) -> None:
        """Whatever has happened: when nothing is broken any more all get their turn, and in the end nothing is left."""
        self.heal()
        try:
            if self.writer is not None:
                self.java_stops_writing()
            self.java_stops_reading()
            self.take_turns()
        finally:
            # The contenders of a run that fails here are not to be found by the runs that follow.
            for person in self.people[:]:
                self.leave(person)
        sessions = [session for pool in self.world.pools for session in pool.sessions()]
        wait_until(lambda: not any(session.listeners for session in sessions), 20, "everybody is gone")
        wait_until(lambda: not any(session.wire.watches._watches for session in sessions), 20, "nobody watches")
        wait_until(lambda: not self.world.watches(), 20, "the server watches for nobody")

    def take_turns(self) -> None:
        chance = random.Random(self.seed)
        while True:
            self.wait_settled()
            self.who_holds_may()
            if not self.people:
                break
            self.let_go(chance.randrange(50), settle=False)
        wait_until(lambda: not any(self.queues().values()), 20, "the queues are empty")

    def wait_settled(self) -> None:
        try:
            wait_until(self.is_settled, 20, "everybody knows")
        except AssertionError as error:
            raise AssertionError(f"{self.people} in {self.queues()}") from error


def run(world: World, machine: type[Machine], count: int) -> None:
    machine.world = world
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            # A failure takes as long as the timeout of its last wait; to shrink it would take an hour.
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def kind_of_server() -> str:
    """Say that it needs the server that can be hurt."""
    return "testserver"


@pytest.fixture
def world(make_pool: MakePool) -> Iterator[World]:
    with ZooKeeperServer(reap_interval=1000) as server, contextlib.closing(Observer(server.hosts)) as operator:
        pools = [make_pool(server.hosts, connect_timeout=30.0) for _ in range(POOLS)]
        yield World(server, operator, pools, itertools.count())
        for pool in pools:
            pool.close()


@pytest.mark.shows("faults#all-of-these-faults-in-random-order", "faults#a-writer-of-curator-becomes-a-reader")
@pytest.mark.slow
def test_model(world: World) -> None:
    """Random joins, leaves and faults: no two that hold exclude each other, no queue is stuck, no node is left."""
    run(world, Machine, EXAMPLES)


CHECKS: list[tuple[str, Callable[[], bool]]] = [
    ("alone", lambda: may_hold(EXCLUSIVE, "x-lock-1", ["x-lock-1", "y-lock-2"])),
    ("readers", lambda: may_hold(READ, "b__READ__2", ["a__READ__1", "b__READ__2"])),
    ("leases", lambda: may_hold(semaphore(2), "b-2-lease-2", ["a-2-lease-1", "b-2-lease-2"])),
    ("second", lambda: not may_hold(WRITE, "b__WRIT__2", ["a-lock-1", "b__WRIT__2"])),
    ("reader behind", lambda: not may_hold(READ, "c__READ__3", ["a__READ__1", "b__WRIT__2", "c__READ__3"])),
    ("too many for another", lambda: not may_hold(semaphore(2), "b-2-lease-2", ["a-1-lease-1", "b-2-lease-2"])),
    ("one too many", lambda: not may_hold(semaphore(1), "b-1-lease-2", ["a-9-lease-1", "b-1-lease-2"])),
    ("lease and reader", lambda: not may_hold(semaphore(2), "b-2-lease-2", ["a__READ__1", "b-2-lease-2"])),
]


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
def test_model__says_what_the_manual_says(check: Callable[[], bool]) -> None:
    """The model itself knows which nodes may hold."""
    assert check()
