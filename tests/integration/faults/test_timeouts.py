"""How long a caller waits, for the lock and for ZooKeeper, and which error it gets in the end."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import search
from django_zklock.zk.waiting import boottime
from tests.toolbox.locks.contenders import is_watching
from tests.toolbox.locks.pools import MakePool, is_idle, wire_of
from tests.toolbox.network.port import free_port
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import GRACE, scaled, wait_until

# `timeout` covers everything.


@pytest.mark.shows("guarantees#timeouts-are-kept")
def test_timeout__first_use(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """The first call of a process waits for ZooKeeper as long as its timeout says, as every later one does."""
    pool = make_pool(connect_timeout=0.3)
    refused = server.faults.refuse()
    began = time.monotonic()
    first = waiting_in(Lock("k", pool))
    survey_of_all = Runner(lambda: search.find(pool, timeout=30))
    # Some time after the connect timeout.
    wait_until(lambda: time.monotonic() - began > 3 * pool.options.connect_timeout)
    assert first.running
    assert survey_of_all.running
    refused.end()
    first.result(30).release(wait=True)
    survey_of_all.result(30)


def test_timeout__first_use_ends(make_pool: MakePool) -> None:
    """It waits no longer either, and says for how long it did."""
    pool = make_pool("127.0.0.1:1", connect_timeout=0.1)
    began = time.monotonic()
    with pytest.raises(
        ZooKeeperUnavailable, match=r"no connection to ZooKeeper at 127\.0\.0\.1:1\b.* within [1-9][\d.]* s"
    ):
        Lock("k", pool).acquire(timeout=1)
    assert time.monotonic() - began >= 1


@pytest.mark.shows("guarantees#timeouts-are-kept")
@pytest.mark.parametrize("call", ["acquire", "try_acquire"])
def test_no_timeout__each_call_has_its_time(make_pool: MakePool, call: str) -> None:
    """Without a timeout each call waits for the connect timeout, whenever the outage has begun."""
    pool = make_pool("127.0.0.1:1", connect_timeout=0.5)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match=r"ZooKeeper at 127\.0\.0\.1:1\b"):
            getattr(Lock("k", pool), call)()
        assert 0.5 <= time.monotonic() - began < 0.5 + GRACE


@pytest.mark.shows("guarantees#timeouts-are-kept")
def test_timeout__place_outlived(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A waiter with a timeout waits until then, also if ZooKeeper is away for longer than its session can live."""
    held = Lock("k", make_pool(session_timeout=30)).acquire(timeout=120)
    pool = make_pool(session_timeout=1.0, connect_timeout=1.0)
    patient, other = waiting_in(Lock("k", pool)), Runner(lambda: Lock("k", pool).acquire())
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 3)
    wait_until(lambda: all(is_watching(each) for each in list(pool.sessions()[0].listeners)))
    with server.faults.refuse():
        server.faults.drop(pool.sessions()[0].id)
        # Without one it has to be told some time.
        assert isinstance(other.outcome(30), ZooKeeperUnavailable)
        assert patient.running
    held.release()
    patient.result(30).release(wait=True)


@pytest.mark.parametrize("fault", ["refuse", "black_hole"])
def test_timeout__away_at_the_deadline(server: ZooKeeperServer, make_pool: MakePool, fault: str) -> None:
    """A waiter that stands in the queue has met a holder, whatever happens to the connection at its deadline."""
    holding, waiting = make_pool(session_timeout=30), make_pool(session_timeout=30)
    held = Lock("k", holding).acquire(timeout=120)
    waiter = Runner(lambda: Lock("k", waiting).acquire(timeout=scaled(3)))
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2)
    session = waiting.session(held.lock.paths[0])
    wait_until(lambda: any(is_watching(each) for each in list(session.listeners)))
    began = time.monotonic()
    if fault == "refuse":
        server.faults.refuse()
        server.faults.drop(session.id)
    else:
        server.faults.black_hole(session=session.id)
    error = waiter.outcome(30)
    assert isinstance(error, LockTimeout)
    assert error.holder is not None
    # The session lives for 30 s, and what is asked at the deadline is not waited for as long.
    assert time.monotonic() - began < scaled(3) + GRACE
    server.faults.heal()
    held.release(wait=True)


