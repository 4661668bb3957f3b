"""Three servers with a proxy in every link, and what can be done to the links and the servers."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, ReconfigInProcessError

from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.cuttable_ensemble import Peers
from tests.toolbox.zookeeper.server import ZooKeeper

Way = Literal["to", "from", "both"]
Direction = tuple[Proxy, str]


def faketime(clock: Path) -> dict[str, str]:
    """Return the environment of a process whose clock is set by what ``clock`` says, such as ``+3600``.

    Only the clock of the day: monotonic clocks cannot be set. Raises FileNotFoundError if libfaketime is missing.
    """
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        msg = "libfaketime is not installed; get it with `apt-get install libfaketime`"
        raise FileNotFoundError(msg)
    if not clock.exists():
        clock.write_text("+0\n")
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        # With it each timed wait of Java ends at once, and a server does nothing else.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


class Server(ZooKeeper):
    """A server that can be wiped, throttled, and given a full disk and another time of the day."""

    # For a machine that is busy, and a server that has no quorum yet.
    start_timeout = 120.0

    def environment(self) -> Mapping[str, str]:
        """Let its clock be set."""
        return {**os.environ, **faketime(self.clock)}

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal; another fault may have killed it meanwhile."""
        with contextlib.suppress(RuntimeError):
            super().signal(number, group=group)

    @property
    def clock(self) -> Path:
        """What its clock is set by."""
        return self.folder / "clock"

    def wipe(self) -> None:
        """Forget all data, while it does not run."""
        shutil.rmtree(self.folder / "data" / "version-2", ignore_errors=True)

    def fill_disk(self, *, full: bool) -> None:
        """Let no file grow, or let them grow again."""
        size = 0 if full else resource.RLIM_INFINITY
        with contextlib.suppress(ProcessLookupError, RuntimeError):
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def throttle(self, *, on: bool) -> None:
        """After the next start work on one request at a time and refuse those that wait for long, or not."""
        properties = {
            "zookeeper.request_throttle_max_requests": "1",
            "zookeeper.request_throttle_stall_time": "1",
            "zookeeper.throttled_op_wait_time": "5",
        }
        for name, value in properties.items():
            if on:
                self.properties[name] = value
            else:
                self.properties.pop(name, None)


@dataclass(frozen=True, eq=False)
class Effect:
    """Something that is done to links, each in one direction, until it is ended.

    ``hold`` keeps the bytes and delivers them at the end, ``delay`` is in seconds, ``throttle`` in bytes a second, and
    ``cut`` closes the connections and refuses new ones.
    """

    what: Literal["hold", "delay", "throttle", "cut"]
    directions: tuple[Direction, ...]
    amount: float = 0.0


