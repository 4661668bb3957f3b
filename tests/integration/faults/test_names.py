"""DNS is silent or wrong while the servers run; names with several addresses, of which some are dead."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_zklock import doctor
from django_zklock.connections import connections
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import ensemble, snapshots
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.fake_dns import EMPTY, NXDOMAIN, SERVFAIL, SILENCE, Answer, FakeDns
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.timing import GRACE, LONG_SESSION, wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

NAME = "zk.test"
# Where nothing listens.
DEAF = "127.0.0.77"
# Where packets get lost.
DEAD = "127.0.0.88"
FAILURES = pytest.mark.parametrize(
    "answer",
    [NXDOMAIN, SERVFAIL, EMPTY, SILENCE, [DEAF]],
    ids=["nxdomain", "servfail", "empty", "silence", "another host"],
)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDns]:
    dns = FakeDns(monkeypatch)
    dns.answer(NAME, [LOOPBACK])
    yield dns
    dns.close()


@pytest.fixture
def dead(server: ZooKeeperServer) -> Iterator[str]:
    """Return an address at which the server's port drops what arrives: the backlog of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((DEAD, server.address[1]), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield DEAD


def named(server: ZooKeeperServer, name: str = NAME) -> str:
    return f"{name}:{server.address[1]}"


def reset(server: ZooKeeperServer, pool: Pool) -> None:
    """Reset the connections of a pool, and wait until its session is connected again, or has ended."""
    (session,) = pool.sessions()
    epoch, number = session.epoch, session.id
    server.faults.drop(number)
    wait_until(lambda: session.epoch > epoch and session.connected, LONG_SESSION)
    assert session.id == number


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs", "faults#dns-is-silent-or-wrong")
@FAILURES
def test_reset(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, answer: Answer) -> None:
    """A connection that breaks while DNS fails is made again, at an address that was known: no lock is lost."""
    pool = make_pool(named(server), session_timeout=LONG_SESSION, connect_timeout=2.0)
    held = Lock("k", pool).acquire(timeout=GRACE)
    dns.answer(NAME, answer)
    for _ in range(3):
        reset(server, pool)
        held.check()
        Lock("other", pool).acquire(timeout=GRACE).release(wait=True)
    held.release(wait=True)


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.parametrize("answer", [NXDOMAIN, SILENCE], ids=["nxdomain", "silence"])
def test_another_session(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, answer: Answer) -> None:
    """What one session has found, others use: one after it, one beside it, and one of another pool."""
    pool, other = (make_pool(named(server), session_timeout=LONG_SESSION, connect_timeout=1.0) for _ in range(2))
    Lock("k", pool).acquire(timeout=GRACE).release(wait=True)
    dns.answer(NAME, answer)
    assert snapshots.list_names(pool, timeout=GRACE) == ["k"]
    pool.close()
    for each in (pool, other):
        Lock("k", each).acquire(timeout=GRACE).release(wait=True)


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.parametrize("timeout", [0.1, 1.5])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [(NXDOMAIN, "Name or service not known"), (SILENCE, "no answer")],
    ids=["nxdomain", "silence"],
)
def test_first_use(make_pool: MakePool, dns: FakeDns, answer: Answer, reason: str, timeout: float) -> None:
    """Without a known address the error comes in time, and names the names, for a lock and for reading locks."""
    dns.answer("zk1.test", answer)
    dns.answer("zk2.test", answer)
    pool = make_pool("zk1.test:2181,zk2.test:2181", connect_timeout=1.0)
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable) as caught:
        Lock("k", pool).acquire(timeout)
    assert time.monotonic() - began < timeout + GRACE
    failed = f"the host name cannot be resolved: zk1.test: {reason}, zk2.test: {reason}"
    waiting = "no answer to the look-up of zk1.test, zk2.test"
    assert str(caught.value).startswith("lock 'k': no connection to ZooKeeper at zk1.test:2181,zk2.test:2181 (")
    assert f" ({failed}) within " in str(caught.value) or f" ({waiting}) within " in str(caught.value)
    wait_until(lambda: pool.sessions()[0].wire.failure)
    with pytest.raises(ZooKeeperUnavailable) as caught:
        snapshots.one_lock(pool, "k", timeout=0.5)
    assert "zk1.test" in str(caught.value)


