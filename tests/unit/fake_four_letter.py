"""A listener that is no ZooKeeper, and answers four-letter words as a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Answer = Callable[[str], "Iterable[bytes] | None"]
"""Sets the pieces of the answer to a word; ``None`` for no answer, and no end of the connection either."""

SERVING = """Zookeeper version: {version}-deadbeef, built on 2026-01-01 00:00 UTC
Latency min/avg/max: 0/1.5/12
Received: 10
Sent: 9
Connections: 3
Outstanding: 1
Zxid: 0x100000002
Mode: {mode}
Node count: 5
"""
WITHHELD = "{word} is not executed because it is not in the whitelist.\n"


class Talker:
    """Listens on the loopback interface; each connection has a thread of its own."""

    def __init__(self, answer: Answer, *, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        number = self._listener.getsockname()[1]
        self.hosts = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        self._answer = answer
        self._connections: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, name="talker", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        # Which wakes the thread that waits at it; to close it alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # gone already
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        # Until the listener is shut down.
        with contextlib.suppress(OSError):
            while True:
                connection, _address = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._talk, args=(connection,), name="talker", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        # The client that asked may have gone.
        with contextlib.suppress(OSError):
            pieces = self._answer(connection.recv(4).decode("ascii", "replace"))
            if pieces is not None:
                for piece in pieces:
                    connection.sendall(piece)
                connection.close()


def serving(*, version: str = "3.8.0", mode: str = "follower") -> Answer:
    """Return the answers of a server that takes part, and allows what is allowed by default."""

    def answer(word: str) -> list[bytes]:
        text = SERVING.format(version=version, mode=mode) if word == "srvr" else WITHHELD.format(word=word)
        return [text.encode()]

    return answer
