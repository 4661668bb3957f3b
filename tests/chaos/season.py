"""One season: servers and clients, faults, healing, and what is left."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from tests.toolbox.timing import scaled

from .checker import Checker, Finding
from .clients import ROOT, Clients
from .cluster import Cluster
from .history import FOLDER, Row, read, write
from .nemesis import Kind, LinkFaults, Nemesis, ServerFaults, again, draw

# What takes locks, by name.
CLIENTS = {"threads": "threads", "asyncio": "asyncio", "gevent": "gevent", "forking": "forking", "more": "threads"}
# Seconds without faults in which every client is to hold again.
PROBE = scaled(8)
# Seconds for the nodes and watches of the last turns to go.
CLEAN = scaled(60)
# Seconds for an answer to a client that looks.
ANSWER = scaled(3)
# Seconds from one look at the queues to the next.
LOOK = 0.5
# How often a node is to be found on one server alone.
LOOKS = 3
# Seconds from one look at the clock to the next, and by which one is late when this process gets no time to run.
TICK, STARVED = 0.1, 0.5
# Seconds from one write of the witness at a server to the next, and for which all of them may be without a connection.
WITNESS, BLIND = 0.1, scaled(10)
# What is seen at its moment, and not only in the end: the rules of the checker about it.
AT_ITS_MOMENT = {"overlap", "limit", "token", "overtaken", "gone", "nested"}


class Population(Protocol):
    """The processes that take locks in a season, and what can happen to them; what is wrong is returned as text."""

    def start(self) -> None:
        """Begin to take locks."""

    def kinds(self, session: float) -> dict[str, Kind]:
        """Return the faults by name, of which none lasts longer than some times the longest ``session``."""

    def settle(self) -> list[str]:
        """Come to an end with all that was begun."""

    def end(self) -> list[str]:
        """End, and leave nothing behind."""

    def logs(self) -> dict[str, bytes]:
        """Return by name what the processes have logged."""

    def close(self) -> None:
        """Kill what is left."""


@dataclass
class Outcome:
    """A season that is over."""

    seed: str
    rows: list[Row]
    findings: list[Finding]
    counts: Mapping[str, int]

    @property
    def forgotten(self) -> int:
        """How many acknowledged writes ZooKeeper itself has lost."""
        return sum(row["count"] for row in self.rows if row["what"] == "forgotten")

    @property
    def brought_back(self) -> Row | None:
        """The last look before ZooKeeper has brought back nodes that were gone, ``None`` if it has not.

        The numbers of a queue grow. One look finds the nodes 13 and 14; the next one finds them and 12, which is older
        than they are: a leader has written it without a majority, and servers had it on their disks (ZOOKEEPER-4712).
        Only looks at all three servers count.
        """
        looks = [row for row in self.rows if row["what"] == "queue" and row["servers"] == 3]
        for before, after in itertools.pairwise(looks):
            for key, names in after["queues"].items():
                known = set(before["queues"].get(key, ()))
                newest = max((number_of(name) for name in known.intersection(names)), default=-1)
                if any(number_of(name) < newest for name in set(names) - known):
                    return before
        return None

    @property
    def violations(self) -> list[Finding]:
        """What is wrong and is no consequence of what ZooKeeper itself did wrong: what was before that."""
        times = [row["since"] - BLIND for row in self.rows if row["what"] == "forgotten"]
        if self.findings and (look := self.brought_back) is not None:
            times.append(look["at"])
        if not times:
            return self.findings
        return [found for found in self.findings if found.rule in AT_ITS_MOMENT and found.at < min(times)]

    @property
    def is_void(self) -> bool:
        """Whether the season proves nothing of its clients."""
        return not self.violations and bool(self.forgotten or self.findings)


def number_of(name: str) -> int:
    """Return the number at the end of the name of a node."""
    return int(name[-10:])


def season(
    seed: str,
    seconds: float,
    folder: Path,
    *,
    pace: float = 1.0,
    clients: Mapping[str, str] = CLIENTS,
    celery: bool = True,
    gate: bool = True,
    quorum: bool | None = None,
) -> Outcome:
    """Run the season of ``seed`` with faults for ``seconds``, one after ``pace`` seconds on average, and judge it.

    ``clients`` are names and kinds of clients, and with ``celery`` there are workers too. Without ``gate`` their tasks
    wait in their slots. With ``quorum`` the queues at RabbitMQ are quorum queues; by default those of half the seasons.
    """
    journal = folder / "journal"
    journal.mkdir(parents=True)
    os.environ[FOLDER] = str(journal)
    # What the clients of this program meet is no news.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if quorum is None:
        quorum = random.Random(f"{seed} queues").random() < 0.5
    dice = random.Random(f"{seed} season")
    linked = dice.random() < 0.75
    sync_limit, tick_time = dice.choice((5, 10, 20)), 0.5
    timeouts = dice.sample((3.0, 4.0, 4.0, 6.0), 3)
    # In some seasons a session is granted less time by one server than by the others.
    limits = [dice.choice((60.0, 60.0, 60.0, 2.5)) for _ in range(3)]
    workers_ = importlib.import_module("tests.chaos.workers.workers") if celery else None
    everybody = [*clients, *(workers_.names() if workers_ else ())]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(everybody, tick_time=tick_time, sync_limit=sync_limit, linked=linked, longest=limits)
        )
        populations: list[Population] = []
        # First: they take long to start, and longer beside busy clients.
        if workers_:
            populations.append(
                workers_.Workers(
                    cluster, seed=seed, seconds=seconds, journal=journal, root=ROOT, gate=gate, quorum=quorum
                )
            )
        if clients:
            populations.append(Clients(cluster, clients, seed=seed, session_timeouts=timeouts, journal=journal))
        longest = max(timeouts)
        kinds = {
            **ServerFaults(cluster, longest_session=longest, clients=everybody).kinds(),
            **LinkFaults(cluster, everybody, session=longest).kinds(),
        }
        for population in populations:
            stack.callback(population.close)
            population.start()
            kinds |= population.kinds(longest)
        nemesis = Nemesis(kinds)
        write(
            "season", seed=seed, seconds=seconds, linked=linked, sync_limit=sync_limit, timeouts=timeouts, limits=limits
        )
        with _looking(cluster), _looking_at_the_clock():
            with Witness(cluster) as witness:
                nemesis.rage(draw(seed, seconds, kinds, pace=pace), seconds)
                cluster.heal()
            _level(cluster)
            witness.testify(journal)
            write("calm")
            time.sleep(PROBE)
            errors = [*nemesis.errors, *(error for population in populations for error in population.settle())]
        _look_for_remains(cluster)
        for population in populations:
            errors += population.end()
        for error in errors:
            write("error", text=error)
        logs = {name: log for population in populations for name, log in population.logs().items()}
        logs |= {f"server-{number}": server.log.read_bytes() for number, server in enumerate(cluster.servers, 1)}
    for name, log in logs.items():
        (folder / f"{name}.log").write_bytes(log)
    rows = read(journal)
    return judge(seed, rows)


def judge(seed: str, rows: list[Row]) -> Outcome:
    """Return the outcome of a season that has been written down."""
    checker = Checker(rows)
    findings, counts = checker.check(), checker.counts
    if any(row["what"] == "sends" for row in rows):
        model = importlib.import_module("tests.chaos.workers.model").Model(rows)
        zero = next(row["at"] for row in rows if row["what"] == "season")
        for task, text in model.judge():
            course = "\n".join(model.timeline(task, zero)) if task else ""
            findings.append(Finding("task", rows[-1]["at"], f"{task} {text}\n{course}".rstrip()))
        counts = counts + Counter({f"tasks: {name}": count for name, count in model.counts.items()})
    return Outcome(seed=seed, rows=rows, findings=findings, counts=counts)


@contextlib.contextmanager
def _looking_at_the_clock() -> Iterator[None]:
    """Write when this process, which has the links, got no time to run on a busy machine: others got none either."""
    before = time.monotonic()

    def look(_turn: int) -> None:
        nonlocal before
        now = time.monotonic()
        if now - before > TICK + STARVED:
            write("starved", at=before, until=now)
        before = now

    with again(look, TICK):
        yield


@contextlib.contextmanager
def _clients(cluster: Cluster) -> Iterator[list[Any]]:
    """Return for each server a client that no fault of a link hits."""
    # kazoo's default pause grows to a minute, and a witness must see what the clients see.
    retry = {"max_tries": -1, "max_delay": 0.5}
    clients: list[Any] = [
        KazooClient(hosts=server.hosts, timeout=scaled(10), connection_retry=retry) for server in cluster.servers
    ]
    for client in clients:
        client.start_async()
    try:
        yield clients
    finally:
        for client in clients:
            client.stop()
            client.close()


Node = tuple[str, str]
"""The last parts of the paths of a lock and of a node in its queue."""


def _views(clients: list[Any]) -> list[set[Node] | None]:
    """Return the nodes that each server has, ``None`` for one that does not answer.

    Each is asked after a write, so it has what was there when this began.
    """
    views: list[set[Node] | None] = []
    for client in clients:
        view = None
        with contextlib.suppress(KazooException, client.handler.timeout_exception, OSError):
            path = f"{ROOT}-look/m-"
            own = client.create_async(path, ephemeral=True, sequence=True, makepath=True).get(timeout=ANSWER)
            client.delete_async(own).get(timeout=ANSWER)
            view = {(key, name) for key in _children(client, ROOT) for name in _children(client, f"{ROOT}/{key}")}
        views.append(view)
    return views


def _queues(clients: list[Any]) -> tuple[dict[str, list[str]], int]:
    """Return the nodes of all queues that at least two servers have, and how many have answered.

    One server alone proves nothing, see :func:`_level`.
    """
    views = [view for view in _views(clients) if view is not None]
    counts = Counter(node for view in views for node in view)
    queues: dict[str, list[str]] = {}
    for (key, name), count in counts.items():
        if count > 1:
            queues.setdefault(key, []).append(name)
    return queues, len(views)


def _level(cluster: Cluster) -> None:
    """Let each server that has nodes which no other one has load the data of the others, as an operator has to.

    Some releases of ZooKeeper leave a server with what it has proposed as a leader without a quorum (ZOOKEEPER-4712 is
    one cause). A contender that waits there, for a node that exists nowhere else, waits until this is done.
    """
    for _ in range(len(cluster.servers)):
        with _clients(cluster) as clients:
            alone = _alone(clients)
        if not any(alone):
            return
        number, nodes = max(enumerate(alone), key=lambda each: len(each[1]))
        for key, name in sorted(nodes):
            write("diverged", server=number + 1, name=f"{ROOT}/{key}/{name}")
        server, began, fault = cluster.servers[number], time.monotonic(), "wiped for its own nodes"
        write("fault", at=began, fault=fault, victim="follower")
        server.kill()
        server.wipe()
        cluster.heal()
        write("mended", began=began, fault=fault, victim="follower")


def _alone(clients: list[Any]) -> list[set[Node]]:
    """Return for each server the nodes that it has alone, and not because the servers are asked one after the other."""
    found: list[set[Node]] = []
    deadline = time.monotonic() + CLEAN
    looks = 0
    while looks < LOOKS and time.monotonic() < deadline:
        views = _views(clients)
        if None not in views:
            complete = [view for view in views if view is not None]
            alone = [
                view - set().union(*complete[:number], *complete[number + 1 :]) for number, view in enumerate(complete)
            ]
            found = [before & now for before, now in zip(found, alone, strict=True)] if looks else alone
            looks += 1
        time.sleep(1.0)
    return found


@contextlib.contextmanager
def _looking(cluster: Cluster) -> Iterator[None]:
    """Write down again and again which nodes are in the queues, during a block."""
    over = threading.Event()

    def look() -> None:
        with _clients(cluster) as clients:
            while not over.wait(LOOK):
                began = time.monotonic()
                queues, servers = _queues(clients)
                write("queue", at=began, until=time.monotonic(), servers=servers, queues=queues)

    thread = threading.Thread(target=look, name="look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60.0)


class Witness:
    """Writes at each server as long as its block lasts, and remembers what was acknowledged.

    A majority of the servers has it on their disks, so no fault of a season may lose it but a wipe of them all. Some
    releases of ZooKeeper lose it: a follower acknowledges a leader before it has written what the leader has sent
    (ZOOKEEPER-4646), or goes on after its disk was full for a moment (ZOOKEEPER-4882). Then a lock that was granted may
    be free, and one that was released taken, whatever its client does.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        # Names, each with the time at which its write began.
        self.acknowledged: list[tuple[str, float]] = []

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        clients = self._stack.enter_context(_clients(self._cluster))
        self._threads = [
            threading.Thread(target=self._write, args=each, name="witness", daemon=True) for each in enumerate(clients)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60.0)
        self._stack.close()

    def _write(self, server: int, client: Any) -> None:
        for number in itertools.count():
            if self._over.wait(WITNESS):
                return
            began = time.monotonic()
            with contextlib.suppress(KazooException, client.handler.timeout_exception, OSError):
                client.create_async(f"{ROOT}-witness/{server}-{number}", makepath=True).get(timeout=ANSWER)
                self.acknowledged.append((f"{server}-{number}", began))

    def testify(self, journal: Path) -> None:
        """Write down what was acknowledged since all servers were wiped the last time, and is not there any more."""
        wiped = max((row["at"] for row in read(journal) if row["what"] == "wiped"), default=0.0)
        expected = {name: began for name, began in self.acknowledged if began > wiped}
        with _clients(self._cluster) as clients:
            forgotten = expected.keys() - self._known(clients)
        if forgotten:
            since = min(expected[name] for name in forgotten)
            write("forgotten", count=len(forgotten), since=since, names=sorted(forgotten)[:20])

    def _known(self, clients: list[Any]) -> set[str]:
        """Return what the first server that answers knows after all that was committed before."""
        deadline = time.monotonic() + CLEAN
        for client in itertools.cycle(clients):
            with contextlib.suppress(KazooException, client.handler.timeout_exception, OSError):
                client.sync_async(ROOT).get(timeout=ANSWER)
                return set(_children(client, f"{ROOT}-witness"))
            if time.monotonic() > deadline:
                break
        raise TimeoutError("no server answers")


def _children(client: Any, path: str) -> list[str]:
    try:
        found: list[str] = client.get_children_async(path).get(timeout=ANSWER)
    except NoNodeError:
        return []
    return found


def _look_for_remains(cluster: Cluster) -> None:
    """Wait until no node and no watch of a contender is left, and write down those that are."""
    deadline = time.monotonic() + CLEAN
    with _clients(cluster) as clients:
        while True:
            views = _views(clients)
            nodes = set().union(*(view for view in views if view is not None))
            watches = [
                line.strip()
                for server in cluster.servers
                for line in server.command("wchp").splitlines()
                if line.startswith(f"{ROOT}/")
            ]
            if time.monotonic() > deadline or not (None in views or nodes or watches):
                break
            time.sleep(0.5)
    if None in views:
        write("error", text=f"not all servers say within {CLEAN:g} s which nodes they have")
    for key, name in sorted(nodes):
        write("left", kind="node", name=f"{ROOT}/{key}/{name}")
    for name in watches:
        write("left", kind="watch", name=name)
