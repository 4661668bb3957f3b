"""The addresses of servers: new ones are preferred, and known ones stay while DNS is silent or wrong."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from django_zklock.zk.waiting import Deadline
from django_zklock.zk.wire.names import Names
from tests.toolbox.network.fake_dns import EMPTY, NXDOMAIN, SERVFAIL, SILENCE, Answer, FakeDns
from tests.toolbox.processes import forked_child
from tests.toolbox.timing import GRACE, wait_until

SOON = Deadline.after(0)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDns]:
    dns = FakeDns(monkeypatch)
    yield dns
    dns.close()


def patient() -> Deadline:
    return Deadline.after(GRACE)


def test_names(dns: FakeDns) -> None:
    """A round has all addresses of all names, of both families, each once, in the order of HOSTS and of the answers."""
    dns.answer("zk1", ["::1", "127.0.0.1", "::1"])
    dns.answer("zk2", ["127.0.0.2"])
    found, failures = Names([("zk1", 2181), ("127.0.0.9", 1), ("zk2", 2182), ("zk1", 2183)]).resolve(patient())
    assert failures == {}
    assert found == [
        ("zk1", "::1", 2181),
        ("zk1", "127.0.0.1", 2181),
        ("127.0.0.9", "127.0.0.9", 1),
        ("zk2", "127.0.0.2", 2182),
        ("zk1", "::1", 2183),
        ("zk1", "127.0.0.1", 2183),
    ]
    assert dns.asked == {"zk1": 1, "zk2": 1}


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
def test_names__changed(dns: FakeDns) -> None:
    """A new answer replaces what was known: the old address may belong to another program."""
    names = Names([("zk1", 2181)])
    dns.answer("zk1", ["127.0.0.1", "127.0.0.2"])
    names.resolve(patient())
    dns.answer("zk1", ["127.0.0.2", "127.0.0.3"])
    assert names.resolve(patient()) == ([("zk1", "127.0.0.2", 2181), ("zk1", "127.0.0.3", 2181)], {})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (NXDOMAIN, "Name or service not known"),
        (SERVFAIL, "Temporary failure in name resolution"),
        (EMPTY, "the answer has no address"),
        (SILENCE, "no answer"),
    ],
    ids=["nxdomain", "servfail", "empty", "silence"],
)
def test_names__dns_fails(dns: FakeDns, answer: Answer, reason: str) -> None:
    """What was known stays, for other connections of the process too; a name that was never known has no address."""
    dns.answer("zk1", ["127.0.0.1"])
    dns.answer("zk2", ["127.0.0.2"])
    Names([("zk1", 2181)]).resolve(patient())
    dns.answer("zk1", answer)
    dns.answer("zk3", answer)
    names = Names([("zk1", 2181), ("zk2", 2181), ("zk3", 2181)])
    # Silence is waited for until the deadline, and the answer of another name may take a while.
    for _ in range(2):
        found, failures = names.resolve(Deadline.after(0.2) if answer is SILENCE else patient())
        wait_until(lambda: dns.answered["zk2"] >= dns.asked["zk2"])
    assert failures == {"zk1": reason, "zk3": reason}
    assert found == [("zk1", "127.0.0.1", 2181), ("zk2", "127.0.0.2", 2181)]


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
def test_names__late_answer(dns: FakeDns) -> None:
    """A look-up that outlasts its share goes on, alone; its answer is known later."""
    names = Names([("zk1", 2181)])
    dns.answer("zk1", SILENCE)
    before = set(threading.enumerate())
    for _ in range(10):
        assert names.resolve(SOON) == ([], {"zk1": "no answer"})
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["zklock-call"]
    wait_until(lambda: dns.asked["zk1"] == 1)
    dns.answer("zk1", ["127.0.0.1"])
    assert names.resolve(patient()) == ([("zk1", "127.0.0.1", 2181)], {})
    # A later look-up asks anew, also where the last one has ended unnoticed.
    dns.answer("zk1", SILENCE)
    names.resolve(SOON)
    wait_until(lambda: dns.asked["zk1"] == 2)
    dns.answer("zk1", ["127.0.0.2"])
    wait_until(lambda: names._calls["zk1"].over)
    dns.answer("zk1", SILENCE)
    assert names.resolve(SOON) == ([("zk1", "127.0.0.2", 2181)], {"zk1": "no answer"})
    wait_until(lambda: dns.asked["zk1"] == 3)


@pytest.mark.parametrize("name", ["zk..bad", f"{'a' * 64}.test", "."])
def test_names__unencodable(name: str) -> None:
    """A name that DNS cannot be asked for is one bad name."""
    found, failures = Names([(name, 1), ("127.0.0.1", 2)]).resolve(patient())
    assert (found, failures) == ([("127.0.0.1", "127.0.0.1", 2)], {name: "no host can have this name"})


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("fe80::1%lo", f"fe80::1%{socket.if_nametoindex('lo')}"),
    ],
)
def test_names__literal(host: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address is not looked up, so it needs no thread; a link-local one keeps its zone."""
    names = Names([(host, 2181)])
    monkeypatch.setattr(threading.Thread, "start", lambda _self: pytest.fail("a thread"))
    assert names.names == []
    assert names.resolve(SOON) == ([(host, address, 2181)], {})


def test_names__no_thread(dns: FakeDns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, the known addresses are left."""
    names = Names([("zk1", 2181), ("zk2", 2181)])
    dns.answer("zk1", ["127.0.0.1"])
    dns.answer("zk2", NXDOMAIN)
    names.resolve(patient())

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found, failures = names.resolve(patient())
    assert found == [("zk1", "127.0.0.1", 2181)]
    assert failures == dict.fromkeys(("zk1", "zk2"), "can't start new thread")


@pytest.mark.shows("faults#dns-is-silent-or-wrong")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_names__fork(dns: FakeDns) -> None:
    """A forked child knows what its parent knew, and waits for no look-up of the parent."""
    dns.answer("zk1", ["127.0.0.1"])
    names = Names([("zk1", 2181)])
    names.resolve(patient())
    dns.answer("zk1", SILENCE)
    names.resolve(SOON)
    wait_until(lambda: dns.asked["zk1"] == 2)
    with forked_child.fork(lambda report: report(Names([("zk1", 2181)]).resolve(Deadline.after(0.1)))) as child:
        assert child.receive() == ([("zk1", "127.0.0.1", 2181)], {"zk1": "no answer"})
