"""TLS, SASL and ACL against a real server that asks for them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from kazoo.client import KazooClient

from django_zklock import ZkLockError, ZooKeeperUnavailable, doctor, zk_lock
from django_zklock.connections import connections
from django_zklock.doctor import Finding
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire.connection import ThreadingHandler
from django_zklock.zk.wire.names import Names
from tests.toolbox.locks.pools import wire_of
from tests.toolbox.network.certificates import Authority, Issued
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, MAX_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.zookeeper, pytest.mark.xdist_group("secure")]

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "localhost"
# A client that may not connect learns that after this.
TIMEOUT = 1.5
# Seconds, for a busy machine; also the limit of attempts that are to end long before it.
LONG = 60.0
TIMES = {"SESSION_TIMEOUT": 6.0, "CONNECT_TIMEOUT": LONG}
SASL = {"mechanism": "DIGEST-MD5", "username": "shop", "password": "right"}


class Papers:
    """The certificates of everybody in these tests."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue(NAME)
        self.client = self.authority.issue("client")
        self.locked = self.authority.issue("locked", password="opens")
        self.other_authority = Authority(folder, "other")

    def tls(self, client: Issued | None = None, **values: Any) -> dict[str, Any]:
        """Return the setting that is right, with ``values`` that may not be; ``None`` leaves a key out."""
        client = client or self.client
        setting: dict[str, Any] = {
            "CA": str(self.authority.certificate),
            "CERT": str(client.certificate),
            "KEY": str(client.key),
        }
        return {name: value for name, value in (setting | values).items() if value is not None}


