"""The same requests to the simulated server and to a real one: every answer and every event is the same."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

import pytest
from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.session import Session
from django_zklock.zk.wire import Read, Write
from tests.simulation.setting import Setting
from tests.simulation.world import World, quiet
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import LONG_SESSION, scaled, wait_until

pytestmark = pytest.mark.once

QUEUES = ("q", "other")
STEM = "_c_00000000-0000-8000-8000-00000000000{}-lock-"
Reply = Callable[[Any, Exception | None], None]


class Place(Protocol):
    """A server with two clients: each request is made, and answered before the next one."""

    root: str
    sessions: list[Session]

    def ask(self, client: int, request: Callable[[Reply], object]) -> tuple[Any, Exception | None]:
        """Make a request for a client, and return the answer."""

    def reconnect(self, client: int) -> None:
        """End the connection of a client, and wait for the next one and its watches."""


class Simulated:
    """A world of one server and two processes without callers."""

    def __init__(self) -> None:
        self.world = World(Setting(seed=0, processes=Setting(seed=0).processes * 2, weights=dict.fromkeys(KINDS, 1.0)))
        self.root = "/r"
        self.sessions = [process.pool.session("/r/q") for process in self.world.processes]
        self.settle()

    def settle(self) -> None:
        """Let everything arrive."""
        self.world.drain()

    def ask(self, client: int, request: Callable[[Reply], object]) -> tuple[Any, Exception | None]:
        answers: list[tuple[Any, Exception | None]] = []
        self.sessions[client].post(partial(request, lambda value, error: answers.append((value, error))))
        self.settle()
        (answer,) = answers
        return answer

    def reconnect(self, client: int) -> None:
        self.world.processes[client].wires[0].lose()
        while not self.sessions[client].watching:
            self.world.advance(0.5)
            self.settle()


KINDS = (
    "connect", "serve", "receive", "flush", "timer", "call", "wake", "loop", "replicate", "ack", "apply", "fail",
    "elect", "join", "forget", "time",
)  # fmt: skip


class Real:
    """A real server."""

    def __init__(self, make_pool: MakePool, root: str) -> None:
        self.root = root
        self.sessions = [make_pool(session_timeout=LONG_SESSION).session(root) for _ in range(2)]
        self.ask(0, partial(self.sessions[0].wire.ensure, root, b"", container=False))

    def ask(self, client: int, request: Callable[[Reply], object]) -> tuple[Any, Exception | None]:
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        session = self.sessions[client]
        wait_until(lambda: session.connected)
        session.post(partial(request, lambda value, error: answers.put((value, error))))
        return answers.get(timeout=scaled(20))

    def reconnect(self, client: int) -> None:
        session = self.sessions[client]
        before = session.epoch
        session.wire.drop("the test")
        wait_until(lambda: session.epoch > before and session.watching)


@dataclass
class Play:
    """The steps of one seed at one place, and what was seen."""

    place: Place
    seen: list[Any] = field(default_factory=list)
    # The events of each client since the last look.
    events: list[list[tuple[str, bool]]] = field(default_factory=lambda: [[], []])
    # Nodes of the queues, in the order of their creation, gone or not; and what removes watches.
    nodes: list[str] = field(default_factory=list)
    removals: list[Callable[[], object]] = field(default_factory=list)

    def run(self, seed: int, steps: int) -> list[Any]:
        """Take the steps, and return all answers and events."""
        dice = Random(seed)
        # No container, which the real server would delete when it is empty.
        for name in QUEUES:
            self._ask(0, "ensure", f"/{name}", b"", container=False, with_ancestors=False)
        for _ in range(steps):
            self._step(dice, dice.randrange(2))
            for client in range(2):
                self.place.ask(client, partial(self.place.sessions[client].wire.sync, "/"))
                if self.events[client]:
                    # Those of one transaction come in any order.
                    self.seen.append((client, sorted(self.events[client])))
                    self.events[client] = []
        ranked: list[Any] = _ranked(self.seen)
        return ranked

    def _step(self, dice: Random, client: int) -> None:
        name, data = dice.choice(QUEUES), b"data %d" % dice.randrange(3)
        node = dice.choice(self.nodes) if self.nodes and dice.random() < 0.9 else f"/{name}/none"
        others = dice.sample(self.nodes, min(len(self.nodes), dice.randrange(3)))
        version = dice.choice((-1, -1, 0, 1))
        stem = STEM.format(dice.randrange(10))
        steps: list[Callable[[], object]] = [
            lambda: self._create(client, [f"/{name}/{stem}"], data),
            lambda: self._create(client, [f"/{each}/{stem}" for each in QUEUES], data),
            lambda: self._ask(client, "children", f"/{name}"),
            lambda: self._ask(client, "get", node),
            lambda: self._ask(client, "set", node, data, version=version),
            lambda: self._ask(client, "delete", node),
            lambda: self._watch(client, node, children=False),
            lambda: self._watch(client, f"/{name}", children=True),
            lambda: self._ask(client, "confirm", [node, *others]),
            lambda: self._ask(client, "delete_if_all_exist", node, others),
            lambda: self._ask(client, "ensure", f"/{name}", data, container=False, with_ancestors=False),
            lambda: self._ask(client, "read_many", [Read(node), Read(f"/{name}", children=True), Read("/none")]),
            lambda: self._ask(client, "write_all", [Write(f"/{name}", data, None if version == 1 else version)]),
            lambda: self._ask(client, "write_nothing"),
            self._remove_watch,
            lambda: self.place.reconnect(client),
        ]
        dice.choices(steps, [3, 2, 2, 2, 2, 3, 4, 3, 1, 2, 1, 1, 1, 1, 1, 1])[0]()

    def _ask(self, client: int, what: str, *arguments: Any, **options: Any) -> Any:
        request = getattr(self.place.sessions[client].wire, what)
        given = [self._full(each) for each in arguments]
        value, error = self.place.ask(client, lambda reply: _call(request, given, reply, options))
        self.seen.append((client, what, arguments, repr(error) if error is not None else self._plain(value)))
        return value

    def _create(self, client: int, stems: list[str], data: bytes) -> None:
        value = self._ask(client, "create", stems, data)
        if value is not None:
            names, token = value
            self.seen.append(("zxid", token))
            self.nodes += [f"{stem.rpartition('/')[0]}/{name}" for stem, name in zip(stems, names, strict=True)]

    def _watch(self, client: int, path: str, *, children: bool) -> None:
        def noticed(deleted: bool) -> None:
            self.events[client].append((path, deleted))

        def watch(reply: Reply) -> None:
            self.removals.append(wire.watch(self._full(path), reply, noticed, children=children))

        wire = self.place.sessions[client].wire
        value, error = self.place.ask(client, watch)
        self.seen.append((client, "watch", path, repr(error) if error is not None else self._plain(value)))

    def _remove_watch(self) -> None:
        if self.removals:
            remove = self.removals.pop(0)
            for client in range(2):
                # Only the one that has it does something, on its own thread.
                def ask(reply: Reply, client: int = client) -> None:
                    if getattr(remove, "func", None).__self__ is self.place.sessions[client].wire:  # type: ignore[union-attr]
                        remove()
                    self.place.sessions[client].wire.sync("/", reply)

                self.place.ask(client, ask)

    def _full(self, value: Any) -> Any:
        """Return paths below the root of this place."""
        if isinstance(value, (Read, Write)):
            return value._replace(path=self.place.root + value.path)
        if isinstance(value, list):
            return [self._full(each) for each in value]
        return self.place.root + value if isinstance(value, str) else value

    def _plain(self, value: Any) -> Any:
        """Return a value without what differs between any two servers: times, and the numbers of sessions."""
        if isinstance(value, ZnodeStat):
            owners = {0: "nobody", **{each.id: number for number, each in enumerate(self.place.sessions)}}
            sizes = value.version, owners[value.ephemeralOwner], value.dataLength, value.numChildren
            return (*sizes, ("zxid", value.czxid), ("zxid", value.mzxid), ("zxid", value.pzxid))
        if isinstance(value, (list, tuple)):
            plain = [self._plain(each) for each in value]
            return sorted(plain) if plain and all(isinstance(each, str) for each in plain) else plain
        if isinstance(value, Exception):
            return repr(value)
        if isinstance(value, str):
            return value.removeprefix(self.place.root)
        # The answer to a creation has the number of its transaction.
        return ("zxid", value) if isinstance(value, int) and not isinstance(value, bool) else value


def _call(request: Callable[..., object], given: list[Any], reply: Reply, options: dict[str, Any]) -> None:
    request(*given, reply=reply, **options)


def _ranked(seen: Any) -> Any:
    """Return what was seen with the rank of each transaction in place of its number."""
    numbers = sorted(set(_numbers(seen)))
    ranks = {number: rank for rank, number in enumerate(numbers)}

    def rank(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == 2 and value[0] == "zxid":
            return "zxid", ranks[value[1]]
        return type(value)(map(rank, value)) if type(value) in {list, tuple} else value

    return rank(seen)


def _numbers(value: Any) -> list[int]:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "zxid":
        return [value[1]]
    return [number for each in value for number in _numbers(each)] if type(value) in {list, tuple} else []


@pytest.mark.zookeeper
@pytest.mark.parametrize("seed", range(8))
def test_requests__same_as_zookeeper(make_pool: MakePool, root: str, seed: int) -> None:
    """The simulated server answers the requests of the package like ZooKeeper, and sends the same events."""
    expected = Play(Real(make_pool, root)).run(seed, 60)
    with quiet():
        simulated = Simulated()
        seen = Play(simulated).run(seed, 60)
        simulated.world.close()
    for step, (theirs, ours) in enumerate(zip(expected, seen, strict=False)):
        assert ours == theirs, f"step {step} of {len(expected)}"
    assert len(seen) == len(expected)
