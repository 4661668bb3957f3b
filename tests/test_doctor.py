"""The doctor: each finding where all is well, and where something is planted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential
from services.ensemble import Ensemble
from services.port import LOOPBACK, free_port

from django_zklock import doctor
from django_zklock.connections import connections
from django_zklock.doctor import quorum, security, session, trial
from django_zklock.findings import LEVELS, Finding
from django_zklock.zk import wire
from django_zklock.zk.inspection.ensemble import Configuration, Server
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.wire import ConnectionOptions, parse_acl
from tests.bystanders import Recorder
from tests.server import Server as AnyServer
from tests.zk.onlooker import MakePool, Onlooker
from tests.zk.talker import Talker, serving

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.zookeeper
pytest_plugins = ["tests.configured"]

FAR = ConnectionOptions(hosts="zk1.example:2181,zk2.example:2181,zk3.example:2181")
HERE = ConnectionOptions(hosts="127.0.0.1:2181")
SECRET = [("digest", "shop:secret")]
# How much later something may be done on a busy machine, in seconds.
GRACE = 8.0

Findings = dict[str, list[Finding]]


@pytest.fixture(autouse=True)
def _no_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Celery out of it: it has tests of its own, and its workers a second to answer."""
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(modules={}))


def by_id(found: Iterator[Finding]) -> Findings:
    findings: Findings = {}
    for finding in found:
        findings.setdefault(finding.id, []).append(finding)
    return findings


def examine(alias: str = "default") -> Findings:
    """Give the findings by their ids."""
    return by_id(doctor.examine(alias))


def examine_one(name: str) -> Finding:
    """Give the only finding of that id."""
    (finding,) = examine()[name]
    return finding


@pytest.fixture
def configure(settings: Settings, server: AnyServer, root: str) -> Callable[..., None]:
    """Give a function that sets ``ZKLOCK["default"]``."""

    def configure(**values: Any) -> None:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "ROOT": root, "SESSION_TIMEOUT": 6} | values}

    return configure


# All is well.


def test_alone__all_is_well(zklock: str, outsider: KazooClient) -> None:
    """Of a server for development nothing is bad, and the doctor leaves nothing behind."""
    findings = examine()
    levels = {name: {finding.level for finding in several} for name, several in findings.items()}
    assert levels.pop("ensemble.size") == {"info"}
    assert levels.pop("security.acl") == {"info"}
    assert set(levels) == {
        "settings.readable", "settings.checks", "ensemble.server", "ensemble.words", "ensemble.leader",
        "ensemble.version", "lock.trial", "lock.release", "lock.containers", "clock.offset", "pool.sessions",
        "pool.connect-timeout", "session.timeout", "session.sync-limit", "security.tls", "security.credentials",
    }  # fmt: skip
    assert all(found == {"ok"} for found in levels.values()), findings
    assert outsider.get_children(zklock) == []


def test_several__all_is_well(settings: Settings) -> None:
    """Of an ensemble of three the leader is named, and its limits agree with the session."""
    with Ensemble() as trio:
        settings.ZKLOCK = {"default": {"HOSTS": trio.hosts, "SESSION_TIMEOUT": 15}}
        findings = examine()
        assert findings["ensemble.leader"][0].subject == trio.leader().hosts
        assert "1 of them may be away" in findings["ensemble.size"][0].found
        assert "5 s" in findings["session.sync-limit"][0].found
        bad = [each for several in findings.values() for each in several if each.level not in {"ok", "info"}]
        assert bad == []

        settings.ZKLOCK = {"default": {"HOSTS": trio.hosts, "SESSION_TIMEOUT": 4}}
        trio.followers()[0].stop()
        findings = examine()
        assert sorted(server.level for server in findings["ensemble.server"]) == ["ok", "ok", "warning"]
        assert findings["lock.trial"][0].level == "ok"
        assert findings["session.sync-limit"][0].level == "warning"
        connections.close_all()


def test_findings__advice() -> None:
    """Whatever is not as it should be comes with advice."""
    found = [
        *quorum.examine(servers("leader", "leader", "standalone", None), FAR),
        *security.examine(pool_of(FAR), None),
    ]
    bad = [finding for finding in found if finding.level != "ok"]
    assert len(bad) > 3
    assert all(finding.advice for finding in bad)
    assert {finding.level for finding in found} <= set(LEVELS)


