"""A server that takes the session and closes the connection at a request, as old ClickHouse Keepers do, and proxies."""

from __future__ import annotations

import logging
import math
import re
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from socket import SHUT_RDWR, create_server, socket
from typing import TYPE_CHECKING

import pytest

from django_zklock import doctor
from django_zklock.exceptions import LockLost, ZooKeeperUnavailable
from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import snapshots
from tests.integration.faults.haproxy import HAProxy
from tests.integration.refusing_server import Refusals
from tests.toolbox.locks.pools import MakePool, wire_of
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import GRACE, LONG_SESSION, wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

QUESTION = "is it ZooKeeper 3.6 or newer, is jute.maxbuffer the default?"
CLOSES = "the server takes the session, and closes the connection"
# Seconds, and how many connections come in this time: without pauses there are more than ten in a second.
WINDOW, CONNECTIONS = 5.0, 20


def connections(server: ZooKeeperServer) -> int:
    return sum(each.opcode is Opcode.CONNECT for each in server.requests.all())


def refused(call: Callable[[], object]) -> str:
    """Return the error of a call in vain. However slow this machine is, several connections have ended by then."""
    error = Runner(call).outcome(WINDOW + GRACE)
    assert isinstance(error, ZooKeeperUnavailable)
    return str(error)


@pytest.mark.shows("faults#a-server-closes-the-connection-at-a-request")
@pytest.mark.parametrize(
    ("opcode", "named"),
    [
        ("createContainer", "createContainer, create2 or getChildren"),
        ("create2", "create2 or getChildren"),
        ("getChildren", "getChildren"),
    ],
)
def test_first_use(
    server: ZooKeeperServer,
    make_pool: MakePool,
    refusals: Refusals,
    caplog: pytest.LogCaptureFixture,
    opcode: str,
    named: str,
) -> None:
    """There are pauses between the connections, few warnings, and an error that names the request."""
    refusals.refuse(opcode, code=None, times=math.inf)
    pool = make_pool(session_timeout=LONG_SESSION)
    text = refused(lambda: Lock("k", pool).acquire(WINDOW))
    assert f" ({CLOSES} at {named}: {QUESTION}) within " in text
    assert connections(server) <= CONNECTIONS
    dropped = [each.levelno for each in caplog.records if each.message.startswith("Connection dropped")]
    assert dropped.count(logging.WARNING) <= 2


@pytest.mark.shows("faults#a-server-closes-the-connection-at-a-request")
def test_later(server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals) -> None:
    """A request in the middle of a connection's life is found too, and the others go on when it is over."""
    pool = make_pool(session_timeout=LONG_SESSION)
    lock = Lock("k", pool)
    held = lock.acquire(timeout=GRACE)
    before = connections(server)
    refusal = refusals.refuse("multiRead", "getChildren2", "getData", code=None, times=math.inf)
    text = refused(lambda: snapshots.one_lock(pool, "k", timeout=WINDOW))
    assert CLOSES in text
    assert connections(server) - before <= 2 * CONNECTIONS
    refusal.end()
    held.check()
    held.release(wait=True)
    lock.acquire(timeout=GRACE).release(wait=True)
    # Until the connection has served for a while, its end may be one more.
    wait_until(lambda: pool.sessions()[0].wire.server == server.hosts)


def handshakes_only(listener: socket) -> None:
    """Accept each session, and close the connection."""
    answer = struct.pack(">iiqi16s?", 0, 10_000, 77, 16, bytes(16), False)
    while True:
        try:
            connection, _address = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:
            if listener.fileno() == -1:
                return


@pytest.mark.shows("faults#a-server-closes-the-connection-at-a-request")
def test_at_once(make_pool: MakePool) -> None:
    """A server that takes the session and closes before a request is named as such, and not asked without pauses."""
    with closing(create_server((LOOPBACK, 0))) as listener:
        threading.Thread(target=handshakes_only, args=[listener], daemon=True).start()
        pool = make_pool(f"{LOOPBACK}:{listener.getsockname()[1]}", session_timeout=LONG_SESSION)
        session = pool.session("/k")
        wait_until(lambda: session.wire.failure)
        assert session.wire.failure == f"{CLOSES}: {QUESTION}"
        text = refused(lambda: Lock("k", pool).acquire(WINDOW))
        assert f"({CLOSES}" in text
        listener.shutdown(SHUT_RDWR)


