"""A client in a network with a DNS server of its own, which fails when the client's connection breaks.

``unshare --map-root-user --net --mount python -m tests.integration.faults.away_dns MODE PATCH`` prints what became of a
lock, as JSON. MODE says what DNS does: ``silent``, ``servfail``, ``nxdomain``, ``empty``, or ``elsewhere`` for an
address where nothing listens. PATCH is what the client runs first, such as the monkey-patching of a library.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

NAME_SERVER, SERVER, ELSEWHERE = "127.0.0.53", "127.0.0.1", "127.0.0.9"
PORT = 2181
HEADER = struct.Struct(">HHHHHH")
ANSWERED, SERVFAIL, NXDOMAIN = 0x8180, 0x8182, 0x8183
A = 1
# From the system's net/if.h and sockios.h.
SET_FLAGS, UP, RUNNING = 0x8914, 0x1, 0x40


class NameServer:
    """Answers every question for an address of IPv4, as its mode says."""

    def __init__(self) -> None:
        self.mode = "ok"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((NAME_SERVER, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            if self.mode != "silent":
                self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        (number,) = struct.unpack_from(">H", query)
        # The name ends with an empty label; its type and class follow.
        end = query.index(b"\0", HEADER.size) + 5
        (kind,) = struct.unpack_from(">H", query, end - 4)
        address = {"ok": SERVER, "elsewhere": ELSEWHERE}.get(self.mode)
        record = b""
        if address is not None and kind == A:
            record = struct.pack(">HHHIH", 0xC000 | HEADER.size, A, 1, 0, 4) + socket.inet_aton(address)
        flags = {"servfail": SERVFAIL, "nxdomain": NXDOMAIN}.get(self.mode, ANSWERED)
        return HEADER.pack(number, flags, 1, bool(record), 0, 0) + query[HEADER.size : end] + record


def use_own_network() -> None:
    """Turn the loopback interface on, and let the system ask our server for each name but localhost."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SET_FLAGS, struct.pack("16sH14x", b"lo", UP | RUNNING))
    folder = Path(tempfile.mkdtemp())
    for path, text in {
        "/etc/resolv.conf": f"nameserver {NAME_SERVER}\n",
        "/etc/hosts": "127.0.0.1 localhost\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }.items():
        own = folder / Path(path).name
        own.write_text(text)
        subprocess.run(["mount", "--bind", own, path], check=True)


def main(mode: str, patch: str) -> None:
    """Serve the client until it has ended, and let DNS fail and its connection break when it says so."""
    use_own_network()
    name_server = NameServer()
    with ZooKeeperServer(port=PORT) as server:
        command = [sys.executable, "-c", f"{patch}\nfrom tests.integration.faults.away_dns import client; client()"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            name_server.mode = mode
            server.faults.drop()
            sys.stdout.write(process.stdout.read())
        sys.exit(process.returncode)


def client() -> None:
    """Hold a lock over a reset of the connection, take another one after it, and print the result."""
    options = ConnectionOptions(hosts=f"zk.test:{PORT}", session_timeout=15.0)
    pool = Pool("apart", PoolOptions(connection=options, connect_timeout=5.0))
    held = Lock("k", pool).acquire(timeout=30)
    (session,) = pool.sessions()
    number, epoch = session.id, session.epoch
    sys.stdout.write("held\n")
    sys.stdout.flush()
    # Until it is lost, if it is not connected again.
    while not held.lost and not (session.epoch > epoch and session.connected):
        time.sleep(0.05)
    lost = held.lost
    Lock("other", pool).acquire(timeout=30).release(wait=True)
    sys.stdout.write(json.dumps({"lost": lost, "same session": session.id == number}))
    pool.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