def test_timeout__silent_at_the_deadline(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A waiter that has heard nothing for longer than its session lives does not say that a holder was in its way."""
    held = Lock("k", make_pool(session_timeout=30)).acquire(timeout=120)
    waiting = make_pool(session_timeout=1.0)
    waiter = Runner(lambda: Lock("k", waiting).acquire(timeout=scaled(4)))
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2)
    session = waiting.session(held.lock.paths[0])
    wait_until(lambda: any(is_watching(each) for each in list(session.listeners)))
    with server.faults.refuse():
        server.faults.drop(session.id)
        assert isinstance(waiter.outcome(30), ZooKeeperUnavailable)
    held.release(wait=True)


def test_timeout__closed(make_pool: MakePool) -> None:
    """There is nothing to wait for when the pool is closed."""
    pool = make_pool("127.0.0.1:1", connect_timeout=30)
    waiter = waiting_in(Lock("k", pool))
    wait_until(lambda: pool.sessions() and pool.sessions()[0].listeners)
    pool.close(1)
    assert isinstance(waiter.outcome(15), ZooKeeperUnavailable)


# A timeout that is shorter than an answer takes.

TINY = [0.001, 0.01, 0.05]


@pytest.mark.shows("guarantees#timeouts-are-kept")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
@pytest.mark.parametrize("timeout", TINY)
def test_tiny_timeout__slow(server: ZooKeeperServer, make_pool: MakePool, timeout: float, asynchronous: bool) -> None:
    """A timeout that is too short for any answer is a timeout, not an outage: nothing says that ZooKeeper is away."""
    pool = make_pool()
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    with server.faults.delay(0.3), pytest.raises(LockTimeout, match="ZooKeeper had not answered by then") as caught:
        asyncio.run(lock.aacquire(timeout)) if asynchronous else lock.acquire(timeout)
    assert f"within {timeout:g} s" in str(caught.value)
    assert (caught.value.key, caught.value.timeout, caught.value.holder) == ("k", timeout, None)
    wait_until(lambda: is_idle(pool))
    assert server.paths(lock.paths[0]) == []


@pytest.mark.shows("guarantees#timeouts-are-kept")
@pytest.mark.parametrize("heard", [False, True], ids=["silence", "heard of"])
def test_short_timeout__heard_of(server: ZooKeeperServer, make_pool: MakePool, heard: bool) -> None:
    """Whether ZooKeeper is away or slow is told by whether anything came over the connection since it was asked."""
    pool = make_pool(session_timeout=60)
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    with server.faults.black_hole("requests") as hole:
        waiter = Runner(lambda: lock.acquire(timeout=scaled(2)))
        hole.requests.wait_for("create2")
        if heard:
            # As an event or the answer to an earlier request would.
            wire_of(pool.sessions()[0])._connection.received = boottime()
        error = waiter.outcome(30)
    assert isinstance(error, LockTimeout if heard else ZooKeeperUnavailable)


def test_timeout__ends_the_wait_for_the_answer(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """The time for ZooKeeper's answer is a part of the timeout and comes not on top of it; no other limit is near."""
    pool = make_pool(session_timeout=120, connect_timeout=60)
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    with server.faults.black_hole("requests"):
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match=r"no answer from ZooKeeper at .* within [1-9][\d.]* s"):
            Runner(lambda: lock.acquire(timeout=1)).result(55)
        assert 1 <= time.monotonic() - began < 1 + GRACE


@pytest.mark.parametrize("timeout", TINY)
def test_tiny_timeout__no_connection(make_pool: MakePool, timeout: float) -> None:
    """Without a connection it is an outage, and the time in the message is never none."""
    pool = make_pool("127.0.0.1:1")
    with pytest.raises(ZooKeeperUnavailable, match="no connection to ZooKeeper") as caught:
        Lock("k", pool).acquire(timeout)
    (waited,) = re.findall(r"within ([\d.]+) s", str(caught.value))
    assert float(waited) > 0


# Slow servers.


@pytest.mark.shows("faults#all-servers-are-slow-to-accept")
def test_connecting__slow_servers(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A handshake that takes longer than a server's share of the connect timeout succeeds: the share grows."""
    pool = make_pool(",".join([server.hosts] * 5), connect_timeout=2.0)
    share = pool.options.connect_timeout / 5
    with server.faults.delay(share):
        held = Lock("k", pool).acquire(timeout=scaled(60))
    held.check()
    held.release(wait=True)
    # The next connection begins with equal shares again.
    assert wire_of(pool.sessions()[0])._connection.server_limit == pytest.approx(share)


def test_connecting__no_longer_than_the_timeout(make_pool: MakePool) -> None:
    """However often it is tried, no server gets more than the whole time."""
    pool = make_pool("127.0.0.1:1,127.0.0.1:2", connect_timeout=0.5)
    with pytest.raises(ZooKeeperUnavailable):
        Lock("k", pool).acquire(timeout=scaled(2))
    assert wire_of(pool.sessions()[0])._connection.server_limit == pytest.approx(pool.options.connect_timeout)


def test_connecting__reason_logged_once(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    """Of the many attempts in an outage only the first that fails for a reason is a warning."""

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if record.message.startswith("Connection dropped")]

    caplog.set_level("DEBUG", "django_zklock.kazoo")
    pool = make_pool(f"127.0.0.1:{free_port()}", connect_timeout=0.5)
    with pytest.raises(ZooKeeperUnavailable):
        Lock("k", pool).acquire()
    wait_until(lambda: len(levels()) >= 3)
    assert set(levels()[1:]) == {"DEBUG"}
    assert levels()[0] == "WARNING"


def test_last_words() -> None:
    """A program without a configuration of logging that ends after a failure: our error is the last line on stderr."""
    code = """
from django.conf import settings
settings.configure(ZKLOCK={"default": {"HOSTS": "127.0.0.1:1", "CONNECT_TIMEOUT": 0.5}})
from django_zklock import zk_lock
zk_lock("k").acquire()
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("django_zklock.exceptions.ZooKeeperUnavailable: lock 'k': no connection to ZooKeeper"), last