def test_first_use__slow(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns) -> None:
    """An answer that takes longer than the share of a look-up is used when it comes."""
    dns.answer(NAME, SILENCE)
    pool = make_pool(named(server), connect_timeout=0.2)
    pool.session("/k")
    wait_until(lambda: pool.sessions()[0].wire.failure)
    dns.answer(NAME, [LOOPBACK])
    Lock("k", pool).acquire(timeout=GRACE).release(wait=True)


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.parametrize("bad", ["zk..test", f"{'x' * 64}.test", "silent.test", "unknown.test"])
def test_one_bad_name(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, bad: str) -> None:
    """A name that cannot be looked up leaves the others usable."""
    dns.answer("silent.test", SILENCE)
    dns.answer("unknown.test", NXDOMAIN)
    pool = make_pool(f"{bad}:2181,{named(server)}", connect_timeout=2.0)
    Lock("k", pool).acquire(timeout=GRACE).release(wait=True)


def test_reason_logged_once(
    server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, caplog: pytest.LogCaptureFixture
) -> None:
    """That a name cannot be resolved is one warning in an outage, whatever the number of attempts."""
    caplog.set_level("DEBUG", "django_zklock.kazoo")

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if record.message.startswith("Cannot resolve")]

    dns.answer(NAME, NXDOMAIN)
    pool = make_pool(named(server), connect_timeout=0.5)
    pool.session("/k")
    wait_until(lambda: len(levels()) >= 4)
    assert levels()[0] == "WARNING"
    assert set(levels()[1:]) == {"DEBUG"}


# Another ensemble.


