"""The reason why a connection is not made: what answers at the port is no ZooKeeper, or speaks another protocol."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import ensemble, snapshots
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.timing import scaled


@contextmanager
def other_server(answer: bytes) -> Iterator[str]:
    """Run a server that answers everything so, and closes the connection."""
    with closing(socket.create_server((LOOPBACK, 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _address = listener.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(answer)
                except OSError:
                    # A client has gone, or the test is over.
                    if listener.fileno() == -1:
                        return

        threading.Thread(target=serve, daemon=True).start()
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def failure(hosts: str, *, use_tls: bool = False) -> str:
    """Return the error of a read in vain."""
    connection = ConnectionOptions(hosts=hosts, use_tls=use_tls)
    pool = Pool("strange", PoolOptions(connection=connection, connect_timeout=scaled(1.0)))
    try:
        with pytest.raises(ZooKeeperUnavailable) as caught:
            snapshots.list_names(pool, timeout=scaled(3.0))
    finally:
        pool.close(5.0)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server is no ZooKeeper: its answer begins with b'HTTP'"),
        (b"-ERR unknown command\r\n", "the server is no ZooKeeper: its answer begins with b'-ERR'"),
        (b"\x80\x00\x00\x01", r"the server is no ZooKeeper: its answer begins with b'\x80\x00\x00\x01'"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "the server speaks TLS at this port, and TLS is not in ZKLOCK"),
    ],
    ids=["web server", "redis", "negative", "alert"],
)
def test_other_server(answer: bytes, reason: str) -> None:
    """A program that is no ZooKeeper, or a port for TLS, is the reason of the error, and not a lack of quorum."""
    with other_server(answer) as hosts:
        text = failure(hosts)
    assert f"({reason}) within " in text
    assert "quorum" not in text


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["ZooKeeper", "web server"])
def test_tls__of_a_server_without(answer: bytes | None) -> None:
    """With TLS in the setting a server without it is the reason, before what OpenSSL says."""
    if answer is None:
        with ZooKeeperServer() as server:
            text, states = failure(server.hosts, use_tls=True), servers(server.hosts)
    else:
        with other_server(answer) as hosts:
            text, states = failure(hosts, use_tls=True), servers(hosts)
    assert re.search(r"the server does not seem to speak TLS at this port: .*SSL", text)
    assert states[0].startswith("the server does not seem to speak TLS at this port: ")


def servers(hosts: str) -> list[str]:
    """Return the problem of each server, as the doctor reads it."""
    found = ensemble.servers(ConnectionOptions(hosts=hosts, use_tls=True), timeout=scaled(5.0))
    return [each.problem for each in found]