class Network:
    """All effects there are at a time: of several on one link the strongest counts."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._changing = threading.Lock()

    @contextlib.contextmanager
    def disturbed(self, effect: Effect) -> Iterator[None]:
        """Let ``effect`` be during a block."""
        with self._changing:
            self._effects.append(effect)
            self._apply(effect.directions)
        try:
            yield
        finally:
            with self._changing:
                self._effects.remove(effect)
                self._apply(effect.directions)

    def _apply(self, directions: Iterable[Direction]) -> None:
        for proxy, way in directions:
            mine = [each for each in self._effects if (proxy, way) in each.directions]
            amounts = {what: [each.amount for each in mine if each.what == what] for what in ("delay", "throttle")}
            proxy.lag[way] = max(amounts["delay"], default=0.0)
            proxy.rate[way] = min(amounts["throttle"], default=math.inf)
            if any(each.what == "hold" for each in mine):
                proxy.pause(way)
            else:
                proxy.resume(way)
            cut = any(each.what == "cut" and proxy in {other for other, _ in each.directions} for each in self._effects)
            if cut and not proxy.refusing:
                proxy.refusing = True
                proxy.cut()
            proxy.refusing = cut


class Cluster:
    """Three servers and a proxy for each link between two of them, and from each of ``clients`` to each of them.

    ``longest`` is for each server the longest session that it grants, in seconds. If ``linked`` is false, the links
    between servers have no proxies, and the ensemble can be reconfigured.
    """

    def __init__(
        self, clients: Sequence[str], *, tick_time: float, sync_limit: int, linked: bool, longest: Sequence[float]
    ) -> None:
        self.network = Network()
        self.linked = linked
        self._starting = threading.Lock()
        self._stack = contextlib.ExitStack()
        reconfigurable = {} if linked else {"reconfigEnabled": "true", "skipACL": "yes"}

        def new_server(*, server_id: int, settings: Mapping[str, str], **options: Any) -> Server:
            limit = str(round(longest[server_id - 1] * 1000))
            return Server(server_id=server_id, settings={**settings, "maxSessionTimeout": limit}, **options)

        self.peers = Peers(
            tick_time=tick_time,
            sync_limit=sync_limit,
            new_server=new_server,
            settings=reconfigurable,
            linked=linked,
        )
        self.servers: list[Server] = [node for node in self.peers.ensemble.nodes if isinstance(node, Server)]
        self._proxies = {
            client: [
                self._stack.enter_context(Proxy(server.address, holds_ends=True, keeps_chunks=False))
                for server in self.servers
            ]
            for client in clients
        }

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.peers)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hosts(self, client: str) -> str:
        """Return the addresses by which a client reaches the servers."""
        return ",".join(proxy.hosts for proxy in self._proxies[client])

    def of_client(self, client: str, way: Way = "both", servers: Iterable[Server] | None = None) -> list[Direction]:
        """Return the links of a client: what it hears (``to``), says (``from``), or both; to all servers or some."""
        ways = {"from": [UP], "to": [DOWN], "both": [UP, DOWN]}[way]
        chosen = self.servers if servers is None else servers
        proxies = [self._proxies[client][self.servers.index(server)] for server in chosen]
        return [(proxy, each) for proxy in proxies for each in ways]

    def of_server(self, server: Server, way: Way = "both") -> list[Direction]:
        """Return the links of a server to the other servers."""
        found: list[Direction] = []
        for proxy, connects in self.peers.links(server):
            if way in {"from", "both"}:
                found.append((proxy, UP if connects else DOWN))
            if way in {"to", "both"}:
                found.append((proxy, DOWN if connects else UP))
        return found

    def state(self, server: Server) -> str | None:
        """Return "leader" or "follower", ``None`` if the server does not serve."""
        if not server.is_running():
            return None
        try:
            return server.mntr(timeout=0.5).get("zk_server_state")
        except OSError:
            return None

    def leader(self) -> Server | None:
        """Return the server that leads, as far as it says so."""
        return next((server for server in self.servers if self.state(server) == "leader"), None)

    def start(self, server: Server) -> None:
        """Start a server that has ended, or was killed; without waiting, because it may have no quorum."""
        # Two faults may end at the same time.
        with self._starting:
            if not server.is_running():
                server.kill()
                server.launch()

    @contextlib.contextmanager
    def without(self, server: Server, timeout: float) -> Iterator[None]:
        """Reconfigure the ensemble to do without ``server`` during a block."""
        number = self.servers.index(server) + 1
        config = self._reconfigure(timeout, leaving=str(number))
        # The line is without the port of the clients where that stands in the file of the server.
        line = next(line for line in config.splitlines() if line.startswith(f"server.{number}="))
        try:
            yield
        finally:
            self._reconfigure(timeout, joining=f"{line.partition(';')[0]};{server.hosts}")

    def _reconfigure(self, timeout: float, *, joining: str | None = None, leaving: str | None = None) -> str:
        """Change the ensemble, again until it is done, and return the configuration from before."""
        timeout = scaled(timeout)
        deadline = time.monotonic() + timeout
        before = ""
        # A change that another fault has interrupted is finished by the next leader, and by nothing else.
        new_leader_at = time.monotonic() + timeout / 4
        while True:
            client: Any = KazooClient(hosts=self.peers.ensemble.hosts, timeout=scaled(10))
            try:
                client.start(max(1.0, deadline - time.monotonic()))
                before = before or client.get("/zookeeper/config")[0].decode()
                client.reconfig(joining=joining, leaving=leaving, new_members=None)
            except (KazooException, client.handler.timeout_exception) as error:
                if time.monotonic() > deadline:
                    raise
                if isinstance(error, ReconfigInProcessError) and time.monotonic() > new_leader_at:
                    new_leader_at = time.monotonic() + timeout / 4
                    if (leader := self.leader()) is not None:
                        leader.kill()
                        self.start(leader)
                time.sleep(0.5)
            else:
                return before
            finally:
                client.stop()
                client.close()

    def heal(self) -> None:
        """Start what does not run, and wait until one server leads and the others follow."""
        for server in self.servers:
            self.start(server)
        self.peers.heal()