@pytest.fixture
def foreign(server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """Return a server of another ensemble, a busy one, at the same port of another address; it is not started yet."""
    yield (other := ZooKeeperServer(host=DEAF, port=server.address[1], zxid=10_000))
    other.close()


def in_order(server: ZooKeeperServer, make_pool: MakePool) -> Pool:
    """Return a pool that tries addresses in the order of the answers."""
    extra = {"randomize_hosts": False}
    return make_pool(named(server), session_timeout=LONG_SESSION, connect_timeout=2.0, extra=extra)


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.parametrize("answer", [[DEAF], [DEAF, LOOPBACK]], ids=["alone", "beside"])
def test_another_ensemble(
    server: ZooKeeperServer, foreign: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, answer: Answer
) -> None:
    """A session is resumed where it lives, whatever servers DNS names by now; a new one is begun where DNS says."""
    foreign.start()
    pool = in_order(server, make_pool)
    held = Lock("k", pool).acquire(timeout=GRACE)
    dns.answer(NAME, answer)
    for _ in range(3):
        reset(server, pool)
    held.check()
    assert foreign.requests.all() == []
    held.release(wait=True)
    server.faults.expire(pool.sessions()[0].id)
    Lock("k", pool).acquire(timeout=GRACE).release(wait=True)
    assert foreign.requests.all() != []


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
def test_another_ensemble__took_an_address(
    server: ZooKeeperServer, foreign: ZooKeeperServer, make_pool: MakePool, dns: FakeDns
) -> None:
    """An address that belonged to a server when the connection began, and to another ensemble when it ends."""
    dns.answer(NAME, [LOOPBACK, DEAF])
    pool = in_order(server, make_pool)
    held = Lock("k", pool).acquire(timeout=GRACE)
    foreign.start()
    dns.answer(NAME, [LOOPBACK])
    reset(server, pool)
    held.check()
    assert foreign.requests.all() == []
    held.release(wait=True)


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
def test_another_ensemble__while_the_server_is_away(
    server: ZooKeeperServer, foreign: ZooKeeperServer, make_pool: MakePool, dns: FakeDns
) -> None:
    """While no server is there that has had the session, an answer that it has expired does not end it."""
    foreign.start()
    pool = in_order(server, make_pool)
    held = Lock("k", pool).acquire(timeout=GRACE)
    dns.answer(NAME, [DEAF])
    (session,) = pool.sessions()
    number = session.id
    with server.faults.refuse():
        server.faults.drop(number)
        wait_until(lambda: "one of another ensemble?" in session.wire.server)
    wait_until(lambda: session.connected)
    assert session.id == number
    held.check()
    held.release(wait=True)


# Several addresses of one name.


@pytest.mark.shows("faults#some-addresses-of-a-name-are-dead")
def test_dead_addresses(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, dead: str) -> None:
    """Each address of a name has its share of the connect timeout, which is enough for a first lock."""
    dns.answer(NAME, [dead, DEAF, LOOPBACK, dead, LOOPBACK])
    pool = make_pool(named(server), session_timeout=LONG_SESSION, connect_timeout=9.0, extra={"randomize_hosts": False})
    Lock("k", pool).acquire().release(wait=True)
    assert pool.sessions()[0].wire.addresses == 3


@pytest.mark.shows("faults#some-addresses-of-a-name-are-dead")
def test_dead_addresses__named(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, dead: str) -> None:
    """The error names the address that has not accepted: while it is tried, and after that."""
    dns.answer(NAME, [dead])
    port = server.address[1]
    at = rf"no connection to ZooKeeper at {NAME}:{port} \({NAME}/{dead}:{port}"
    pool = make_pool(named(server), connect_timeout=30.0)
    session = pool.session("/k")
    wait_until(lambda: dead in session.wire.server)
    with pytest.raises(ZooKeeperUnavailable, match=rf"{at} has not accepted yet\) within "):
        Lock("k", pool).acquire(timeout=0.5)
    pool = make_pool(named(server), connect_timeout=0.2)
    session = pool.session("/k")
    wait_until(lambda: session.wire.failure)
    with pytest.raises(ZooKeeperUnavailable, match=rf"{at}: .*timed out.*\) within "):
        Lock("k", pool).acquire(timeout=0.5)


def test_named(server: ZooKeeperServer, make_pool: MakePool, dns: FakeDns, caplog: pytest.LogCaptureFixture) -> None:
    """The log names a server as HOSTS does, beside its address, while it is connected, and when it has failed."""
    caplog.set_level("INFO", "django_zklock.session")
    pool = make_pool(named(server), session_timeout=LONG_SESSION, connect_timeout=2.0)
    at = f"{NAME}/{LOOPBACK}:{server.address[1]}"
    session = pool.session("/k")
    wait_until(lambda: session.connected)
    assert session.wire.peer == session.wire.server == at
    with server.faults.refuse():
        server.faults.drop(session.id)
        wait_until(lambda: f"({at}: " in session.wire.server)
    wait_until(lambda: session.connected)
    messages = [record.getMessage() for record in caplog.records]
    assert [each for each in messages if each.startswith(f"Connection dropped: {at}: ")]
    assert (
        len([each for each in messages if each.startswith("event=connected") and f" server={at} timeout=" in each]) == 2
    )


@pytest.mark.parametrize(("timeout", "level"), [(5, "ok"), (1, "warning")])
def test_doctor(server: ZooKeeperServer, settings: Settings, dns: FakeDns, timeout: float, level: str) -> None:
    """The doctor counts addresses, and not names."""
    dns.answer(NAME, [LOOPBACK, *(f"127.0.0.{number}" for number in (71, 72, 73))])
    settings.ZKLOCK = {"default": {"HOSTS": named(server), "CONNECT_TIMEOUT": timeout}}
    Lock("k", connections["default"]).acquire(timeout=GRACE).release(wait=True)
    (finding,) = [each for each in doctor.run("default") if each.id == "pool.connect-timeout"]
    assert finding.level == level
    assert f"each server has {timeout / 4:.2g} s" in finding.found


def test_doctor__dead_address(server: ZooKeeperServer, settings: Settings, dns: FakeDns, dead: str) -> None:
    """The doctor and the admin ask a server at each of its addresses."""
    dns.answer(NAME, [dead, LOOPBACK, LOOPBACK])
    settings.ZKLOCK = {"default": {"HOSTS": named(server)}}
    (found,) = ensemble.servers(connections["default"].options.connection, timeout=6.0)
    assert (found.role, found.problem) == ("standalone", "")


# The resolver of the system.


HOME = Path(__file__).resolve().parents[3]
GEVENT = "from gevent import monkey; monkey.patch_all()"
EVENTLET = "import eventlet; eventlet.monkey_patch()"


# The other failures of a system's resolver are the same exception, which FakeDns raises; greenlets have a resolver of
# their own.
@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.program
@pytest.mark.parametrize(
    ("mode", "patch"),
    [
        ("silent", ""),
        ("nxdomain", ""),
        ("elsewhere", ""),
        ("silent", GEVENT),
        ("silent", EVENTLET),
        ("empty", EVENTLET),
    ],
    ids=["silent", "nxdomain", "elsewhere", "gevent-silent", "eventlet-silent", "eventlet-empty"],
)
def test_system_resolver(mode: str, patch: str) -> None:
    """With the resolver of the system, or that of greenlets, and a DNS server that fails, a reset costs no lock."""
    apart = ["unshare", "--map-root-user", "--net", "--mount"]
    command = [*apart, sys.executable, "-W", "ignore", "-m", "tests.integration.faults.away_dns", mode, patch]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=HOME)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"lost": False, "same session": True}, run.stderr
