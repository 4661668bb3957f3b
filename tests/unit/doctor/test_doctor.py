"""The doctor: each finding in a sound configuration, and with a planted fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from billing.models import Account
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from django_zklock import Held, doctor, zk_lock
from django_zklock.connections import connections
from django_zklock.doctor import LEVELS, Finding, configuration, ensemble, roundtrip
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops.ensemble import NO_QUORUM, Configuration, Server
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.wire import ConnectionOptions, client, parse_acl
from tests.toolbox.django.findings import by_id
from tests.toolbox.django.layer import Recorder
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import MAX_SESSION, SLOWNESS, scaled
from tests.toolbox.zookeeper.any_server import Server as AnyServer
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.observer import Observer
from tests.unit.fake_four_letter import Talker, serving

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.nocelery

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

FAR = ConnectionOptions(hosts="zk1.example:2181,zk2.example:2181,zk3.example:2181")
HERE = ConnectionOptions(hosts="127.0.0.1:2181")
SECRET = [("digest", "shop:secret")]
OWNER = f"digest:{make_digest_acl_credential('shop', 'secret')}:cdrwa"
# Seconds of delay that a busy machine may add.
GRACE = scaled(8)

Findings = dict[str, list[Finding]]


@pytest.fixture(autouse=True)
def _no_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out Celery, which has its own tests and waits a second for workers."""
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(modules={}))


def examine(alias: str = "default") -> Findings:
    """Return the findings by id."""
    return by_id(doctor.run(alias))


def examine_one(name: str) -> Finding:
    """Return the only finding with this id."""
    (finding,) = examine()[name]
    return finding


@pytest.fixture
def configure(settings: Settings, server: AnyServer, root: str) -> Callable[..., None]:
    """Return a function that sets ``ZKLOCK["default"]``."""

    def configure(**values: Any) -> None:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "ROOT": root, "SESSION_TIMEOUT": 6} | values}

    return configure


# kazoo.


@pytest.mark.parametrize(
    ("version", "is_named"), [("2.11.0", False), ("2.11.7", False), ("2.12.0", True), ("2.1", True)]
)
def test_kazoo(monkeypatch: pytest.MonkeyPatch, version: str, is_named: bool) -> None:
    """A version whose minor release was not tested is named, and no other."""
    monkeypatch.setattr(client, "kazoo_version", version)
    found = list(configuration.examine_kazoo())
    assert [(each.id, each.level, version in each.subject) for each in found] == (
        [("client.kazoo", "warning", True)] if is_named else []
    )


# The tree.


@pytest.mark.parametrize(
    ("count", "level", "found"),
    [
        (1, "ok", "1 queue"),
        (2, "ok", "2 queues"),
        (3, "info", "3 queues: ZooKeeper removes at most 2"),
        (5, "warning", "5 queues"),
    ],
)
def test_queues(
    zklock: str, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch, count: int, level: str, found: str
) -> None:
    """More queues than ZooKeeper removes in a minute are worth knowing, many more are a warning."""
    monkeypatch.setattr(roundtrip, "REMOVED_PER_MINUTE", 2)
    monkeypatch.setattr(roundtrip, "MANY_QUEUES", 4)
    for number in range(count):
        kazoo_client.create(f"{zklock}/k{number}", makepath=True)
    finding = examine_one("root.queues")
    assert (finding.level, finding.subject) == (level, zklock)
    assert finding.found.startswith(found)


# A sound configuration.


@pytest.mark.django_db
def test_alone__all_is_well(zklock: str, kazoo_client: KazooClient) -> None:
    """A single server on this host has no bad finding, and the doctor leaves no nodes."""
    findings = examine()
    levels = {name: {finding.level for finding in several} for name, several in findings.items()}
    assert levels.pop("ensemble.size") == {"info"}
    assert levels.pop("security.acl") == {"info"}
    assert set(levels) == {
        "settings.readable", "settings.checks", "ensemble.server", "ensemble.words", "ensemble.leader",
        "ensemble.version", "lock.trial", "lock.release", "clock.offset", "pool.sessions",
        "root.queues", "fencing.generation",
        "pool.connect-timeout", "session.timeout", "session.ticks", "security.tls", "security.credentials",
    }  # fmt: skip
    assert all(found == {"ok"} for found in levels.values()), findings
    assert kazoo_client.get_children(zklock) == []


