"""Four-letter words: commands that a server answers without a session (Administrator's Guide, "Commands")."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from django_zklock.zk.waiting import Deadline
from django_zklock.zk.wire.options import ConnectionOptions, tls_context

# The longest answer of a real server, that to "mntr", has about 20 kB.
MAX_ANSWER = 64 * 1024
CHUNK_SIZE = 4096
DEFAULT_PORT = 2181


def addresses(hosts: str) -> list[tuple[str, int]]:
    """Return host and port of each server in ``hosts``, without the chroot; raise ``ValueError`` for another text."""
    servers, _, _chroot = hosts.partition("/")
    # As kazoo reads them: IPv6 addresses stand in brackets.
    parts = [urlsplit(f"//{server.strip()}") for server in servers.split(",")]
    if not all(part.hostname for part in parts):
        raise ValueError(f"a server has no name: {hosts!r}")
    return [(part.hostname or "", part.port or DEFAULT_PORT) for part in parts]


def send(options: ConnectionOptions, address: tuple[str, int], word: str, deadline: Deadline) -> str:
    """Send ``word`` to the server at ``address`` and return the first 64 kB of its answer.

    Raises ``OSError`` if the server cannot be reached, TLS fails, or the answer is not complete at ``deadline``. The
    system resolves the host name, which may take longer.
    """
    with socket.create_connection(address, deadline.remaining()) as plain:
        if not options.use_tls:
            return _exchange(plain, word, deadline)
        with tls_context(options).wrap_socket(plain, server_hostname=address[0]) as secure:
            return _exchange(secure, word, deadline)


def _exchange(sock: socket.socket, word: str, deadline: Deadline) -> str:
    sock.sendall(word.encode("ascii"))
    answer = bytearray()
    while len(answer) < MAX_ANSWER:
        left = deadline.remaining()
        if left == 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        chunk = sock.recv(CHUNK_SIZE)
        if not chunk:
            break
        answer += chunk
    return answer[:MAX_ANSWER].decode(errors="replace")