def test_examine__again(zklock: str) -> None:
    """The doctor may come as often as one likes."""
    for _ in range(3):
        assert [finding.level for finding in doctor.examine("default")].count("error") == 0


# Settings.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({}, "ZKLOCK is not set"),
        ({"other": {"HOSTS": "zk1:2181"}}, "no alias"),
        ({"default": {"HOSTS": ["zk1"], "WHAT": 1}}, "WHAT"),
        ({"default": {"HOSTS": "[::1"}}, "IPv6"),
    ],
)
def test_settings__unreadable(settings: Settings, setting: dict[str, Any], words: str) -> None:
    """A setting that cannot be read is an error that says where, and nothing else is looked at."""
    settings.ZKLOCK = setting
    findings = examine()
    assert findings["settings.readable"][0].level == "error"
    assert words in findings["settings.readable"][0].found
    assert set(findings) == {"settings.readable", "settings.checks"}


def test_settings__checks(configure: Callable[..., None], settings: Settings) -> None:
    """What the system checks say is told too, unless the project has silenced it."""
    configure(AUTH=SECRET)
    finding = examine_one("settings.checks")
    assert (finding.subject, finding.level) == ("django_zklock.W001", "warning")
    settings.SILENCED_SYSTEM_CHECKS = ["django_zklock.W001"]
    assert examine_one("settings.checks").level == "ok"