@pytest.mark.zookeeper
def test_several__all_is_well(settings: Settings) -> None:
    """With an ensemble of three the leader is named, and its ticks are compared with the session timeout."""
    with Ensemble() as trio:
        settings.ZKLOCK = {"default": {"HOSTS": trio.hosts, "SESSION_TIMEOUT": 15}}
        findings = examine()
        assert findings["ensemble.leader"][0].subject == trio.leader().hosts
        assert "1 of them may fail" in findings["ensemble.size"][0].found
        assert "6 ticks of 0.5 s" in findings["session.ticks"][0].found
        bad = [each for several in findings.values() for each in several if each.level not in {"ok", "info"}]
        assert bad == []

        settings.ZKLOCK = {"default": {"HOSTS": trio.hosts, "SESSION_TIMEOUT": 2.9}}
        trio.followers()[0].stop()
        findings = examine()
        assert sorted(server.level for server in findings["ensemble.server"]) == ["ok", "ok", "warning"]
        assert findings["lock.trial"][0].level == "ok"
        assert findings["session.ticks"][0].level == "warning"
        connections.close_all()


def test_findings__advice() -> None:
    """Every finding that is not ok has advice."""
    found = [
        *ensemble.examine_servers(servers("leader", "leader", "standalone", None), FAR),
        *configuration.examine_security(pool_of(FAR), None),
    ]
    bad = [finding for finding in found if finding.level != "ok"]
    assert len(bad) > 3
    assert all(finding.advice for finding in bad)
    assert {finding.level for finding in found} <= set(LEVELS)


def test_run__again(zklock: str) -> None:
    """The doctor can run repeatedly."""
    for _ in range(3):
        assert [finding.level for finding in doctor.run("default")].count("error") == 0


# Settings.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({}, "ZKLOCK is not set"),
        ({"other": {"HOSTS": "zk1:2181"}}, "no alias"),
        ({"default": {"HOSTS": ["zk1"], "WHAT": 1}}, "WHAT"),
        ({"default": {"HOSTS": "[::1"}}, "separated by commas"),
    ],
)
def test_settings__unreadable(settings: Settings, setting: dict[str, Any], words: str) -> None:
    """A wrong setting is an error that names the place; nothing else is examined, or said to be in order."""
    settings.ZKLOCK = setting
    findings = examine()
    assert findings["settings.readable"][0].level == "error"
    assert words in findings["settings.readable"][0].found
    assert {finding.level for found in findings.values() for finding in found} <= {"error", "warning"}


def test_settings__checks(configure: Callable[..., None], settings: Settings) -> None:
    """Messages of the system checks are findings, unless the project has silenced them."""
    configure(AUTH=SECRET)
    finding = examine_one("settings.checks")
    assert (finding.subject, finding.level) == ("django_zklock.W001", "warning")
    settings.SILENCED_SYSTEM_CHECKS = ["django_zklock.W001"]
    assert examine_one("settings.checks").level == "ok"


# The ensemble.


def servers(*roles: str | None, version: str = "3.8.0", voters: int | None = None) -> list[Server]:
    """Return servers with these roles; ``None`` is a server that does not answer."""
    configuration = Configuration(tick_time=2.0, voters=voters) if voters else None
    return [
        Server(address=f"zk{number}:2181", problem="Connection refused")
        if role is None
        else Server(address=f"zk{number}:2181", role=role, version=version, configuration=configuration)
        for number, role in enumerate(roles)
    ]


