"""Three ZooKeeper servers whose links to each other can be silenced, slowed down, cut and healed, each way alone."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, Self

from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper

Way = Literal["to", "from", "both"]
# The first bytes of a connection for elections (QuorumCnxManager): version, own number, length of the own address.
_GREETING = struct.Struct("!qqi")
_VERSIONS = {-65536, -65535}


class Peers:
    """An ensemble with a proxy for each server, each of the others, and each of the two ports between them.

    ``sync_limit`` is in ticks, times are seconds. ``settings`` are further lines of ``zoo.cfg``. If not ``linked``,
    there is no proxy: servers whose addresses change by a reconfiguration must have the same ones for each other.
    """

    def __init__(
        self,
        *,
        tick_time: float,
        sync_limit: int,
        new_server: Callable[..., ZooKeeper] = ZooKeeper,
        settings: Mapping[str, str] | None = None,
        linked: bool = True,
    ) -> None:
        self.tick_time = tick_time
        self.sync_limit = sync_limit
        self._proxies: dict[tuple[int, int], list[Proxy]] = {}
        self._ends: dict[tuple[int, int], Proxy] = {}
        self._disturbed = False
        self._closing = contextlib.ExitStack()
        self._linked = linked
        self.ensemble = Ensemble(
            new_server=new_server,
            tick_time=tick_time,
            min_session_timeout=2 * tick_time,
            sync_limit=sync_limit,
            # The first round of an election may fail, and then the next one begins after this time.
            settings={"initLimit": "6", **(settings or {})},
            peer=self._between,
            # A server that looks for a leader in vain tells the others more and more seldom, in the end once a minute.
            properties={"zookeeper.fastleader.maxNotificationInterval": "1000"},
        )
        self._closing.callback(self.ensemble.close)

    def _between(self, of: int, to: int, port: int) -> int:
        if not self._linked:
            return port
        proxy = self._closing.enter_context(Proxy(("127.0.0.1", port), holds_ends=True, keeps_chunks=False))
        self._proxies.setdefault((of, to), []).append(proxy)
        self._ends[of, port] = proxy
        proxy.edit = lambda way, chunk: self._greet(to, chunk) if way == UP else chunk
        return int(proxy.hosts.rpartition(":")[2])

    def _greet(self, receiver: int, chunk: bytes) -> bytes:
        """Replace the address that a server gives of itself: the receiver connects back to it, past the proxies."""
        if len(chunk) < _GREETING.size or _GREETING.unpack_from(chunk)[0] not in _VERSIONS:
            return chunk
        version, number, length = _GREETING.unpack_from(chunk)
        rest = chunk[_GREETING.size + length :]
        port = int(chunk[_GREETING.size : _GREETING.size + length].decode().rpartition(":")[2])
        address = self._ends[receiver, port].hosts.encode()
        return _GREETING.pack(version, number, len(address)) + address + rest

    def __enter__(self) -> Self:
        try:
            self.ensemble.start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _number(self, node: ZooKeeper) -> int:
        return self.ensemble.nodes.index(node) + 1

    def links(self, node: ZooKeeper) -> list[tuple[Proxy, bool]]:
        """Return the proxies of all links of ``node``, and whether it is the one that connects."""
        number = self._number(node)
        return [(each, number == of) for (of, to), some in self._proxies.items() for each in some if number in (of, to)]

    def silence(self, node: ZooKeeper, way: Way = "both") -> None:
        """Let nothing pass between ``node`` and the others, or only from it, or only to it; nothing is closed."""
        self._disturbed = True
        for proxy, connects in self.links(node):
            if way in {"from", "both"}:
                proxy.pause(UP if connects else DOWN)
            if way in {"to", "both"}:
                proxy.pause(DOWN if connects else UP)

    def refuse(self, node: ZooKeeper) -> None:
        """Let nothing make a new link between ``node`` and the others."""
        self._disturbed = True
        for proxy, _connects in self.links(node):
            proxy.refusing = True

    def deliver(self, node: ZooKeeper) -> None:
        """Let what the others have said to ``node`` arrive now, and again nothing that follows.

        The packets of a silent link arrive late in this way, when TCP sends them again.
        """
        for proxy, connects in self.links(node):
            way = DOWN if connects else UP
            proxy.resume(way)
            proxy.pause(way)

    def cut(self, node: ZooKeeper) -> None:
        """Close all links between ``node`` and the others, and refuse new ones."""
        self._disturbed = True
        for proxy, _connects in self.links(node):
            proxy.refusing = True
            proxy.cut()

    def slow(self, node: ZooKeeper, delay: float) -> None:
        """Let at most one piece between ``node`` and the others pass in ``delay`` seconds."""

        def pause(_way: str, _chunk: bytes) -> bool:
            time.sleep(delay)
            return False

        self._disturbed = True
        for proxy, _connects in self.links(node):
            proxy.on_chunk = pause

    def lag(self, node: ZooKeeper, seconds: float) -> None:
        """Let everything that the others say to ``node`` take that long."""
        self._disturbed = True
        for proxy, connects in self.links(node):
            proxy.lag[DOWN if connects else UP] = seconds

    def heal(self, timeout: float = 120.0) -> None:
        """Undo all of it, start what was killed, and wait until one server leads and the others follow."""
        if self._disturbed:
            self._restore_links()
        for node in self.ensemble.nodes:
            if not node.is_running():
                node.launch()
        wait_until(lambda: len(self._following()) == len(self.ensemble.nodes) - 1, timeout, "all follow")

    def _restore_links(self) -> None:
        for some in self._proxies.values():
            for proxy in some:
                proxy.refusing = False
                proxy.on_chunk = None
                proxy.lag.update({UP: 0.0, DOWN: 0.0})
                # What was held back belongs to connections that both ends have given up, or soon will.
                proxy.resume(drop=True)
                proxy.cut()
        self._disturbed = False

    def _following(self) -> list[ZooKeeper]:
        """Return the servers that say that they follow, and are connected to a leader.

        A server that has just lost its leader says that it follows until it has noticed.
        """
        return [node for node in self.ensemble.followers() if not self._linked or self._is_connected(node)]

    def _is_connected(self, node: ZooKeeper) -> bool:
        number = self._number(node)
        return any(quorum.connected for (of, _to), (quorum, _election) in self._proxies.items() if of == number)

    def follower(self) -> ZooKeeper:
        """Return a server that follows, waiting for an election that is under way."""
        following: list[ZooKeeper] = wait_until(self._following, 60.0, "a server follows")
        return following[0]

    def others(self, node: ZooKeeper) -> str:
        """Return the addresses of all servers but ``node``."""
        return ",".join(each.hosts for each in self.ensemble.nodes if each is not node)


Disturb = Callable[[Peers, ZooKeeper], None]