class SecureZooKeeper(ZooKeeper):
    """A server with a port for TLS, with and without SASL on both ports."""

    def __init__(self, papers: Papers, folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        jaas = folder / "jaas.conf"
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        jaas.write_text(f'Server {{ {module} required user_shop="right"; }};\n', encoding="ascii")
        self.secure_port = free_port()
        super().__init__(
            tick_time=0.2,
            min_session_timeout=0.8,
            max_session_timeout=MAX_SESSION,
            settings={
                "secureClientPort": str(self.secure_port),
                "secureClientPortAddress": LOOPBACK,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(papers.server.both),
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": str(papers.authority.certificate),
                "ssl.trustStore.type": "PEM",
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                **settings,
            },
            properties={"java.security.auth.login.config": str(jaas)},
        )

    def is_ready(self) -> bool:
        """Wait for the second port too: it is opened last."""
        if not super().is_ready():
            return False
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.secure_port), 1.0):
            return True
        return False

    @property
    def secure_hosts(self) -> str:
        return f"{NAME}:{self.secure_port}"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def server(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    """Return a server as ZooKeeper's documentation sets it up, which means TLS 1.2."""
    with SecureZooKeeper(papers, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def modern_server(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    """Return a server that speaks TLS 1.3 only."""
    settings = {
        "ssl.protocol": "TLSv1.3",
        "ssl.enabledProtocols": "TLSv1.3",
        # ZooKeeper 3.8 names those of TLS 1.2 only.
        "ssl.ciphersuites": "TLS_AES_256_GCM_SHA384",
    }
    with SecureZooKeeper(papers, tmp_path_factory.mktemp("modern"), settings) as server:
        yield server


@pytest.fixture
def observer(server: SecureZooKeeper) -> Iterator[KazooClient]:
    """Return a client of the plain port, to look at the tree."""
    client = KazooClient(hosts=server.hosts, sasl_options=dict(SASL))
    client.start(timeout=scaled(20))
    yield client
    client.stop()
    client.close()


Configure = Callable[..., Pool]


@pytest.fixture
def configure(settings: Settings, request: pytest.FixtureRequest) -> Configure:
    """Return a function that sets ``ZKLOCK["default"]``, with a root of the test's own, and gives its pool."""

    def configure(hosts: str, **values: Any) -> Pool:
        times = {name: scaled(values.pop(name, usual)) for name, usual in TIMES.items()}
        settings.ZKLOCK = {"default": {"HOSTS": hosts, "ROOT": f"/{request.node.name}"} | values | times}
        return connections["default"]

    return configure


Diagnose = Callable[[], dict[str, Finding]]


@pytest.fixture
def diagnose(monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    """Return a function that gives the doctor's findings by id, Celery's left out."""
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(modules={}))
    return lambda: {finding.id: finding for finding in doctor.run("default")}


def refused(match: str, *, within: float = TIMEOUT + 15.0) -> str:
    """Try to get a lock and give the message of the error that says that ZooKeeper cannot be used.

    On a busy machine an attempt may be over before it has met the reason; then there is another one.
    """
    deadline = time.monotonic() + scaled(LONG)
    while True:
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable) as caught:
            zk_lock("k").acquire()
        assert time.monotonic() - began < scaled(within)
        if re.search(match, str(caught.value)):
            return str(caught.value)
        assert time.monotonic() < deadline, f"not {match}: {caught.value}"


# TLS.


@pytest.fixture
def asleep_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many bytes of answers were there already, each time that a connection went to sleep."""
    original = ThreadingHandler.sleeper
    found: list[int] = []

    def sleeper(handler: Any, sockets: list[Any], writers: Sequence[Any]) -> Any:
        sleep = original(handler, sockets, writers)

        def recorded(timeout: float) -> list[Any]:
            found.append(sum(sock.pending() for sock in sockets if isinstance(sock, ssl.SSLSocket)))
            return sleep(timeout)

        return recorded

    monkeypatch.setattr(ThreadingHandler, "sleeper", sleeper)
    return found


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_tls__cycles(
    version: str, papers: Papers, configure: Configure, request: pytest.FixtureRequest, asleep_on: list[int]
) -> None:
    """Many quick holds one after the other; at none does the connection sleep on an answer that has come already."""
    server = request.getfixturevalue("server" if version == "TLSv1.2" else "modern_server")
    pool = configure(server.secure_hosts, TLS=papers.tls())
    for _ in range(500):
        zk_lock("k").acquire(timeout=60).release(wait=True)
    assert len(asleep_on) > 500
    assert not any(asleep_on)
    assert pool.sessions()[0].epoch == 0
    assert wire_of(pool.sessions()[0])._connection._socket.version() == version


class Terminator:
    """Speaks TLS with one client and none with the server; while ``holding`` it gathers what the server answers."""

    def __init__(self, papers: Papers, target: tuple[str, int]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(papers.server.both)
        self._target = target
        self._listener = socket.create_server((LOOPBACK, 0))
        self.hosts = f"{NAME}:{self._listener.getsockname()[1]}"
        self.gathered = bytearray()
        self.holding = False
        # Guards the two above.
        self._lock = threading.Lock()
        self._client: ssl.SSLSocket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """Send everything that was gathered, at once: up to 16 kB are one record."""
        with self._lock:
            assert self._client is not None
            self.holding = False
            self._client.sendall(bytes(self.gathered))
            self.gathered.clear()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        accepted, _address = self._listener.accept()
        with (
            self._context.wrap_socket(accepted, server_side=True) as client,
            socket.create_connection(self._target) as server,
            contextlib.suppress(OSError),
        ):
            self._client = client
            while True:
                # What was decrypted already is not readable for the operating system.
                ready = [client] if client.pending() else select.select([client, server], [], [])[0]
                if client in ready:
                    if not (data := client.recv(65536)):
                        return
                    server.sendall(data)
                if server in ready:
                    if not (data := server.recv(65536)):
                        return
                    self._answer(client, data)

    def _answer(self, client: ssl.SSLSocket, data: bytes) -> None:
        with self._lock:
            if self.holding:
                self.gathered += data
            else:
                client.sendall(data)


def test_tls__many_answers_in_one_record(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """All answers that one TLS record holds are read, though the socket is readable for the first of them only."""
    terminator = Terminator(papers, server.address)
    # No ping and no heartbeat comes to the rescue.
    pool = configure(terminator.hosts, TLS=papers.tls(), SESSION_TIMEOUT=60)
    zk_lock("k").acquire(timeout=60).release(wait=True)
    session = pool.sessions()[0]
    answers: list[float] = []
    terminator.holding = True
    for _ in range(30):
        session.post(lambda: session.wire.children("/", lambda _names, _error: answers.append(time.monotonic())))
    # An answer here is 40 bytes at least.
    wait_until(lambda: len(terminator.gathered) >= 30 * 40)
    wait_until(lambda: not answers)
    began = time.monotonic()
    terminator.let_go()
    wait_until(lambda: len(answers) == 30)
    assert answers[-1] - began < 8
    assert pool.close()
    terminator.close()


def test_tls__other_authority(
    server: SecureZooKeeper, papers: Papers, configure: Configure, diagnose: Diagnose, caplog: pytest.LogCaptureFixture
) -> None:
    """A server whose certificate another authority has signed is refused: the error, the log and the doctor say so."""
    configure(server.secure_hosts, TLS=papers.tls(CA=str(papers.other_authority.certificate)), CONNECT_TIMEOUT=TIMEOUT)
    with caplog.at_level(logging.WARNING, "django_zklock.kazoo"):
        message = refused("certificate verify failed")
    assert server.secure_hosts in message
    assert "certificate verify failed" in caplog.text
    found = diagnose()
    for name in ("ensemble.server", "lock.trial"):
        assert found[name].level == "error"
        assert "certificate verify failed" in found[name].found


def test_tls__other_host_name(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """A certificate for another host is refused, unless the setting says not to check it."""
    hosts = f"{LOOPBACK}:{server.secure_port}"
    configure(hosts, TLS=papers.tls(CHECK_HOSTNAME=True), CONNECT_TIMEOUT=TIMEOUT)
    refused("IP address mismatch")
    configure(hosts, TLS=papers.tls(CHECK_HOSTNAME=False))
    zk_lock("k").acquire(timeout=60).release(wait=True)


def test_tls__unverified(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """Without verification any server will do; the host name need not be given up as well."""
    tls = papers.tls(CA=str(papers.other_authority.certificate), VERIFY=False, CHECK_HOSTNAME=None)
    configure(f"{LOOPBACK}:{server.secure_port}", TLS=tls)
    zk_lock("k").acquire(timeout=60).release(wait=True)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_tls__no_client_certificate(
    version: str, papers: Papers, configure: Configure, request: pytest.FixtureRequest
) -> None:
    """A client that shows no certificate to a server that wants one learns that TLS is the matter."""
    server = request.getfixturevalue("server" if version == "TLSv1.2" else "modern_server")
    configure(server.secure_hosts, TLS=papers.tls(CERT=None, KEY=None), CONNECT_TIMEOUT=TIMEOUT)
    refused("(?i)alert")


def test_tls__certificate_and_key_in_one_file(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """CERT alone will do if its file holds the key too."""
    configure(server.secure_hosts, TLS=papers.tls(CERT=str(papers.client.both), KEY=None))
    zk_lock("k").acquire(timeout=60).release(wait=True)


def test_tls__key_password(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """An encrypted key works with its password; with a wrong one or none there is an error, and no prompt."""
    configure(server.secure_hosts, TLS=papers.tls(papers.locked, KEY_PASSWORD="opens"))
    zk_lock("k").acquire(timeout=60).release(wait=True)
    for wrong in ("shuts", None):
        configure(server.secure_hosts, TLS=papers.tls(papers.locked, KEY_PASSWORD=wrong), CONNECT_TIMEOUT=TIMEOUT)
        message = refused("(?i)bad decrypt|bad password|PEM lib|problems getting password")
        assert "shuts" not in message


def test_tls__file_is_gone(
    server: SecureZooKeeper, papers: Papers, configure: Configure, diagnose: Diagnose, tmp_path: Path
) -> None:
    """A file that vanishes after the system checks is named as the reason, by the doctor's checks that need it too."""
    configure(server.secure_hosts, TLS=papers.tls(CA=str(tmp_path / "no.pem")), CONNECT_TIMEOUT=TIMEOUT)
    refused("No such file")
    found = diagnose()
    assert found["settings.checks"].subject == "django_zklock.E002"
    assert "No such file" in found["ensemble.server"].found


def test_tls__plain_port(server: SecureZooKeeper, papers: Papers, configure: Configure, diagnose: Diagnose) -> None:
    """TLS to the plain port, and none to the port for TLS, end in time, and are errors of that server."""
    for hosts, tls in ((f"{NAME}:{server.port}", {"TLS": papers.tls()}), (server.secure_hosts, {})):
        configure(hosts, CONNECT_TIMEOUT=TIMEOUT, **tls)
        refused("no connection")
        assert diagnose()["ensemble.server"].level == "error"


def test_tls__dropped(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """Dropped connections come back with session and lock, also amid answers and from another thread."""
    pool = configure(server.secure_hosts, TLS=papers.tls(), SESSION_TIMEOUT=20)
    held = zk_lock("k").acquire(timeout=60)
    session = pool.sessions()[0]
    number, done = session.id, threading.Event()

    def work() -> None:
        while not done.is_set():
            zk_lock(f"other-{threading.get_ident()}").acquire(timeout=120).release()

    def back(epoch: int) -> bool:
        return session.epoch > epoch and session.connected

    workers = [Runner(work) for _ in range(4)]
    for _ in range(20):
        epoch = session.epoch
        session.wire.drop("the test says so")
        wait_until(partial(back, epoch))
    done.set()
    for worker in workers:
        worker.result()
    held.check()
    assert session.id == number
    held.release(wait=True)


def test_tls__close(server: SecureZooKeeper, papers: Papers, configure: Configure, observer: KazooClient) -> None:
    """Closing ends the session at the server, which frees the lock at once."""
    pool = configure(server.secure_hosts, TLS=papers.tls(), SESSION_TIMEOUT=20)
    held = zk_lock("k").acquire(timeout=60)
    assert len(observer.get_children(held.lock.paths[0])) == 1
    began = time.monotonic()
    assert pool.close()
    assert observer.get_children(held.lock.paths[0]) == []
    assert time.monotonic() - began < GRACE


FORK = """
import os, sys, time, json
import django
from django.conf import settings
settings.configure(ZKLOCK=json.loads(sys.argv[1]), INSTALLED_APPS=["django_zklock"])
django.setup()
from django_zklock import zk_lock
from django_zklock.connections import connections

held = zk_lock("parent").acquire(timeout=60)
session = connections["default"].sessions()[0]
before = session.id
child = os.fork()
if child == 0:
    with zk_lock("child").acquire(timeout=60):
        own = connections["default"].sessions()[0].id
    sys.exit(0 if own != before else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with zk_lock("again").acquire(timeout=60):
    held.check()
print(json.dumps([status, session.epoch, session.id == before]))
"""


def test_tls__fork(server: SecureZooKeeper, papers: Papers, configure: Configure) -> None:
    """A forked child that locks and exits leaves its parent's TLS connection as it was."""
    values = {"HOSTS": server.secure_hosts, "ROOT": "/fork", "TLS": papers.tls()}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, json.dumps({"default": values})],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0, True]


# SASL.


@pytest.mark.parametrize("acl", ["creator", ["sasl:shop:cdrwa"]])
def test_sasl__right_password(
    acl: Any, server: SecureZooKeeper, configure: Configure, diagnose: Diagnose, observer: KazooClient
) -> None:
    """The nodes of a lock are made with SASL's identity, and belong to it; no other client can do anything there."""
    configure(server.hosts, SASL=SASL, ACL=acl)
    with zk_lock("k").acquire(timeout=60) as held:
        assert owners(observer, held.lock.paths[0]) == {("sasl", "shop")}
    found = diagnose()
    assert [found[name].level for name in ("lock.trial", "security.acl", "security.credentials")] == ["ok"] * 3


def test_sasl__over_tls(server: SecureZooKeeper, papers: Papers, configure: Configure, observer: KazooClient) -> None:
    """With a client's certificate too, the creator is both identities that the client has proved."""
    configure(server.secure_hosts, SASL=SASL, ACL="creator", TLS=papers.tls())
    with zk_lock("k").acquire(timeout=60) as held:
        assert owners(observer, held.lock.paths[0]) == {("sasl", "shop"), ("x509", "CN=client")}


def owners(observer: KazooClient, path: str) -> set[tuple[str, str]]:
    entries, _stat = observer.get_acls(path)
    return {(entry.id.scheme, entry.id.id) for entry in entries}


@pytest.mark.shows("faults#a-handshake-is-cut-or-is-not-answered")
def test_sasl__wrong_password(server: SecureZooKeeper, configure: Configure, diagnose: Diagnose) -> None:
    """A wrong password is an error at once, not tried again until the next lock is asked for, and in no text."""
    pool = configure(server.hosts, SASL=SASL | {"password": "wrong!"})
    for _ in range(2):
        message = refused("authentication was refused, check AUTH and SASL", within=LONG / 2)
        assert "wrong" not in message
        (session,) = pool.sessions()
        assert session.ended is not None
        assert wire_of(session)._connection.connection_stopped.wait(scaled(10))
    found = diagnose()
    assert found["lock.trial"].level == "error"
    assert "authentication was refused" in found["lock.trial"].found
    assert not any("wrong!" in f"{finding}" for finding in found.values())


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"mechanism": "NOSUCH"}, "NOSUCH|mechanism"), ({"username": "shop"}, "mechanism")],
)
def test_sasl__unusable_options(
    options: dict[str, str], reason: str, server: SecureZooKeeper, configure: Configure
) -> None:
    """What the library makes nothing of is an error at once, again and again."""
    configure(server.hosts, SASL=options)
    for _ in range(2):
        refused(reason, within=LONG / 2)