def judge(name: str, found: list[Server], options: ConnectionOptions = FAR) -> str:
    """Return the level of the only finding with this id for these servers."""
    (finding,) = by_id(ensemble.examine_servers(found, options))[name]
    return finding.level


@pytest.mark.parametrize(
    ("roles", "levels"),
    [
        (("leader", "follower"), ["ok", "ok"]),
        (("leader", None), ["ok", "warning"]),
        ((None, None), ["error", "error"]),
    ],
)
def test_server(roles: tuple[str | None, ...], levels: list[str]) -> None:
    """A server that does not answer is a warning while others serve, and otherwise an error."""
    found = by_id(ensemble.examine_servers(servers(*roles), FAR))["ensemble.server"]
    assert [finding.level for finding in found] == levels


def test_server__no_quorum() -> None:
    """A server without a quorum runs, and has the right address: the advice is about the others."""
    found = [Server(address="zk1:2181", problem=NO_QUORUM), *servers(None)]
    alone, other = by_id(ensemble.examine_servers(found, FAR))["ensemble.server"]
    assert "server.N" in alone.advice
    assert "HOSTS" not in alone.advice
    assert "correct its address in HOSTS" in other.advice


def test_server__withholds() -> None:
    """A server that does not allow the words may be sound: the level is info."""
    silent = Server(address="zk1:2181", withheld=("srvr", "mntr", "conf"), problem="it does not allow the word srvr")
    found = by_id(ensemble.examine_servers([silent], FAR))
    assert {name: found[name][0].level for name in found} == dict.fromkeys(
        ("ensemble.server", "ensemble.leader", "ensemble.words"), "info"
    )
    assert "4lw.commands.whitelist=srvr,mntr,conf" in found["ensemble.words"][0].advice


def test_words(configure: Callable[..., None]) -> None:
    """The advice names the words that a server does not allow."""
    assert judge("ensemble.words", servers("leader", "follower")) == "ok"
    with Talker(serving()) as talker:
        configure(HOSTS=talker.hosts, CONNECT_TIMEOUT=0.5)
        finding = examine_one("ensemble.words")
    assert (finding.level, finding.subject) == ("info", "mntr, conf")


@pytest.mark.parametrize(
    ("roles", "level"),
    [
        (("follower", "leader", "follower"), "ok"),
        (("standalone",), "ok"),
        (("follower", None, "follower"), "info"),
        (("leader", "leader"), "error"),
        (("standalone", "standalone"), "error"),
        (("standalone", None), "error"),
        (("leader", "standalone"), "error"),
        ((None, None, None), "error"),
    ],
)
def test_leader(roles: tuple[str | None, ...], level: str) -> None:
    """An ensemble has one leader, or one server; otherwise two processes could hold one lock."""
    assert judge("ensemble.leader", servers(*roles)) == level


@pytest.mark.parametrize(
    ("roles", "voters", "level"),
    [
        (("leader", "follower", "follower"), 3, "ok"),
        (("leader", "follower", None), 3, "ok"),
        (("leader", "follower", "follower", "observer"), 3, "ok"),
        (("leader", "follower", "follower"), None, "ok"),
        (("standalone",), None, "warning"),
        (("leader", "follower"), 2, "warning"),
        (("leader", "follower"), 3, "warning"),
        (("follower",), None, "warning"),
        (("leader", "follower", "follower", "follower"), 4, "info"),
    ],
)
def test_size(roles: tuple[str | None, ...], voters: int | None, level: str) -> None:
    """An ensemble has an odd number of servers, at least three, and HOSTS names all of them."""
    assert judge("ensemble.size", servers(*roles, voters=voters)) == level


def test_size__for_development() -> None:
    """A single server on this host is enough for development."""
    assert judge("ensemble.size", servers("standalone"), HERE) == "info"


