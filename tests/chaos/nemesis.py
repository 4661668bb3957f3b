"""The nemesis: faults drawn from a seed, several at a time, each with its end.

What a fault does is a generator that disturbs, yields, and mends. The times of a plan depend on the seed alone; that a
fault hits the leader of that moment, the clients decide by what they have done until then.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.toolbox.timing import scaled

from .cluster import Cluster, Effect, Server, Way
from .history import write

# Seconds without new faults after each period with faults: many errors show only when there is time to settle.
STORMY, CALM = 17.0, 8.0
# So many faults of servers at a time: with more no client would ever hold a lock.
SERVER_FAULTS = 2
WAYS: tuple[Way, ...] = ("to", "from", "both")

# What begins a fault, and mends it.
Act = Callable[["Fault"], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault that begins ``at`` seconds after the start and ends after ``lasts`` seconds.

    ``chance`` draws what else there is to decide, and ``victim`` is the number of a server or the name of what it hits.
    """

    at: float
    what: str
    lasts: float
    victim: str
    chance: int

    @property
    def dice(self) -> random.Random:
        """Return the same random numbers each time."""
        return random.Random(f"{self.chance}")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault: how often it comes beside the others, how long it lasts at most, what it hits.

    ``alone`` keeps every other fault of a server away meanwhile: what ZooKeeper itself does not survive beside it.
    """

    act: Act
    weight: float
    victims: Sequence[str]
    longest: float
    alone: bool = False
    of_servers: bool = False


def draw(seed: str, seconds: float, kinds: Mapping[str, Kind], *, pace: float) -> list[Fault]:
    """Draw the faults of ``seconds``, one after ``pace`` seconds on average in a stormy period."""
    dice = random.Random(f"{seed} faults")
    at, found = 1.0, list[Fault]()
    # Until when a victim has a fault already, and the servers have so many.
    busy: dict[str, float] = {}
    servers: list[tuple[float, bool]] = []
    names, weights = list(kinds), [kind.weight for kind in kinds.values()]
    while at < seconds:
        if at % (STORMY + CALM) > STORMY:
            at += CALM
            continue
        name = dice.choices(names, weights)[0]
        kind = kinds[name]
        victim = dice.choice(kind.victims)
        # Logarithmic: as many short ones as long ones.
        lasts = math.exp(dice.uniform(math.log(0.2), math.log(kind.longest))) if kind.longest else 0.0
        fault = Fault(at=at, what=name, lasts=min(lasts, seconds - at), victim=victim, chance=dice.getrandbits(32))
        servers = [(until, alone) for until, alone in servers if until > at]
        full = kind.of_servers and (
            len(servers) >= (1 if kind.alone else SERVER_FAULTS) or any(alone for _, alone in servers)
        )
        if not full and busy.get(victim, 0.0) <= at:
            found.append(fault)
            # Time to start again.
            busy[victim] = at + lasts + 1.0
            if kind.of_servers:
                servers.append((at + lasts + (6.0 if kind.alone else 1.0), kind.alone))
        at += dice.expovariate(1 / pace)
    return found


@contextlib.contextmanager
def again(act: Callable[[int], object], interval: float) -> Iterator[None]:
    """Do something at once and then each ``interval`` seconds during a block, with the number of the turn.

    What it raises is raised at the end.
    """
    over, errors = threading.Event(), list[Exception]()

    def repeat() -> None:
        try:
            for turn in itertools.count():
                act(turn)
                if over.wait(interval):
                    return
        except Exception as error:  # noqa: BLE001 - raised at the end
            errors.append(error)

    thread = threading.Thread(target=repeat, name="again", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


class Nemesis:
    """Begins the faults of a plan at their times, each in a thread of its own.

    On a busy machine one takes longer than planned. A fault of servers that is to be alone waits for the others, and
    they for it. Scenario: all servers are restarted one after the other, and wiped meanwhile. Two of them would be up
    and empty before the last lease has ended.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._threads: list[threading.Thread] = []
        # The kinds of the faults of servers that there are.
        self._of_servers: list[Kind] = []
        self._changing = threading.Condition()
        self.errors: list[str] = []

    def rage(self, plan: Sequence[Fault], seconds: float) -> None:
        """Begin each fault at its time, and wait until all have ended."""
        began = time.monotonic()
        over = threading.Event()
        for fault in plan:
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            thread = threading.Thread(target=self._strike, args=(fault, over), name=f"fault {fault.what}", daemon=True)
            self._threads.append(thread)
            thread.start()
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        over.set()
        for thread in self._threads:
            thread.join()

    def _strike(self, fault: Fault, over: threading.Event) -> None:
        kind = self._kinds[fault.what]
        with self._beside_others(kind):
            if over.is_set():
                return
            began = time.monotonic()
            write("fault", at=began, fault=fault.what, planned=fault.at, lasts=fault.lasts, victim=fault.victim)
            try:
                with kind.act(fault):
                    over.wait(fault.lasts)
            except Exception as error:  # noqa: BLE001 - told at the end
                self.errors.append(f"{fault}: {error!r}")
            write("mended", began=began, fault=fault.what, victim=fault.victim)

    @contextlib.contextmanager
    def _beside_others(self, kind: Kind) -> Iterator[None]:
        """Wait until there may be a fault of ``kind``, and let it be during a block."""
        if not kind.of_servers:
            yield
            return
        with self._changing:
            self._changing.wait_for(lambda: not any(kind.alone or other.alone for other in self._of_servers))
            self._of_servers.append(kind)
        try:
            yield
        finally:
            with self._changing:
                self._of_servers.remove(kind)
                self._changing.notify_all()


