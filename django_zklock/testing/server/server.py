"""The server that tests start: an event loop in its own thread, and a listening socket."""

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

from . import fork_safety
from .connection import ClientConnection
from .faults import Faults
from .listener import Listener
from .port import Port
from .requestlog import RequestLog
from .service import Service, ServiceOptions

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
# Seconds for a call in the loop's thread, which never blocks.
CALL_TIMEOUT = 60.0


@dataclass(frozen=True)
class SessionInfo:
    """The state of a session at the time of the call; ``timeout`` is the granted one, in seconds."""

    id: int
    timeout: float
    connected: bool
    ephemerals: tuple[str, ...]


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose timers fire while a test freezes the time: sessions end, and delays are over."""

    def time(self) -> float:
        # freezegun replaces time.monotonic, which asyncio calls.
        return time.clock_gettime(time.CLOCK_MONOTONIC)


class ZooKeeperServer:
    """A ZooKeeper for tests and laptops: one server, in memory, that speaks the client protocol of 3.8.

    It is not for production: it loses everything when its process ends, is not replicated, and does not resist
    attackers.

    Use it as a context manager, or call ``start`` and ``close``. After ``stop`` and ``start`` it has the same address,
    nodes and sessions. Any thread of the process that created it may call any method.
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
        """Choose where to listen, port 0 for any free port; the server is not started yet.

        Times are in seconds. A client gets the session timeout that it requests, within the two limits. A connection
        without a session is closed after ``sessionless_timeout``. ``reap_interval`` is the time between two searches
        for empty containers and expired TTL nodes. Transactions are counted from ``zxid``: clients refuse a server
        with a smaller zxid than they have seen, so a server that replaces another one must start above it.
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
        self.connections: dict[ClientConnection, None] = {}
        self.started_at = 0.0
        self.packets_received = self.packets_sent = 0
        self.faults = Faults(self)
        self._pid = os.getpid()
        # Reserved even while the server is stopped or refuses connections.
        self._port = Port(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        # The number of faults that stop it from listening.
        self._refusals = 0
        # Guards start and stop; no call to its thread may happen meanwhile.
        self._state = threading.RLock()
        fork_safety.register(self)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server, and release its port."""
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; port 0 is replaced at the first start."""
        return self._port.host, self._port.number

    @property
    def hosts(self) -> str:
        """The address, ``host:port``."""
        return str(self._port)

    @property
    def requests(self) -> RequestLog:
        """The requests of clients."""
        self._check_process()
        return self.service.requests

    @property
    def running(self) -> bool:
        """Whether it is started; always false in a fork of the process that created it."""
        return self._is_mine() and self._thread is not None

    def start(self) -> None:
        """Start the server, unless it runs already; raise OSError if it cannot listen at its address."""
        self._check_process()
        with self._state:
            if self.running:
                return
            self._port.reserve()
            ready: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="zookeeper-server", daemon=True)
            self._thread.start()
            try:
                ready.result(CALL_TIMEOUT)
            except BaseException:
                self.close()
                raise

    def stop(self) -> None:
        """Stop listening and close every connection. Nodes and sessions are kept for the next start."""
        if not self._is_mine():
            return
        with self._state:
            if self._thread is None:
                return
            # The loop is closed if its thread could not start.
            with contextlib.suppress(RuntimeError):
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT)
            self._thread = None

    def close(self) -> None:
        """Stop, and release the port; a later start uses the same port again."""
        if not self._is_mine():
            return
        with self._state:
            self.stop()
            self._port.release()

    def sessions(self) -> list[SessionInfo]:
        """Return the open sessions, oldest first."""

        def read() -> list[SessionInfo]:
            ephemerals = self.service.newest.tree.ephemerals
            return [
                SessionInfo(each.id, each.timeout, each.link is not None, tuple(ephemerals.get(each.id, ())))
                for each in self.service.sessions
            ]

        return self.call(read)

    def owner(self, path: str) -> int:
        """Return the session of an ephemeral node; raise LookupError if there is none."""
        for session in self.sessions():
            if path in session.ephemerals:
                return session.id
        msg = f"{path} is not an ephemeral node"
        raise LookupError(msg)

    def paths(self, below: str = "/") -> list[str]:
        """Return the paths of the nodes below a path, at any depth, sorted."""
        return self.call(lambda: sorted(self.service.newest.tree.descendants(below)))

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the event loop, and return its result or raise its exception.

        Raises RuntimeError if the server does not run, or in a fork.
        """
        self._check_process()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                done.set_exception(error)

        with self._state:
            self._running_loop().call_soon_threadsafe(run)
        return done.result(CALL_TIMEOUT)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or not self.running:
            msg = "the server does not run; start it, or use it as a context manager"
            raise RuntimeError(msg)
        return self._loop

    def settle(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the event loop, or here if the server is stopped; in a fork do nothing."""
        if not self._is_mine():
            return
        with self._state:
            if self.running:
                self.call(function)
            else:
                function()

    def wait_for_end(self, session: int, timeout: float = 30.0) -> None:
        """Wait until a session was closed or has expired, and its ephemeral nodes are gone.

        ``timeout`` is in seconds. Raises TimeoutError.
        """
        found = self.call(lambda: self.service.sessions.get(session))
        if found is not None and not found.ended.wait(timeout):
            msg = f"session 0x{session:x} has not ended in {timeout:g} s; its session timeout is {found.timeout:g} s"
            raise TimeoutError(msg)

    def accept(self) -> None:
        """Take one refusal back; after the last one the server accepts connections again."""
        if not self._is_mine():
            return
        with self._state:
            self._refusals -= 1
            if self.running and self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(CALL_TIMEOUT)

    def refuse(self) -> None:
        """Accept no more connections; open connections stay."""
        self._check_process()
        with self._state:
            loop = self._running_loop()
            asyncio.run_coroutine_threadsafe(self._stop_listening(), loop).result(CALL_TIMEOUT)
            self._refusals += 1

    def descriptors(self) -> list[int]:
        """Return the file descriptors that a fork must release; negative ones are closed."""
        listening = [] if self._listener is None else [self._listener.descriptor]
        return [self._port.descriptor, *listening, *(connection.descriptor for connection in self.connections)]

    async def _listen(self) -> None:
        if self._listener is None and not self._refusals:
            self._listener = Listener(self._port.bind(), lambda address: ClientConnection(self, address))

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        loop = self._loop = _Loop()

        async def begin() -> None:
            await self._listen()
            self.started_at = time.time()
            self.service.start()

        try:
            loop.run_until_complete(begin())
        except BaseException as error:  # noqa: BLE001 - raised again in start
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
        await self._stop_listening()
        for connection in list(self.connections):
            connection.abort()
        # In its next iteration the loop calls their connection_lost.
        await asyncio.sleep(0)

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self._is_mine():
            msg = f"this server belongs to process {self._pid}; process {os.getpid()} is a fork of it"
            raise RuntimeError(msg)