def test_sasl__no_library(server: SecureZooKeeper, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the library that is missing."""
    monkeypatch.setattr("kazoo.protocol.connection.PURESASL_AVAILABLE", False)
    configure(server.hosts, SASL=SASL)
    refused("Missing SASL support", within=LONG / 2)


@pytest.mark.shows("faults#a-handshake-is-cut-or-is-not-answered")
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_sasl__handshake_is_cut(answers: int, server: SecureZooKeeper, configure: Configure) -> None:
    """A reconnect that is cut after some answers of the handshake is tried again, and costs no lock.

    A connection that comes back proves its identity again before it asks for anything.
    """
    with Proxy(server.address) as proxy:
        pool = configure(proxy.hosts, SASL=SASL, ACL="creator", SESSION_TIMEOUT=20)
        held = zk_lock("k").acquire(timeout=60)
        session = pool.sessions()[0]
        number = session.id
        left = answers

        def cut_one(direction: str, _chunk: bytes) -> bool:
            nonlocal left
            left -= direction == DOWN
            if left >= 0:
                return False
            proxy.on_chunk = None
            return True

        proxy.on_chunk = cut_one
        proxy.cut()
        wait_until(lambda: proxy.on_chunk is None and session.epoch and session.connected)
        held.check()
        assert session.id == number
        held.release(wait=True)


@pytest.mark.shows("faults#a-handshake-is-cut-or-is-not-answered")
def test_sasl__silent_server(server: SecureZooKeeper, configure: Configure) -> None:
    """A server that falls silent during the handshake has a share of the connect timeout, and not of the session's."""
    with Proxy(server.address) as proxy:
        pool = configure(proxy.hosts, SASL=SASL, SESSION_TIMEOUT=40, CONNECT_TIMEOUT=1)
        held = zk_lock("k").acquire(timeout=60)
        session = pool.sessions()[0]
        answers = 0

        def fall_silent(direction: str, chunk: bytes) -> bytes:
            nonlocal answers
            answers += direction == DOWN
            return chunk if direction == UP or answers == 1 else b""

        proxy.edit = fall_silent
        proxy.cut()
        wait_until(lambda: answers > 1)
        wait_until(lambda: not proxy.connected, 15)
        proxy.edit = None
        wait_until(lambda: session.epoch and session.connected)
        held.check()
        held.release(wait=True)


# AUTH and ACL.


def test_acl__other_credentials(
    server: SecureZooKeeper, configure: Configure, settings: Settings, admin_client: Client, admin_user: User
) -> None:
    """A client with other credentials is refused, and told what to check: in code, at the prompt, in the admin."""
    configure(server.hosts, AUTH=[("digest", "shop:right")], ACL="creator")
    owner = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": owner | {"AUTH": [("digest", "shop:wrong")]}, "owner": owner}
    with zk_lock("k", using="owner").acquire(timeout=60):
        with pytest.raises(ZkLockError, match=r"refused: NoAuthError.*check the ACL there and the credentials"):
            Runner(lambda: zk_lock("k").acquire(timeout=60)).result()
        with pytest.raises(ZkLockError, match=r"refused: NoAuthError.*check the ACL there and the credentials"):
            Runner(zk_lock("k").try_acquire).result()
        for arguments in (["list"], ["show", "k"]):
            with pytest.raises(CommandError, match="NoAuthError"):
                call_command("zklock", *arguments, stdout=io.StringIO())
        page = admin_client.get("/admin/django_zklock/lock/").content.decode()
        assert "NoAuthError" in page
    zk_lock("k", using="owner").acquire(timeout=60).release(wait=True)


def test_connection__ended_by_the_unexpected(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that ends kazoo's thread before there was any connection is told at once, again and again."""

    def fail(_names: Names, _deadline: object) -> None:
        raise LookupError("nobody expects it")

    monkeypatch.setattr(Names, "resolve", fail)
    configure(f"{LOOPBACK}:2181")
    for _ in range(2):
        refused("the connection failed: LookupError", within=LONG / 2)


# What the doctor says of all this.


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_doctor__tls(
    version: str,
    papers: Papers,
    configure: Configure,
    request: pytest.FixtureRequest,
    diagnose: Diagnose,
) -> None:
    """Servers are asked over TLS as locks are, and a node of a client's certificate is closed to others."""
    server = request.getfixturevalue("server" if version == "TLSv1.2" else "modern_server")
    configure(server.secure_hosts, TLS=papers.tls(), ACL="creator")
    found = diagnose()
    assert "standalone" in found["ensemble.server"].found
    for name in ("ensemble.server", "lock.trial", "lock.release", "security.tls", "security.acl", "ensemble.words"):
        assert found[name].level == "ok"