class ServerFaults:
    """What can happen to the servers of a cluster, and to the links between them and to the clients."""

    def __init__(self, cluster: Cluster, *, longest_session: float, clients: Sequence[str]) -> None:
        self._cluster = cluster
        self._longest_session = longest_session
        self._clients = clients

    def kinds(self) -> dict[str, Kind]:
        """Return all of them by name."""
        roles, session = ("leader", "follower"), self._longest_session

        def of_server(act: Act, weight: float, longest: float, *, alone: bool = False) -> Kind:
            return Kind(act=act, weight=weight, victims=roles, longest=longest, alone=alone, of_servers=True)

        found = {
            "server killed": of_server(self._kill, 3, 6.0),
            "server restarted": of_server(self._restart, 2, 0.5),
            "server stopped": of_server(self._stop, 3, 2.0 * session),
            "server slow": of_server(self._slow, 3, 5.0),
            "minority with holders": of_server(self._cut_off_with_clients, 3, 2.0 * session),
            "disk full": of_server(self._fill_disk, 1.5, 3.0),
            "server throttled": of_server(self._throttle_server, 1.5, 6.0),
            "clock set": Kind(act=self._set_clock, weight=2, victims=roles, longest=6.0),
            "follower wiped": of_server(self._wipe, 1.5, 1.0, alone=True),
            "rolling restart": of_server(self._restart_all, 0.7, 0.3, alone=True),
            "ensemble wiped": of_server(self._wipe_all, 0.5, 0.3, alone=True),
            "ensemble frozen": of_server(self._freeze_all, 0.7, 1.5 * session),
        }
        if self._cluster.linked:
            found |= {
                "server isolated": of_server(self._isolate, 5, 2.0 * session),
                "server cut off": of_server(self._cut_off, 3, 2.0 * session),
                "server late": of_server(self._delay_server, 2, 6.0),
                "links flapping": of_server(self._flap, 2, 5.0),
                "links throttled": of_server(self._throttle, 2, 5.0),
            }
        else:
            found["reconfigured"] = of_server(self._reconfigure, 6, 5.0, alone=True)
        return found

    def _chosen(self, fault: Fault) -> Server:
        leader = self._cluster.leader()
        if fault.victim == "leader" and leader is not None:
            return leader
        return fault.dice.choice([server for server in self._cluster.servers if server is not leader])

    # Processes.

    @contextlib.contextmanager
    def _kill(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        server.kill()
        yield
        self._cluster.start(server)

    @contextlib.contextmanager
    def _restart(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        server.stop()
        yield
        self._cluster.start(server)

    @contextlib.contextmanager
    def _stop(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        server.signal(signal.SIGSTOP)
        yield
        server.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _slow(self, fault: Fault) -> Iterator[None]:
        """It stands still for most of the time."""
        server = self._chosen(fault)

        def stand_still(_turn: int) -> None:
            server.signal(signal.SIGSTOP)
            time.sleep(0.2)
            server.signal(signal.SIGCONT)

        with again(stand_still, 0.05):
            yield

    @contextlib.contextmanager
    def _fill_disk(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        server.fill_disk(full=True)
        yield
        server.fill_disk(full=False)
        # It ends when it cannot write, sooner or later.
        server.kill()
        self._cluster.start(server)

    @contextlib.contextmanager
    def _throttle_server(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        for on in (True, False):
            server.throttle(on=on)
            server.kill()
            self._cluster.start(server)
            if on:
                yield

    @contextlib.contextmanager
    def _set_clock(self, fault: Fault) -> Iterator[None]:
        server = self._chosen(fault)
        server.clock.write_text(f"{fault.dice.choice((-1, 1)) * fault.dice.randrange(1, 100_000):+d}\n")
        yield
        server.clock.write_text("+0\n")

    @contextlib.contextmanager
    def _freeze_all(self, _fault: Fault) -> Iterator[None]:
        for server in self._cluster.servers:
            server.signal(signal.SIGSTOP)
        yield
        for server in self._cluster.servers:
            server.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _restart_all(self, _fault: Fault) -> Iterator[None]:
        for server in self._cluster.servers:
            server.stop()
            self._cluster.start(server)
            with contextlib.suppress(Exception):
                server.wait_ready(scaled(20))
        yield

    @contextlib.contextmanager
    def _wipe(self, fault: Fault) -> Iterator[None]:
        """A follower loses its data, and has them from the leader again, while the others have them."""
        self._cluster.heal()
        server = next(server for server in self._cluster.servers if self._cluster.state(server) == "follower")
        server.kill()
        server.wipe()
        yield
        self._cluster.heal()

    @contextlib.contextmanager
    def _wipe_all(self, _fault: Fault) -> Iterator[None]:
        """All data are lost, and come back empty when the last lease has ended."""
        for server in self._cluster.servers:
            server.kill()
            server.wipe()
            # The version of a configuration is that of a transaction. With one from before, the servers would take each
            # later one for older, and a reconfiguration would never end.
            server.write_configuration()
        time.sleep(self._longest_session)
        write("wiped")
        yield
        self._cluster.heal()

    @contextlib.contextmanager
    def _reconfigure(self, fault: Fault) -> Iterator[None]:
        self._cluster.heal()
        with self._cluster.without(self._chosen(fault), 60.0):
            yield

    # Links.

    def _disturb(self, effect: Effect) -> AbstractContextManager[None]:
        return self._cluster.network.disturbed(effect)

    @contextlib.contextmanager
    def _isolate(self, fault: Fault) -> Iterator[None]:
        """Nothing passes between it and the others, in one direction or both; it arrives late."""
        links = self._cluster.of_server(self._chosen(fault), fault.dice.choice(WAYS))
        with self._disturb(Effect("hold", tuple(links))):
            yield

    @contextlib.contextmanager
    def _cut_off(self, fault: Fault) -> Iterator[None]:
        with self._disturb(Effect("cut", tuple(self._cluster.of_server(self._chosen(fault))))):
            yield

    @contextlib.contextmanager
    def _cut_off_with_clients(self, fault: Fault) -> Iterator[None]:
        """A server is on one side with some clients, and the other servers are on the other with the others."""
        server = self._chosen(fault)
        others = [each for each in self._cluster.servers if each is not server]
        links = self._cluster.of_server(server) if self._cluster.linked else []
        for client in self._clients:
            here = fault.dice.random() < 0.5
            links += self._cluster.of_client(client, servers=others if here else [server])
        with self._disturb(Effect("hold", tuple(links))):
            yield

    @contextlib.contextmanager
    def _flap(self, fault: Fault) -> Iterator[None]:
        effect = Effect("cut", tuple(self._cluster.of_server(self._chosen(fault))))

        def cut(_turn: int) -> None:
            with self._disturb(effect):
                time.sleep(0.4)

        with again(cut, 0.4):
            yield

    @contextlib.contextmanager
    def _delay_server(self, fault: Fault) -> Iterator[None]:
        """What it says to the others, or they to it, comes late; in the longest case almost too late."""
        limit = self._cluster.peers.sync_limit * self._cluster.peers.tick_time
        links = self._cluster.of_server(self._chosen(fault), fault.dice.choice(WAYS))
        with self._disturb(Effect("delay", tuple(links), fault.dice.choice((0.05, 0.3, 0.6 * limit)))):
            yield

    @contextlib.contextmanager
    def _throttle(self, fault: Fault) -> Iterator[None]:
        links = self._cluster.of_server(self._chosen(fault), fault.dice.choice(WAYS))
        with self._disturb(Effect("throttle", tuple(links), fault.dice.choice((2_000.0, 20_000.0)))):
            yield


class LinkFaults:
    """What can happen to the links of the clients to the servers."""

    def __init__(self, cluster: Cluster, clients: Sequence[str], *, session: float) -> None:
        self._cluster = cluster
        self._clients = clients
        self._session = session

    def kinds(self) -> dict[str, Kind]:
        """Return all of them by name."""

        def of_client(act: Act, weight: float, longest: float) -> Kind:
            return Kind(act=act, weight=weight, victims=self._clients, longest=longest)

        return {
            "client cut": of_client(self._cut_once, 6, 0.0),
            "client cut off": of_client(self._cut, 4, 2.0 * self._session),
            "client held": of_client(self._hold, 6, 2.0 * self._session),
            "client delayed": of_client(self._delay, 3, 5.0),
            "client throttled": of_client(self._throttle, 2, 5.0),
        }

    @contextlib.contextmanager
    def _do(self, what: Any, links: Sequence[Any], amount: float = 0.0) -> Iterator[None]:
        with self._cluster.network.disturbed(Effect(what, tuple(links), amount)):
            yield

    def _cut_once(self, fault: Fault) -> AbstractContextManager[None]:
        return self._do("cut", self._cluster.of_client(fault.victim))

    def _cut(self, fault: Fault) -> AbstractContextManager[None]:
        dice = fault.dice
        some = dice.sample(self._cluster.servers, dice.randint(1, len(self._cluster.servers)))
        return self._do("cut", self._cluster.of_client(fault.victim, servers=some))

    def _hold(self, fault: Fault) -> AbstractContextManager[None]:
        return self._do("hold", self._cluster.of_client(fault.victim, fault.dice.choice(WAYS)))

    def _delay(self, fault: Fault) -> AbstractContextManager[None]:
        # Shares of the session timeout: about those there are decisions.
        delay = self._session * fault.dice.choice((0.01, 0.05, 0.14, 0.3))
        return self._do("delay", self._cluster.of_client(fault.victim, fault.dice.choice(WAYS)), delay)

    def _throttle(self, fault: Fault) -> AbstractContextManager[None]:
        rate = fault.dice.choice((500.0, 5_000.0))
        return self._do("throttle", self._cluster.of_client(fault.victim, fault.dice.choice(WAYS)), rate)