@pytest.mark.parametrize(
    ("versions", "level"),
    [
        (["3.8.4", "3.8.4"], "ok"),
        (["3.9.2", "3.10.0"], "warning"),
        (["3.8.4", "3.4.14"], "error"),
        (["3.5.10", "3.5.10"], "error"),
        (["3.6.0", "3.6.0"], "ok"),
        ([None, None], "ok"),
    ],
)
def test_version(versions: list[str | None], level: str) -> None:
    """All servers have one version, at least 3.6."""
    found = [Server(address=f"zk{number}", role="follower", version=each) for number, each in enumerate(versions)]
    assert judge("ensemble.version", found) == level


# The round trip and the clocks.


def test_trial__away(settings: Settings) -> None:
    """Without a server there are errors with advice, and the findings that need no connection."""
    settings.ZKLOCK = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    findings = examine()
    for name in ("ensemble.server", "ensemble.leader", "lock.trial", "pool.sessions"):
        assert findings[name][0].level == "error"
        assert findings[name][0].advice
    assert findings["pool.connect-timeout"][0].level == "warning"
    assert findings["security.tls"][0].level == "ok"
    assert "session.timeout" not in findings


def test_trial__black_hole(settings: Settings) -> None:
    """A server that accepts connections and never answers takes at most twice CONNECT_TIMEOUT."""
    with Talker(lambda _word: None) as talker:
        settings.ZKLOCK = {"default": {"HOSTS": talker.hosts, "CONNECT_TIMEOUT": 0.6}}
        began = time.monotonic()
        findings = examine()
        assert time.monotonic() - began < 2 * 0.6 + 3 + GRACE
        assert findings["lock.trial"][0].level == "error"
        connections.close_all(0.1)


def test_trial__refused(configure: Callable[..., None], kazoo_client: KazooClient, root: str) -> None:
    """Below a ROOT of other credentials no lock can be acquired, and its ACL cannot be read."""
    kazoo_client.create(root, acl=parse_acl(["digest:other:hash:cdrwa"]))
    configure()
    findings = examine()
    assert findings["lock.trial"][0].level == "error"
    assert "refused" in findings["lock.trial"][0].found
    assert findings["security.acl"][0].level == "info"
    assert findings["pool.sessions"][0].level == "ok"


def test_release__refused(configure: Callable[..., None], observer: Observer, root: str) -> None:
    """Credentials that can create but not delete nodes are an error, because the lock stays held."""
    configure(ACL=["world:anyone:crwa"])
    findings = examine()
    assert findings["lock.trial"][0].level == "ok"
    assert findings["lock.release"][0].level == "error"
    (name,) = observer.children(root)
    connections.close_all()
    observer.wait_empty(f"{root}/{name}")


def test_trial__sends_no_signals(zklock: str, recorder: Recorder) -> None:
    """The doctor's lock sends no signals."""
    examine()
    assert recorder.names == []


@pytest.mark.parametrize("apart", [-100, 100])
def test_clock(zklock: str, monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    """A clock offset of a hundred seconds is a warning that names the direction."""
    false = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + apart)
    monkeypatch.setattr(roundtrip, "time", false)
    finding = examine_one("clock.offset")
    assert finding.level == "warning"
    assert ("ahead of" if apart > 0 else "behind") in finding.found
    assert "100." in finding.found or "99." in finding.found


# Sessions and the pool.


@pytest.mark.zookeeper
@pytest.mark.parametrize(("asked", "granted"), [(0.1, 0.8), (2 * MAX_SESSION, MAX_SESSION)])
def test_session_timeout(configure: Callable[..., None], asked: float, granted: float) -> None:
    """If the server grants another session timeout, the finding has both values and the limits."""
    configure(SESSION_TIMEOUT=asked, CONNECT_TIMEOUT=5)
    finding = examine_one("session.timeout")
    assert finding.level == "warning"
    assert f"granted {granted:g} s" in finding.found
    assert f"0.8 to {MAX_SESSION:g} s" in finding.found


