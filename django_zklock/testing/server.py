"""The server that tests start: an event loop in a thread of its own, and a listening socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from . import forks
from .connection import Connection
from .faults import Faults
from .port import Port
from .requestlog import RequestLog
from .service import Service, ServiceOptions

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
# Seconds in which the loop's thread must do what it is asked; it never waits for anybody.
PATIENCE = 10.0
BACKLOG = 4096


@dataclass(frozen=True)
class SessionInfo:
    """A session as it was when it was asked for; ``timeout`` is in seconds, as negotiated."""

    id: int
    timeout: float
    connected: bool
    ephemerals: tuple[str, ...]


class ZooKeeperServer:
    """A ZooKeeper for tests and laptops: one server, in memory, that speaks the client protocol of 3.8.

    It is not for production: it forgets everything when its process ends, is not replicated and was not made
    to resist attackers.

    A context manager; or ``start`` and ``stop`` it. A server that is started again is at the same address and
    still has its nodes and its sessions. Any thread of the process that made it may call any method.
    """

    def __init__(
        self,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        min_session_timeout: float = 0.2,
        max_session_timeout: float = 60.0,
        sessionless_timeout: float = 10.0,
        reap_interval: float = 60.0,
        zxid: int = 0,
    ) -> None:
        """Choose where to listen, port 0 for any that is free; nothing runs yet.

        Times are seconds. A client gets the session timeout that it wishes for, within the two bounds. A connection
        that has not asked for a session is closed after ``sessionless_timeout``. ``reap_interval`` is the time
        between two looks for empty containers and aged TTL nodes. Transactions are counted from ``zxid``: clients
        stay away from a server that is behind what they have seen, so one that takes the place of another begins above.
        """
        self.service = Service(
            ServiceOptions(
                min_session_timeout=min_session_timeout,
                max_session_timeout=max_session_timeout,
                sessionless_timeout=sessionless_timeout,
                reap_interval=reap_interval,
                zxid=zxid,
            )
        )
        self.connections: dict[Connection, None] = {}
        self.started_at = 0.0
        self.packets_received = self.packets_sent = 0
        self.faults = Faults(self)
        self._pid = os.getpid()
        # Kept while the server is stopped or refuses.
        self._port = Port(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: asyncio.Server | None = None
        # How many faults keep it from listening.
        self._refusals = 0
        # One thread at a time starts and stops it, and nobody asks its thread for anything meanwhile.
        self._state = threading.RLock()
        forks.let_go(self)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server, and give up its port."""
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is known once the server was started."""
        return self._port.host, self._port.number

    @property
    def hosts(self) -> str:
        """The address as clients write it, ``host:port``."""
        return str(self._port)

    @property
    def requests(self) -> RequestLog:
        """What clients have asked for."""
        self._check_process()
        return self.service.requests

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped; never in a fork of the process that made it."""
        return self._is_mine() and self._thread is not None

    def start(self) -> None:
        """Listen; raise OSError if the address cannot be had. A server that runs goes on."""
        self._check_process()
        with self._state:
            if self.running:
                return
            self._port.reserve()
            ready: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="zookeeper-server", daemon=True)
            self._thread.start()
            try:
                ready.result(PATIENCE)
            except BaseException:
                self.close()
                raise

    def stop(self) -> None:
        """End every connection and listen no more. Nodes and sessions wait for the next start."""
        if not self._is_mine():
            return
        with self._state:
            if self._thread is None:
                return
            # A thread that could not begin has ended by itself.
            with contextlib.suppress(RuntimeError):
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._thread = None

    def close(self) -> None:
        """Stop, and give up the port; a server that is started again wants the same one."""
        if not self._is_mine():
            return
        with self._state:
            self.stop()
            self._port.release()

    def sessions(self) -> list[SessionInfo]:
        """Give the sessions that live, oldest first."""

        def look() -> list[SessionInfo]:
            ephemerals = self.service.newest.tree.ephemerals
            return [
                SessionInfo(each.id, each.timeout, each.link is not None, tuple(ephemerals.get(each.id, ())))
                for each in self.service.sessions
            ]

        return self.call(look)

    def owner(self, path: str) -> int:
        """Give the session that an ephemeral node belongs to; raise LookupError if there is none."""
        for session in self.sessions():
            if path in session.ephemerals:
                return session.id
        msg = f"{path} is no ephemeral node"
        raise LookupError(msg)

    def paths(self, below: str = "/") -> list[str]:
        """Give the paths of the nodes below one, at any depth, sorted."""
        return self.call(lambda: sorted(self.service.newest.tree.descendants(below)))

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the event loop, and give what it returns or raise what it raises.

        Raises RuntimeError if the server does not run, or in a process that has only inherited it.
        """
        self._check_process()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)

        with self._state:
            self._running_loop().call_soon_threadsafe(run)
        return done.result(PATIENCE)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or not self.running:
            msg = "the server does not run; start it, or use it as a context manager"
            raise RuntimeError(msg)
        return self._loop

    def settle(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the event loop, or here if the server is stopped; never in a fork."""
        if not self._is_mine():
            return
        with self._state:
            if self.running:
                self.call(function)
            else:
                function()

    def wait_for_end(self, session: int, timeout: float = 5.0) -> None:
        """Wait until a session has ended, closed or expired, and its ephemeral nodes are gone.

        ``timeout`` is in seconds. Raises TimeoutError.
        """
        found = self.call(lambda: self.service.sessions.get(session))
        if found is not None and not found.ended.wait(timeout):
            msg = f"session 0x{session:x} has not ended in {timeout:g} s; its own timeout is {found.timeout:g} s"
            raise TimeoutError(msg)

    def accept(self) -> None:
        """Take a refusal back; the last one that is taken back has the server accept connections again."""
        if not self._is_mine():
            return
        with self._state:
            self._refusals -= 1
            if self.running and self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE)

    def refuse(self) -> None:
        """Accept no more connections; those there are stay."""
        self._check_process()
        with self._state:
            loop = self._running_loop()
            asyncio.run_coroutine_threadsafe(self._deafen(), loop).result(PATIENCE)
            self._refusals += 1

    def descriptors(self) -> list[int]:
        """Give the numbers of the sockets, for a fork to let go of; negative ones are closed."""
        listening = [] if self._listener is None else [sock.fileno() for sock in self._listener.sockets]
        return [self._port.descriptor, *listening, *(connection.descriptor for connection in self.connections)]

    async def _listen(self) -> None:
        if self._listener is None and not self._refusals:
            sock = self._port.bind()
            try:
                self._listener = await asyncio.get_running_loop().create_server(
                    lambda: Connection(self), sock=sock, backlog=BACKLOG
                )
            except BaseException:
                sock.close()
                raise

    async def _deafen(self) -> None:
        # Those that accept a connection: once the listener is closed, asyncio leaves it half made, and open.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        loop = self._loop = asyncio.new_event_loop()

        async def begin() -> None:
            await self._listen()
            self.started_at = time.time()
            self.service.start()

        try:
            loop.run_until_complete(begin())
        except BaseException as error:  # noqa: BLE001 - raised again where the server was started
            self._loop = None
            loop.close()
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._end())
            self._loop = None
            loop.close()

    async def _end(self) -> None:
        self.service.stop()
        await self._deafen()
        for connection in list(self.connections):
            connection.abort()
        # The loop tells them that they are lost in its next round.
        await asyncio.sleep(0)

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self._is_mine():
            msg = f"this server belongs to process {self._pid}, and {os.getpid()} is a fork of it"
            raise RuntimeError(msg)
