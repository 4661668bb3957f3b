"""What the errors of an acquisition advise."""

from __future__ import annotations

from contextlib import closing

import pytest
from services.port import LOOPBACK, free_port

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.failures import _are_local
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions


@pytest.mark.parametrize(
    ("hosts", "local"),
    [
        ("localhost", True),
        ("localhost:2181", True),
        ("127.0.0.1:2181/app", True),
        ("127.0.0.1:2181, 127.0.0.1:2182,[::1]:2183", True),
        ("127.0.0.1:2181,zk1:2181", False),
        ("localhost.example.org:2181", False),
        ("zk1:2181/localhost", False),
    ],
)
def test_local(hosts: str, local: bool) -> None:
    """Only for servers on this machine is the development server an answer."""
    assert _are_local(hosts) is local


def test_local__nothing_listens() -> None:
    """Where nothing listens on this machine, the error names the server for development."""
    connection = ConnectionOptions(hosts=f"{LOOPBACK}:{free_port()}")
    advice = r"Connection refused.*`manage\.py zklock devserver` starts one"
    pool = Pool("absent", PoolOptions(connection=connection))
    with closing(pool), pytest.raises(ZooKeeperUnavailable, match=advice):
        Lock("k", pool).acquire()
