"""The listening socket of a server: it accepts connections, and pauses when file descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger("django_zklock.testing")

# Connections that the system queues until they are accepted.
BACKLOG = 4096
# Connections accepted before the event loop serves the open ones.
BATCH = 100
# Seconds between two attempts while there is a shortage of file descriptors or memory.
RETRY_INTERVAL = 0.5
Address = tuple[str, int]
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Accept the connections of a socket; belongs to the thread of the event loop.

    ``asyncio.Server`` is not used because without file descriptors it logs one traceback for each connection that the
    backlog has room for, and again after each second.
    """

    def __init__(self, sock: socket.socket, make_protocol: Callable[[Address], asyncio.Protocol]) -> None:
        """Start to listen; on failure close the socket and raise OSError.

        ``make_protocol`` is called with the address of the client: a connection that was reset has none.
        """
        self._socket = sock
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        # Accepted connections without a protocol.
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        # A shortage is logged once, until no connection waits to be accepted.
        self._short = False
        try:
            sock.setblocking(False)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._watch()

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; negative after it is closed."""
        return self._socket.fileno()

    async def close(self) -> None:
        """Stop accepting, and wait until each accepted connection has its protocol."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        await asyncio.gather(*self._tasks)

    def _watch(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _try_again(self) -> None:
        self._retry = None
        self._watch()
        # The waiting connections may be gone: then the event loop would not call.
        self._accept()

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._none_waiting()
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                self._wait(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection, address[:2]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _none_waiting(self) -> None:
        # The shortage ends only when no connection waits: an accepted one may be followed by others.
        if self._short:
            self._short = False
            logger.warning("event=accepting_again port=%s", self._socket.getsockname()[1])

    def _wait(self, error: OSError) -> None:
        # The socket stays readable: without this the event loop would call again at once.
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(RETRY_INTERVAL, self._try_again)
        if not self._short:
            self._short = True
            logger.error(
                "event=cannot_accept port=%s error=%r: close connections or raise the limit (ulimit -n); "
                "trying again every %g s",
                self._socket.getsockname()[1],
                error,
                RETRY_INTERVAL,
            )

    async def _connect(self, connection: socket.socket, address: Address) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(address), connection)
        except OSError:
            # The client is gone already.
            connection.close()