def test_ticks(make_pool: MakePool) -> None:
    """The granted session timeout is compared with the ticks, if they are known."""
    # 6 s on any machine, as a tick is 2 s.
    pool = make_pool(session_timeout=6.0 / SLOWNESS)
    roundtrip.examine(pool)
    (connected,) = pool.sessions()

    def level(*found: Server) -> str:
        return by_id(ensemble.examine_sessions(pool, connected, found))["session.ticks"][0].level

    assert level(*servers("leader", "follower")) == "info"
    assert level(*servers("standalone")) == "ok"
    assert level(*servers("leader", "follower", voters=2)) == "warning"
    short = Configuration(tick_time=1.0)
    assert level(Server(address="zk1", role="follower", configuration=short)) == "ok"


@pytest.mark.shows("faults#a-session-moves-to-a-server-that-grants-another-timeout")
def test_session_timeout__of_different_servers(make_pool: MakePool) -> None:
    """Servers that grant different timeouts are a warning, also if the one of the session grants what was requested."""
    pool = make_pool()
    roundtrip.examine(pool)
    (connected,) = pool.sessions()

    def finding(*longest: float) -> Finding:
        found = [
            Server(address=f"zk{each}", configuration=Configuration(min_session_timeout=4.0, max_session_timeout=each))
            for each in longest
        ]
        return by_id(ensemble.examine_sessions(pool, connected, found))["session.timeout"][0]

    assert finding(40.0, 40.0, 40.0).level == "ok"
    assert finding(40.0, 40.0, 60.0).level == "warning"


def test_sessions__several(configure: Callable[..., None]) -> None:
    """With a larger pool the finding counts the sessions."""
    configure(POOL_SIZE=3)
    finding = examine_one("pool.sessions")
    assert finding.level == "ok"
    assert finding.subject == "1 of at most 3 sessions in this process"


def test_sessions__full(make_pool: MakePool) -> None:
    """If a process has more locks than one session has room for, the finding says so, and is no warning."""
    pool = make_pool(budget=1)
    held = [Lock(key, pool).acquire(timeout=120) for key in ("a", "b")]
    home = pool.sessions()[0]
    (finding,) = by_id(ensemble.examine_sessions(pool, home, servers("standalone")))["pool.sessions"]
    assert (finding.level, finding.subject) == ("info", "1 of at most 1 session in this process")
    used = sum(session.used for session in pool.sessions())
    assert f"1 of them because the nodes of the locks and waiters of this process take {used} bytes" in finding.found
    for each in held:
        each.release()


# Security.


def pool_of(options: ConnectionOptions) -> PoolOptions:
    return PoolOptions(connection=options)


def secure(name: str, **options: Any) -> str:
    """Return the level of the only finding with this id for these options, without a session."""
    connection = ConnectionOptions(**{"hosts": FAR.hosts} | options)
    (finding,) = by_id(configuration.examine_security(pool_of(connection), None))[name]
    return finding.level


def test_tls() -> None:
    """No TLS, or TLS without verification, is a warning unless all servers are on this host."""
    assert secure("security.tls", use_tls=True) == "ok"
    assert secure("security.tls") == "warning"
    assert secure("security.tls", use_tls=True, tls_verify=False) == "warning"
    assert secure("security.tls", hosts="127.0.0.1:1,[::1]:1,localhost:1") == "ok"
    assert secure("security.tls", hosts="127.0.0.1:1,zk1:1") == "warning"


def test_credentials() -> None:
    """Credentials without TLS are a warning unless all servers are on this host."""
    assert secure("security.credentials") == "ok"
    assert secure("security.credentials", auth=SECRET) == "warning"
    assert secure("security.credentials", sasl={"mechanism": "DIGEST-MD5"}) == "warning"
    assert secure("security.credentials", auth=SECRET, use_tls=True) == "ok"
    assert secure("security.credentials", auth=SECRET, hosts=HERE.hosts) == "ok"