def test_settings__kazoo_cannot(configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that the installed kazoo cannot fulfil are an error of the trial, not of the doctor."""
    monkeypatch.setattr(wire.client, "CHECKS_HOST_NAMES", False)
    configure(TLS={})
    findings = examine()
    assert findings["lock.trial"][0].level == "error"
    assert "kazoo" in findings["lock.trial"][0].found
    assert "pool.sessions" not in findings


# The ensemble.


def servers(*roles: str | None, version: str = "3.8.0", voters: int | None = None) -> list[Server]:
    """Give servers of these roles; ``None`` is one that is away."""
    configuration = Configuration(tick_time=2.0, sync_limit=5, voters=voters) if voters else None
    return [
        Server(address=f"zk{number}:2181", problem="Connection refused")
        if role is None
        else Server(address=f"zk{number}:2181", role=role, version=version, configuration=configuration)
        for number, role in enumerate(roles)
    ]


def judge(name: str, found: list[Server], options: ConnectionOptions = FAR) -> str:
    """Give the level of the only finding of that id on these servers."""
    (finding,) = by_id(quorum.examine(found, options))[name]
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
    """One that is away is a warning as long as others serve."""
    found = by_id(quorum.examine(servers(*roles), FAR))["ensemble.server"]
    assert [finding.level for finding in found] == levels


def test_server__withholds() -> None:
    """One that does not allow to be asked may be well: that is worth knowing, no more."""
    silent = Server(address="zk1:2181", withheld=("srvr", "mntr", "conf"), problem="it does not allow the word srvr")
    found = by_id(quorum.examine([silent], FAR))
    assert {name: found[name][0].level for name in found} == dict.fromkeys(
        ("ensemble.server", "ensemble.leader", "ensemble.words"), "info"
    )
    assert "4lw.commands.whitelist=srvr,mntr,conf" in found["ensemble.words"][0].advice


def test_words(configure: Callable[..., None]) -> None:
    """What a server tells only where it is allowed is asked for; without it the sync limit is not known."""
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
    """There is one leader, or one server; anything else could give one lock to two."""
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
    """An ensemble is of three or five, and HOSTS names all of them."""
    assert judge("ensemble.size", servers(*roles, voters=voters)) == level


def test_size__for_development() -> None:
    """A single server on this host is what development needs."""
    assert judge("ensemble.size", servers("standalone"), HERE) == "info"


@pytest.mark.parametrize(
    ("versions", "level"),
    [
        (["3.8.4", "3.8.4"], "ok"),
        (["3.9.2", "3.10.0"], "warning"),
        (["3.8.4", "3.4.14"], "error"),
        (["3.5.10", "3.5.10"], "info"),
        ([None, None], "ok"),
    ],
)
def test_version(versions: list[str | None], level: str) -> None:
    """All are of one version, that ZooKeeper supports still."""
    found = [Server(address=f"zk{number}", role="follower", version=each) for number, each in enumerate(versions)]
    assert judge("ensemble.version", found) == level


# A lock of its own, and the clock.


def test_trial__away(settings: Settings) -> None:
    """Where nobody listens, that is an error with advice, and what can be said without ZooKeeper is said."""
    settings.ZKLOCK = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    findings = examine()
    for name in ("ensemble.server", "ensemble.leader", "lock.trial", "pool.sessions"):
        assert findings[name][0].level == "error"
        assert findings[name][0].advice
    assert findings["pool.connect-timeout"][0].level == "warning"
    assert findings["security.tls"][0].level == "ok"
    assert "session.timeout" not in findings


def test_trial__black_hole(settings: Settings) -> None:
    """A server that accepts and never answers costs twice CONNECT_TIMEOUT."""
    with Talker(lambda _word: None) as talker:
        settings.ZKLOCK = {"default": {"HOSTS": talker.hosts, "CONNECT_TIMEOUT": 0.6}}
        began = time.monotonic()
        findings = examine()
        assert time.monotonic() - began < 2 * 0.6 + 3 + GRACE
        assert findings["lock.trial"][0].level == "error"
        connections.close_all(0.1)


def test_trial__refused(configure: Callable[..., None], outsider: KazooClient, root: str) -> None:
    """Below a ROOT that belongs to somebody else no lock can be taken, and its ACL is not even told."""
    outsider.create(root, acl=parse_acl(["digest:other:hash:cdrwa"]))
    configure()
    findings = examine()
    assert findings["lock.trial"][0].level == "error"
    assert "refused" in findings["lock.trial"][0].found
    assert findings["security.acl"][0].level == "info"
    assert findings["pool.sessions"][0].level == "ok"


def test_release__refused(configure: Callable[..., None], onlooker: Onlooker, root: str) -> None:
    """Credentials that may create but not delete leave the lock taken, and are told so."""
    configure(ACL=["world:anyone:crwa"])
    findings = examine()
    assert findings["lock.trial"][0].level == "ok"
    assert findings["lock.release"][0].level == "error"
    (line,) = onlooker.children(root)
    connections.close_all()
    onlooker.wait_empty(f"{root}/{line}")


def test_trial__is_no_news(zklock: str, recorder: Recorder) -> None:
    """Receivers of signals hear nothing of the doctor's lock."""
    examine()
    assert recorder.names == []


def test_containers__unknown(configure: Callable[..., None], outsider: KazooClient, root: str) -> None:
    """A server without them is told, and the doctor's own node is removed all the same."""
    configure()
    # As the first refusal leaves it.
    connections["default"].session(root).containers = False
    assert examine_one("lock.containers").level == "warning"
    assert outsider.get_children(root) == []


@pytest.mark.parametrize("apart", [-100, 100])
def test_clock(zklock: str, monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    """A clock that is a hundred seconds off is told, and in which direction."""
    false = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + apart)
    monkeypatch.setattr(trial, "time", false)
    finding = examine_one("clock.offset")
    assert finding.level == "warning"
    assert ("ahead of" if apart > 0 else "behind") in finding.found
    assert "100." in finding.found or "99." in finding.found


# Sessions and the pool.


@pytest.mark.parametrize(("asked", "granted"), [(0.1, "0.8 s"), (100, "60 s")])
def test_session_timeout(configure: Callable[..., None], asked: float, granted: str) -> None:
    """A session timeout that the server does not grant is told, with what it grants."""
    configure(SESSION_TIMEOUT=asked, CONNECT_TIMEOUT=5)
    finding = examine_one("session.timeout")
    assert finding.level == "warning"
    assert f"granted {granted}" in finding.found
    assert "0.8 to 60 s" in finding.found


def test_sync_limit(make_pool: MakePool) -> None:
    """The sync limit is compared with what was granted, where it is known."""
    pool = make_pool()
    trial.examine(pool)
    (connected,) = pool.sessions()

    def level(*found: Server) -> str:
        return by_id(session.examine(pool, connected, found))["session.sync-limit"][0].level

    assert level(*servers("leader", "follower")) == "info"
    assert level(*servers("standalone")) == "ok"
    # 6 s were granted, and the limit is 10 s.
    assert level(*servers("leader", "follower", voters=2)) == "warning"
    short = Configuration(tick_time=1.0, sync_limit=5)
    assert level(Server(address="zk1", role="follower", configuration=short)) == "ok"


def test_sessions__several(configure: Callable[..., None]) -> None:
    """A larger pool tells which sessions there are."""
    configure(POOL_SIZE=3)
    finding = examine_one("pool.sessions")
    assert finding.level == "ok"
    assert finding.subject == "1 of at most 3 sessions in this process"


# Security.


def pool_of(options: ConnectionOptions) -> PoolOptions:
    return PoolOptions(connection=options)


def secure(name: str, **options: Any) -> str:
    """Give the level of the only finding of that id with these options, without a session."""
    connection = ConnectionOptions(**{"hosts": FAR.hosts} | options)
    (finding,) = by_id(security.examine(pool_of(connection), None))[name]
    return finding.level


def test_tls() -> None:
    """Without TLS, or with TLS that verifies nothing, others may be on the way."""
    assert secure("security.tls", use_tls=True) == "ok"
    assert secure("security.tls") == "warning"
    assert secure("security.tls", use_tls=True, tls_verify=False) == "warning"
    assert secure("security.tls", hosts="127.0.0.1:1,[::1]:1,localhost:1") == "ok"
    assert secure("security.tls", hosts="127.0.0.1:1,zk1:1") == "warning"


def test_credentials() -> None:
    """Credentials cross the network in the clear only if there are any, and no TLS."""
    assert secure("security.credentials") == "ok"
    assert secure("security.credentials", auth=SECRET) == "warning"
    assert secure("security.credentials", sasl={"mechanism": "DIGEST-MD5"}) == "warning"
    assert secure("security.credentials", auth=SECRET, use_tls=True) == "ok"
    assert secure("security.credentials", auth=SECRET, hosts=HERE.hosts) == "ok"


def test_acl__open(configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROOT that is open to the world is a warning where the world can get there."""
    configure()
    assert examine_one("security.acl").level == "info"
    monkeypatch.setattr(security, "is_here", lambda _options: False)
    assert examine_one("security.acl").level == "warning"


@pytest.mark.parametrize(("entry", "level"), [("ip:0.0.0.0/0:crdw", "info"), ("ip:10.1.0.0/16:crdw", "ok")])
def test_acl__addresses(configure: Callable[..., None], entry: str, level: str) -> None:
    """All addresses are the whole world, and those of one network are not."""
    owner = make_digest_acl_credential("shop", "secret")
    configure(AUTH=SECRET, ACL=[f"digest:{owner}:cdrwa", entry])
    assert examine_one("security.acl").level == level


def test_acl__closed(configure: Callable[..., None]) -> None:
    """With credentials and an ACL for their owner it is as it should be."""
    configure(AUTH=SECRET, ACL="creator")
    findings = examine()
    assert findings["security.acl"][0].level == "ok"
    assert findings["lock.trial"][0].level == "ok"
    assert findings["lock.release"][0].level == "ok"
    assert findings["settings.checks"][0].level == "ok"


def test_acl__readable(configure: Callable[..., None]) -> None:
    """That everybody may look is no fault."""
    owner = make_digest_acl_credential("shop", "secret")
    configure(AUTH=SECRET, ACL=[f"digest:{owner}:cdrwa", "world:anyone:r"])
    finding = examine_one("security.acl")
    assert finding.level == "ok"
    assert "look" in finding.found


def test_acl__set_too_late(configure: Callable[..., None], outsider: KazooClient, root: str) -> None:
    """A ROOT that was made before the ACL was set stays open, and the advice is another one."""
    outsider.create(root)
    configure(AUTH=SECRET, ACL="creator")
    finding = examine_one("security.acl")
    assert finding.level == "info"
    assert "new ROOT" in finding.advice
    assert "before" in finding.advice


# Texts.


def test_examine__hostile_server(configure: Callable[..., None]) -> None:
    """Nothing that a server says can act on a terminal."""
    lies = "Zookeeper version: \x1b[31m\u202e\nMode: \x1b]0;owned\x07\n"
    with Talker(lambda _word: [lies.encode()]) as talker:
        configure(HOSTS=talker.hosts, CONNECT_TIMEOUT=0.5)
        found = list(doctor.examine("default"))
        connections.close_all(0.1)
    assert all(f"{each.subject}{each.found}{each.advice}".isprintable() for each in found)


def test_examine__hostile_alias() -> None:
    """Nor can the name of an alias."""
    assert all(f"{each.subject}{each.found}".isprintable() for each in doctor.examine("\x1b[2J\n\u202e"))
