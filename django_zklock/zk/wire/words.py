"""Four-letter words: what a server tells of itself without a session (Administrator's Guide, "Commands")."""

from __future__ import annotations

import socket

from kazoo.hosts import collect_hosts

from django_zklock.zk.deadline import Deadline
from django_zklock.zk.wire.handler import tls_context
from django_zklock.zk.wire.options import ConnectionOptions

# The longest true answer, that to "mntr", has some 20 kB.
MAX_ANSWER = 64 * 1024
CHUNK = 4096


def addresses(hosts: str) -> list[tuple[str, int]]:
    """Give host and port of each server in ``hosts``, without the chroot; ``ValueError`` if that is no list of them."""
    found: list[tuple[str, int]] = collect_hosts(hosts)[0]
    return found


def ask(options: ConnectionOptions, address: tuple[str, int], word: str, deadline: Deadline) -> str:
    """Send ``word`` to the server at ``address`` and give its answer, of a longer one the first 64 kB.

    Raises ``OSError`` if it cannot be reached, TLS fails, or it has not answered in full at ``deadline``. Looking up
    its name is up to the system, and may take longer.
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
        chunk = sock.recv(CHUNK)
        if not chunk:
            break
        answer += chunk
    return answer[:MAX_ANSWER].decode(errors="replace")
