"""What the errors of an acquisition advise."""

from __future__ import annotations

from contextlib import closing

import pytest

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import snapshots
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.network.tcp_proxy import Proxy


def test_local__nothing_listens() -> None:
    """Where nothing listens on this machine, the error names the server for development, and ends with the doctor."""
    connection = ConnectionOptions(hosts=f"{LOOPBACK}:{free_port()}")
    advice = r"Connection refused.*`manage\.py zklock devserver` starts one .*`manage\.py zklock doctor` examines it$"
    pool = Pool("absent", PoolOptions(connection=connection, connect_timeout=1.0))
    with closing(pool):
        with pytest.raises(ZooKeeperUnavailable, match=advice):
            Lock("k", pool).acquire()
        with pytest.raises(ZooKeeperUnavailable, match=advice):
            snapshots.one_lock(pool, "k", timeout=1)


def test_no_quorum() -> None:
    """If one server accepts connections and closes them and the others are down, the error says so at each try, of a
    lock and of a read, and names the doctor; a server for development would not help.
    """
    # A proxy without a server behind it closes what it has accepted.
    with Proxy((LOOPBACK, free_port())) as serving:
        hosts = f"{LOOPBACK}:{free_port()},{serving.hosts},{LOOPBACK}:{free_port()}"
        pool = Pool("minority", PoolOptions(connection=ConnectionOptions(hosts=hosts)))
        with closing(pool):
            for _ in range(10):
                with pytest.raises(ZooKeeperUnavailable) as caught:
                    Lock("k", pool).acquire(timeout=1)
                assert (
                    "takes no session, as without a quorum, or where it expects TLS; `manage.py zklock doctor`"
                    in str(caught.value)
                )
                assert "devserver" not in str(caught.value)
            with pytest.raises(ZooKeeperUnavailable, match=r"expects TLS; `manage\.py zklock doctor`"):
                snapshots.one_lock(pool, "k", timeout=1)