def test_doctor(server: ZooKeeperServer, refusals: Refusals, settings: Settings) -> None:
    """The doctor names the request, and what to look for."""
    settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": WINDOW}}
    refusals.refuse("createContainer", code=None, times=math.inf)
    findings = {each.id: each for each in doctor.run("default")}
    assert f"{CLOSES} at createContainer" in findings["lock.trial"].found
    assert "jute.maxbuffer" in findings["lock.trial"].advice
    assert findings["pool.sessions"].level == "error"
    assert f"{CLOSES} at createContainer" in findings["pool.sessions"].found


@pytest.mark.shows("faults#a-load-balancer-closes-idle-connections")
def test_idle(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """Where something between closes idle connections, the lock is kept, and a reconnect does not wait."""
    with Proxy(server.address) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=LONG_SESSION)
        held = Lock("k", pool).acquire(timeout=GRACE)
        (session,) = pool.sessions()
        for _ in range(8):
            wait_until(lambda: session.connected and not wire_of(session)._client._pending)
            ended = session.epoch + 1
            proxy.cut()
            wait_until(partial(lambda epoch: session.epoch == epoch and session.connected, ended))
        held.check()
        assert session.wire.failure is None
        Lock("other", pool).acquire(timeout=GRACE).release(wait=True)
        held.release(wait=True)


@pytest.mark.shows("faults#a-load-balancer-closes-idle-connections")
def test_load_balancer(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """Behind a load balancer that closes idle connections the lock is kept, and locks are taken meanwhile."""
    with HAProxy(server.hosts, idle=500) as balancer:
        # A pause is shorter than the time for which a connection may be idle, as with the defaults.
        pool = make_pool(balancer.hosts, session_timeout=8.0)
        held = Lock("k", pool).acquire(timeout=GRACE)
        waiter = waiting_in(Lock("k", pool))
        (session,) = pool.sessions()
        number = session.id
        for count in range(5):
            Lock(f"other-{count}", pool).acquire(timeout=GRACE).release(wait=True)
            ended = session.epoch + 1
            wait_until(partial(lambda epoch: session.epoch >= epoch and session.connected, ended))
        held.check()
        assert session.id == number
        held.release()
        waiter.result().release(wait=True)
        # A session without a lock is idle between two heartbeats.
        ended = session.epoch + 3
        wait_until(lambda: session.epoch >= ended)
        Lock("k", pool).acquire(timeout=GRACE).release(wait=True)


def test_proxy_without_server(make_pool: MakePool) -> None:
    """A proxy that accepts and closes takes no session: that is another reason."""
    with Proxy((LOOPBACK, 1)) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=LONG_SESSION)
        text = refused(lambda: Lock("k", pool).acquire(2.0))
    assert "the server has closed the connection instead of accepting" in text


@pytest.mark.shows("faults#a-server-demands-an-identity-or-answers-any-other-error")
@pytest.mark.parametrize("opcode", ["createContainer", "create2", "multi", "sync", "getData"])
def test_authentication_demanded(server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, opcode: str) -> None:
    """A server that demands an identity says so in its answer to any request: the error comes at once."""
    refusals.refuse(opcode, code=-124, times=math.inf)
    refusals.refuse("ping", code=-124, times=math.inf)
    pool = make_pool(session_timeout=2.0)
    words = "authentication was refused, check AUTH and SASL in ZKLOCK: the server demands it of every client"
    if opcode in {"createContainer", "create2"}:
        text = refused(lambda: Lock("k", pool).acquire(LONG_SESSION))
        assert words in text
    else:
        held = Lock("k", pool).acquire(timeout=GRACE)
        # A heartbeat, and a connection that is made anew.
        wait_until(lambda: held.lost)
        with pytest.raises(LockLost, match=words):
            held.check()
    assert connections(server) == 1


@pytest.mark.shows("faults#a-server-demands-an-identity-or-answers-any-other-error")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-115, "authentication was refused"),
        (-124, "authentication was refused"),
        (-102, "authentication was refused"),
        (-127, r"the answer to the authentication is ThrottledOpError\(\)"),
        (-4711, "the answer to the authentication cannot be used"),
    ],
)
def test_authentication_answered(
    server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, code: int, reason: str
) -> None:
    """What a server answers to the credentials ends the session if it refuses them, and else the attempt."""
    refusal = refusals.refuse("auth", code=code, times=math.inf)
    pool = make_pool(session_timeout=LONG_SESSION, auth=[("digest", "shop:secret")])
    if reason == "authentication was refused":
        error = Runner(lambda: Lock("k", pool).acquire(LONG_SESSION)).outcome(GRACE)
        assert reason in str(error)
        assert refusal.count == 1
    else:
        waiter = waiting_in(Lock("k", pool))
        refusal.wait_for(2)
        assert re.search(reason, pool.sessions()[0].wire.failure or "")
        refusal.end()
        waiter.result().release(wait=True)