@pytest.mark.parametrize(
    ("acl", "level", "words"),
    [
        (None, "info", "is open to the world"),
        ("creator", "ok", "only permitted clients have access"),
        ([OWNER, "world:anyone:r"], "ok", "every client can read"),
        ([OWNER, "ip:0.0.0.0/0:crdw"], "info", "is open to the world"),
        ([OWNER, "ip:10.1.0.0/16:crdw"], "ok", "only permitted clients have access"),
    ],
    ids=["open", "closed", "readable", "all addresses", "one network"],
)
def test_acl(configure: Callable[..., None], acl: Any, level: str, words: str) -> None:
    """A ROOT that the whole world can write is named; that all servers are on this host makes it no warning."""
    configure(**({} if acl is None else {"AUTH": SECRET, "ACL": acl}))
    findings = examine()
    found = [findings[name][0].level for name in ("security.acl", "lock.trial", "lock.release")]
    assert found == [level, "ok", "ok"]
    assert words in findings["security.acl"][0].found


def test_acl__open_elsewhere(configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROOT that is open to the world is a warning unless all servers are on this host."""
    configure()
    monkeypatch.setattr(configuration, "is_loopback_only", lambda _options: False)
    assert examine_one("security.acl").level == "warning"


def test_acl__set_too_late(configure: Callable[..., None], kazoo_client: KazooClient, root: str) -> None:
    """A ROOT that was created before ACL was set stays open, and the advice says what to do."""
    kazoo_client.create(root)
    configure(AUTH=SECRET, ACL="creator")
    finding = examine_one("security.acl")
    assert finding.level == "info"
    assert "new ROOT" in finding.advice
    assert "before" in finding.advice


# Texts.


def test_run__hostile_server(configure: Callable[..., None]) -> None:
    """No text of a server reaches the terminal with control characters."""
    lies = "Zookeeper version: \x1b[31m\u202e\nMode: \x1b]0;owned\x07\n"
    with Talker(lambda _word: [lies.encode()]) as talker:
        configure(HOSTS=talker.hosts, CONNECT_TIMEOUT=0.5)
        found = list(doctor.run("default"))
        connections.close_all(0.1)
    assert all(f"{each.subject}{each.found}{each.advice}".isprintable() for each in found)


def test_run__hostile_alias() -> None:
    """Nor does the name of an alias."""
    assert all(f"{each.subject}{each.found}".isprintable() for each in doctor.run("\x1b[2J\n\u202e"))


@pytest.mark.django_db
@pytest.mark.parametrize(("generation", "level"), [(0, "error"), (1, "ok")])
def test_fences(generation: int, level: str, configure: Callable[..., None]) -> None:
    """Fences that are larger than new tokens mean that the ensemble has lost its data; a new generation helps."""
    configure(GENERATION=generation)
    Account.objects.create(name="Ada")
    assert examine_one("fencing.generation").level == "ok"
    Account.objects.update(fence=2**50)
    finding = examine_one("fencing.generation")
    assert (finding.level, finding.subject) == (level, "billing.Account")
    assert ("GENERATION" in finding.advice) == (level == "error")


def test_fences__of_a_function(configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row does not tell the ensemble that a function of its key chose, so its fence is compared with none."""
    configure()
    monkeypatch.setattr(Account, "fence_using", staticmethod(lambda _key: "default"))
    assert "fencing.generation" not in examine()


@pytest.mark.django_db
def test_fences__written_meanwhile(configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others write all the time, a holder that is later than the doctor is no sign of a loss."""
    configure()
    account = Account.objects.create(name="Ada")
    acquire = Lock.acquire

    def acquire_and_be_overtaken(lock: Lock, *limits: Any) -> Held:
        held = acquire(lock, *limits)
        with zk_lock("busy") as later:
            account.save(held=later)
        return held

    monkeypatch.setattr(Lock, "acquire", acquire_and_be_overtaken)
    assert examine_one("fencing.generation").level == "ok"
    assert Account.objects.get().fence > 0


def test_fences__unreadable(zklock: str) -> None:
    """A database that cannot be read is no reason to end."""
    # pytest-django refuses it to a test that does not ask for it.
    assert examine_one("fencing.generation").level == "info"
