"""kazoo as the transport: each private part of kazoo that is used has a test that fails if kazoo changes it.

``test_processes.py`` shows with a real fork that a child abandons its parent's connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.exceptions import EXCEPTIONS, BadVersionError

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import background
from django_zklock.zk.lock import Lock
from django_zklock.zk.wire import (
    ConnectionOptions,
    KazooException,
    NoNodeError,
    Read,
    Wire,
    client,
    parse_acl,
)
from django_zklock.zk.wire.connection import make_handler
from django_zklock.zk.wire.lease import NEVER, Sent
from django_zklock.zk.wire.watches import RemoveWatches
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import UP, Proxy, requests
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, MAX_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.oldest]

GET_CHILDREN, REMOVE_WATCHES, CLOSE = 8, 18, -11


class Listener:
    """Records the notifications of a wire, and runs calls of a test on the connection's thread."""

    def __init__(self) -> None:
        self.monitor: AbstractContextManager[Any] = threading.RLock()
        self.events: list[Any] = []
        self.threads: set[int] = set()
        self.todo: list[Any] = []
        self.wakes = 0

    def note(self, event: Any) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)

    def on_wake(self) -> None:
        self.wakes += 1
        while self.todo:
            self.todo.pop(0)()

    def on_closing(self) -> None:
        self.note("closing")

    def on_connected(self) -> None:
        self.note("connected")

    def on_suspended(self) -> None:
        self.note("suspended")

    def on_ended(self, reason: str, *, final: bool) -> None:
        self.note(("ended", reason, final))


class Plug:
    """A wire with its listener; calls run on the connection's thread."""

    def __init__(self, hosts: str, *, session_timeout: float = 6.0, **options: Any) -> None:
        self.listener = Listener()
        self.wire = Wire(
            ConnectionOptions(hosts=hosts, session_timeout=scaled(session_timeout), **options),
            self.listener,
            connect_timeout=scaled(5),
        )
        self.wire.start()

    def connected(self) -> Plug:
        wait_until(lambda: "connected" in self.listener.events)
        return self

    def do(self, *calls: Any) -> None:
        self.listener.todo.extend(calls)
        self.wire.wake()

    def ask(self, method: str, *arguments: Any) -> tuple[Any, Any]:
        """Make a request and wait for its answer: value and error."""
        answers: list[tuple[Any, Any]] = []
        self.do(lambda: getattr(self.wire, method)(*arguments, lambda value, error: answers.append((value, error))))
        wait_until(lambda: answers)
        return answers[0]


@pytest.fixture
def kind_of_server() -> str:
    return "zookeeper"


@pytest.fixture
def plugs(zookeeper: ZooKeeper) -> Iterator[Any]:
    made: list[Plug] = []

    def make(hosts: str = zookeeper.hosts, **options: Any) -> Plug:
        made.append(Plug(hosts, **options))
        return made[-1]

    yield make
    for plug in made:
        plug.wire.close(1.0)


def test_start__untested_kazoo(plugs: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connect of a process names a version of kazoo that was not tested, and no later one does."""
    monkeypatch.setattr(client, "_warnings", ["2.99.0"])
    for _ in range(2):
        plugs().connected()
    background.flush_log()
    assert caplog.text.count("event=kazoo_untested version=2.99.0") == 1


def test_events__one_thread_in_wire_order(plugs: Any, observer: Observer, root: str) -> None:
    """Answers, watch events and states arrive on the connection's thread, in the order in which they were sent."""
    plug = plugs().connected()
    note = plug.listener.note
    observer.client.create(root, b"a")
    wire = plug.wire
    plug.do(
        lambda: (
            wire.watch(root, lambda value, error: note(("got", value[0])), lambda deleted: note(("watch", deleted))),
            wire.delete(root, lambda value, error: note("deleted")),
            wire.get(root, lambda value, error: note(("none", type(error)))),
        )
    )
    wait_until(lambda: ("none", NoNodeError) in plug.listener.events)
    assert plug.listener.events == ["connected", ("got", b"a"), ("watch", True), "deleted", ("none", NoNodeError)]
    wire.drop("for the test")
    wait_until(lambda: plug.listener.events[-2:] == ["suspended", "connected"])
    assert len(plug.listener.threads) == 1
    names = [thread.name for thread in threading.enumerate() if thread.ident in plug.listener.threads]
    assert len(names) == 1


def test_events__of_kazoo() -> None:
    """An event for kazoo wakes every thread that waits for it, and a wait has a timeout."""
    handler = make_handler(ConnectionOptions(hosts="nowhere"))
    event = handler.event_object()
    assert (event.is_set(), event.wait(0.01)) == (False, False)
    waiters = [Runner(lambda: event.wait(10)) for _ in range(3)]
    wait_until(lambda: len(event._waiting) == 3)
    event.set()
    assert [waiter.result() for waiter in waiters] == [True] * 3
    assert (event.is_set(), event.wait()) == (True, True)
    event.clear()
    assert (event.is_set(), event.wait(0.01)) == (False, False)
    assert event._waiting == set()


def test_threads__one(plugs: Any) -> None:
    """A wire has one thread: kazoo's two worker threads are not started."""
    before = set(threading.enumerate())
    plug = plugs().connected()
    (thread,) = set(threading.enumerate()) - before
    assert plug.wire.close(2.0)
    wait_until(lambda: not thread.is_alive())


@pytest.fixture
def watcher(plugs: Any, observer: Observer, root: str) -> Watching:
    """Return a wire and a node that it can watch."""
    observer.client.create(root)
    return Watching(plugs().connected(), root)


class Watching:
    """Sets and removes watches on one node, and records their calls."""

    def __init__(self, plug: Plug, path: str) -> None:
        self.plug = plug
        self.path = path
        self.notified: list[tuple[str, bool]] = []
        self._off: dict[str, Callable[[], None]] = {}

    def watch(self, name: str, method: str = "get") -> None:
        """Request the watch ``name``, without waiting for the answer."""

        def ask() -> None:
            def triggered(deleted: bool) -> None:
                self.notified.append((name, deleted))

            children = method == "children"
            self._off[name] = self.plug.wire.watch(self.path, lambda *_: None, triggered, children=children)

        self.plug.do(ask)

    def unwatch(self, *names: str) -> None:
        self.plug.do(lambda: [self._off[name]() for name in names])

    def settle(self) -> None:
        """Wait until all that was asked for is answered."""
        assert self.plug.ask("children", "/")[1] is None

    @property
    def kept(self) -> int:
        """How many watches this client keeps."""
        return len(list(self.plug.wire.watches))


def watches_at(server: ZooKeeper) -> int:
    """Return how many watches a server has."""
    with socket.create_connection(server.address, 5.0) as connection:
        connection.sendall(b"mntr")
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(dict(line.split("\t", 1) for line in answer.splitlines())["zk_watch_count"])


def test_watch__removed_at_the_server(own_zookeeper: ZooKeeper, plugs: Any, own_observer: Observer) -> None:
    """The server removes a watch when the last of ours with the same key is removed, and keeps other watches."""
    own_observer.client.create("/k")
    one = Watching(plugs(own_zookeeper.hosts).connected(), "/k")
    other = Watching(plugs(own_zookeeper.hosts).connected(), "/k")
    for watching in (one, other):
        for name in ("a", "b", "c"):
            watching.watch(name)
        watching.watch("of the children", "children")
        watching.settle()
    # The server has one watch for each session, node and kind of watch.
    assert watches_at(own_zookeeper) == 4
    for number, name in enumerate(["a", "b", "c", "of the children"], 1):
        one.unwatch(name)
        one.settle()
        assert watches_at(own_zookeeper) == {1: 4, 2: 4, 3: 3, 4: 2}[number]
    one.watch("under way")
    one.unwatch("under way")
    one.settle()
    assert watches_at(own_zookeeper) == 2
    own_observer.client.delete("/k")
    wait_until(lambda: len(other.notified) == 4)
    one.settle()
    assert sorted(other.notified) == [("a", True), ("b", True), ("c", True), ("of the children", True)]
    assert one.notified == []
    assert watches_at(own_zookeeper) == 0


def test_watch__taken_off_too_late(plugs: Any, zookeeper: ZooKeeper, observer: Observer, root: str) -> None:
    """A watch whose event crosses its removal is not called, and the server's refusal is ignored."""
    observer.client.create(root)
    with Proxy(zookeeper.address) as proxy:
        watching = Watching(plugs(proxy.hosts).connected(), root)
        watching.watch("off")
        watching.settle()
        proxy.pause("down")
        observer.client.delete(root)
        watching.unwatch("off")
        wait_until(lambda: [REMOVE_WATCHES] in [list(requests(chunk)) for way, chunk in proxy.chunks[2:] if way == UP])
        proxy.resume()
        watching.settle()
        assert watching.notified == []
        assert watching.plug.listener.events == ["connected"]
        watching.plug.wire.close(1.0)


def restored(plug: Plug) -> None:
    """Set the watches of the last connection again, and wait for the reply."""
    done: list[Any] = []
    plug.do(lambda: plug.wire.restore_watches(lambda _value, error: done.append(error)))
    assert wait_until(lambda: done) == [None]
    assert not plug.wire.watches.lost


@pytest.mark.parametrize("change", ["none", "set", "delete", "child"])
@pytest.mark.parametrize("method", ["get", "children"])
def test_watch__restored(
    zookeeper: ZooKeeper, plugs: Any, observer: Observer, root: str, method: str, change: str
) -> None:
    """After a reconnect each watch is called once if it has missed a change, and set again otherwise."""
    missed = {
        "none": [],
        "set": [("w", False)] if method == "get" else [],
        "delete": [("w", True)],
        "child": [("w", False)] if method == "children" else [],
    }
    path = f"{root}/watched"
    observer.client.create(path, b"old", makepath=True)
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts).connected()
        watcher = Watching(plug, path)
        watcher.watch("w", method)
        watcher.settle()
        assert watcher.kept == 1
        proxy.refusing = True
        proxy.cut()
        wait_until(lambda: plug.listener.events == ["connected", "suspended"])
        # It is kept, and the end of the connection is no call.
        assert (watcher.kept, watcher.notified) == (1, [])
        if change == "set":
            observer.client.set(path, b"new")
        elif change == "delete":
            observer.client.delete(path)
        elif change == "child":
            observer.client.create(f"{path}/child")
        proxy.refusing = False
        wait_until(lambda: plug.listener.events == ["connected", "suspended", "connected"])
        assert plug.wire.watches.lost
        restored(plug)
        assert watcher.notified == missed[change]
        assert watcher.kept == (not missed[change])
        if not missed[change]:
            observer.client.delete(path, recursive=True)
            wait_until(lambda: watcher.notified)
            assert watcher.notified[0][0] == "w"
        assert len(watcher.notified) == 1


def test_error__unknown_to_kazoo(watcher: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error code that kazoo does not know is the answer to its request, and the connection goes on."""
    # As if kazoo did not know ZooKeeper's NoWatcher.
    unnamed: defaultdict[int, Any] = defaultdict(EXCEPTIONS.default_factory)
    monkeypatch.setattr("kazoo.protocol.connection.EXCEPTIONS", unnamed)
    monkeypatch.setattr("django_zklock.zk.wire.requests.EXCEPTIONS", unnamed)
    answers: list[Any] = []
    wire = watcher.plug.wire
    watcher.plug.do(lambda: wire._send(RemoveWatches(watcher.path, 2), lambda *answer: answers.append(answer)))
    wait_until(lambda: answers)
    assert [str(error) for _, error in answers] == ["ZooKeeper's error -121"]
    assert isinstance(answers[0][1], KazooException)
    watcher.settle()
    assert watcher.plug.listener.events == ["connected"]


@pytest.mark.shows("faults#an-answer-comes-out-of-order")
def test_answer__to_another_request(zookeeper: ZooKeeper, plugs: Any) -> None:
    """An answer to an unknown request ends the connection, but not the session with its locks."""
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts).connected()
        session, pending = plug.wire.session_id, plug.wire._client._pending
        proxy.pause("down")
        answers: list[Any] = []
        plug.do(lambda: plug.wire.children("/", lambda *answer: answers.append(answer)))
        wait_until(lambda: pending)
        request, answer, xid = pending.popleft()
        pending.append((request, answer, xid + 1))
        proxy.resume()
        wait_until(lambda: plug.listener.events == ["connected", "suspended", "connected"])
        assert plug.ask("children", "/")[1] is None
        assert plug.wire.session_id == session
        assert answers == []
        plug.wire.close(1.0)


def test_watch__missing_node(plugs: Any, root: str) -> None:
    """A read of a missing node leaves no watch, here or at the server."""
    plug = plugs().connected()
    value, error = plug.ask("get", root)
    assert value is None
    assert isinstance(error, NoNodeError)
    assert not list(plug.wire.watches)


@pytest.mark.parametrize(("asked", "given"), [(0.01, 0.8), (3.0, scaled(3.0)), (1000.0, MAX_SESSION)])
def test_session_timeout__negotiated(plugs: Any, asked: float, given: float) -> None:
    """The session timeout is the one that the server has granted, not the one in the options."""
    plug = plugs(session_timeout=asked).connected()
    assert plug.wire.lease.timeout == pytest.approx(given, abs=0.001)


def do(plug: Plug, request: Callable[[Wire, str, Any], object], path: str) -> Any:
    """Make a request and return the error that it was answered with."""
    answers: list[Any] = []
    plug.do(lambda: request(plug.wire, path, lambda *answer: answers.append(answer)))
    wait_until(lambda: answers)
    return answers[0][1]


def ensure(*, container: bool) -> Callable[[Wire, str, Any], object]:
    return lambda wire, path, reply: wire.ensure(path, b"", reply, container=container)


WRITES: dict[str, Callable[[Wire, str, Any], object]] = {
    "container": ensure(container=True),
    "ensure": ensure(container=False),
    "create": lambda wire, path, reply: wire.create([f"{path}/x"], b"", reply),
    "multi": lambda wire, path, reply: wire.create([f"{path}/x", f"{path}/y"], b"", reply),
    "set": lambda wire, path, reply: wire.set(path, b"", reply),
    "delete": lambda wire, path, reply: wire.delete(f"{path}/y", reply),
    "nothing": lambda wire, _path, reply: wire.write_nothing(reply),
    "sync": lambda wire, path, reply: wire.sync(path, reply),
}


@pytest.mark.parametrize("kind", WRITES)
def test_lease__kinds_of_requests(plugs: Any, root: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The leader sees each kind of write, and a sync; only a write is recorded as accepted by a majority."""
    plug = plugs().connected()
    lease = plug.wire._connection.lease
    plug.ask("children", "/")
    forwarded: list[Sent] = []
    answered = lease.answered

    def note(sent: Sent, now: float, *, seen_by_leader: bool, written: bool = False) -> None:
        is_forwarded = seen_by_leader and sent.answered_a_margin_before == 1.0
        forwarded.extend([sent] if is_forwarded and written is (kind != "sync") else [])
        answered(sent, now, seen_by_leader=seen_by_leader, written=written)

    monkeypatch.setattr(lease, "answered", note)
    monkeypatch.setattr(lease, "forwarded", lambda now: Sent(now, 1.0, 1.0))
    do(plug, ensure(container=False), root)
    do(plug, ensure(container=False), f"{root}/y")
    forwarded.clear()
    assert do(plug, WRITES[kind], f"{root}/{kind}" if kind in {"container", "ensure"} else root) is None
    assert len(forwarded) == 1


READS: dict[str, Callable[[Wire, str, Any], object]] = {
    "get": lambda wire, path, reply: wire.get(path, reply),
    "children": lambda wire, path, reply: wire.children(path, reply),
    "multi": lambda wire, path, reply: wire.read_many([Read(path)], reply),
}


@pytest.mark.parametrize("kind", READS)
def test_lease__kinds_of_reads(plugs: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A follower that is cut off from its leader answers reads, so none is recorded as seen by the leader."""
    plug = plugs().connected()
    lease = plug.wire._connection.lease
    recorded: list[Sent] = []
    monkeypatch.setattr(lease, "answered", lambda sent, *_answer, **_facts: recorded.append(sent))
    monkeypatch.setattr(lease, "forwarded", lambda now: Sent(now, 1.0, 1.0))
    assert do(plug, READS[kind], "/") is None
    assert {(sent.answered_a_margin_before, sent.known_to_leader) for sent in recorded} == {(NEVER, NEVER)}


def test_lease__not_without_an_answer(zookeeper: ZooKeeper, plugs: Any) -> None:
    """While requests are not answered, the lease is not renewed and ``unanswered_for`` grows."""
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts, session_timeout=30.0).connected()
        plug.ask("children", "/")
        before = plug.wire.lease.end
        proxy.pause("down")
        answers: list[Any] = []
        plug.do(lambda: plug.wire.children("/", lambda *answer: answers.append(answer)))
        wait_until(lambda: plug.wire.unanswered_for() > 0.2)
        assert plug.wire.lease.end == before
        proxy.resume()
        wait_until(lambda: answers)
        assert plug.wire.unanswered_for() == 0.0
        plug.wire.close(1.0)


def test_drop__avoid(zookeeper: ZooKeeper, plugs: Any) -> None:
    """A server is avoided after a drop that says so, and serves all the same if it is the only one."""
    plug = plugs().connected()
    plug.wire.drop("for the test")
    wait_until(lambda: plug.listener.events == ["connected", "suspended", "connected"])
    assert not plug.wire._connection._avoided
    plug.wire.drop("for the test", avoid=True)
    wait_until(lambda: plug.listener.events[3:] == ["suspended", "connected"])
    (avoided,) = plug.wire._connection._avoided
    assert avoided[1:] == zookeeper.address


def test_reply__raises(plugs: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a reply, a watch or a listener is logged and does not end the connection."""
    plug = plugs().connected()

    def fail(*_: Any) -> None:
        raise ValueError("wrong")

    plug.do(lambda: plug.wire.children("/", fail))
    plug.do(fail)
    # A request in the same wake-up would be sent with the next one.
    wait_until(lambda: "event=listener_failed" in caplog.text)
    assert plug.ask("children", "/")[1] is None
    assert caplog.text.count("event=listener_failed") == 2


def test_request__unencodable(plugs: Any) -> None:
    """A request that cannot be encoded fails alone."""
    plug = plugs().connected()
    value, error = plug.ask("children", "/\ud800")
    assert value is None
    assert isinstance(error, KazooException)
    assert plug.ask("children", "/")[1] is None


def test_close__ends_the_session(plugs: Any, observer: Observer, root: str) -> None:
    """Close deletes the nodes of the session at once."""
    plug = plugs(session_timeout=30.0).connected()
    observer.client.create(root)
    ((name,), token), error = plug.ask("create", [f"{root}/x-"], b"data")
    assert error is None
    _data, stat = observer.client.get(f"{root}/{name}")
    assert (stat.ephemeralOwner, stat.czxid) == (plug.wire.session_id, token)
    assert plug.wire.close(2.0)
    assert observer.children(root) == []
    assert plug.listener.events[-2:] == ["closing", ("ended", "the session was closed", True)]


@pytest.fixture
def handshake() -> Iterator[Handshake]:
    """Return a wire whose session exists at the server, before the answer to its handshake."""
    with ZooKeeperServer() as server:
        held = server.faults.black_hole("replies")
        plug = Plug(server.hosts, session_timeout=30.0)
        wait_until(server.sessions)
        yield Handshake(server, plug, held.end)
        server.faults.heal()
        plug.wire.close(1.0)


@dataclass(frozen=True)
class Handshake:
    """Both ends of a handshake, and the call that delivers its answer."""

    server: ZooKeeperServer
    plug: Plug
    end: Callable[[], None]


class Late:
    """Replaces kazoo's event for "connected"; the connection is established right after the first read of it."""

    def __init__(self, event: Any, arrive: Callable[[], None]) -> None:
        self._event = event
        self._arrive = arrive

    def is_set(self) -> bool:
        there = bool(self._event.is_set())
        self._arrive()
        return there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


def test_close__before_the_session_is_known(handshake: Handshake) -> None:
    """A session whose handshake ends after the call of close is closed at once, by one request."""
    closing = Runner(lambda: handshake.plug.wire.close(10.0))
    wait_until(handshake.plug.wire._client._stopped.is_set)
    handshake.end()
    assert closing.result() is True
    assert handshake.server.sessions() == []
    assert handshake.server.requests.count("close") == 1


def test_close__as_the_session_gets_known(handshake: Handshake) -> None:
    """The session is closed too if the handshake ends right after close has read that there is no connection."""
    client = handshake.plug.wire._client
    live = client._live

    def arrive() -> None:
        handshake.end()
        wait_until(live.is_set)
        # The connection's thread must not reach this point, but would within this time.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: handshake.plug.listener.events, 0.3)

    client._live = Late(live, arrive)
    assert handshake.plug.wire.close(10.0) is True
    assert handshake.server.sessions() == []
    assert handshake.server.requests.count("close") == 1


def test_begin_close(handshake: Handshake) -> None:
    """The end of a session that is requested before is not requested again; close waits for the answer."""
    handshake.end()
    wait_until(handshake.plug.wire._client._live.is_set)
    handshake.plug.wire.begin_close()
    wait_until(lambda: handshake.server.sessions() == [])
    assert handshake.plug.wire.close(10.0) is True
    assert handshake.server.requests.count("close") == 1


def test_begin_close__connection_lost(handshake: Handshake) -> None:
    """If the connection ends before the request is sent, the end of the session is requested on the next one."""
    handshake.end()
    wire = handshake.plug.wire
    wait_until(wire._client._live.is_set)
    with wire.listener.monitor:  # nothing is written meanwhile
        wire.begin_close()
        wire.drop("a test")
        wait_until(lambda: not handshake.server.sessions()[0].connected)
    wait_until(lambda: handshake.server.sessions() == [])
    assert wire.close(10.0) is True


def test_close__is_not_confirmed(handshake: Handshake) -> None:
    """If the connection ends before the answer, close returns that the end of the session is not confirmed."""
    handshake.end()
    wait_until(handshake.plug.wire._client._live.is_set)
    handshake.server.faults.cut_reply("close")
    assert handshake.plug.wire.close(10.0) is False


def test_create_all(plugs: Any, observer: Observer, root: str) -> None:
    """Nodes are created together; the reply has their names in the order of the stems, and their transaction."""
    for queue in ("b", "a", "c"):
        observer.client.create(f"{root}/{queue}", makepath=True)
    plug = plugs().connected()
    stems = [f"{root}/{queue}/x-" for queue in ("b", "a", "c", "b")]
    (names, token), error = plug.ask("create", stems, b"data")
    assert error is None
    assert names == ["x-0000000000", "x-0000000000", "x-0000000000", "x-0000000001"]
    for stem, name in zip(stems, names, strict=True):
        data, stat = observer.client.get(stem.removesuffix("x-") + name)
        assert (data, stat.czxid, stat.ephemeralOwner) == (b"data", token, plug.wire.session_id)
    # The next transaction, so that the id is not just that of the last answer.
    observer.client.create(f"{root}/between")
    (_, later), _ = plug.ask("create", stems, b"data")
    assert later > token + 1


def test_set(plugs: Any, observer: Observer, root: str) -> None:
    """Data is replaced at any version, or only at the version that is given."""
    observer.client.create(root, b"old")
    plug = plugs().connected()
    assert plug.ask("set", root, b"new")[1] is None
    assert observer.client.get(root)[0] == b"new"
    answers: list[tuple[bytes, Any]] = []
    for version in (0, 1):
        data = b"for version %d" % version
        plug.do(
            lambda version=version, data=data: plug.wire.set(
                root, data, lambda _value, error: answers.append((data, type(error))), version=version
            )
        )
    wait_until(lambda: len(answers) == 2)
    assert answers == [(b"for version 0", BadVersionError), (b"for version 1", type(None))]
    assert observer.client.get(root)[0] == b"for version 1"
    assert isinstance(plug.ask("set", f"{root}/none", b"")[1], NoNodeError)


def test_chroot(make_pool: MakePool, zookeeper: ZooKeeper, observer: Observer) -> None:
    """A path in HOSTS is a prefix of every path, also of watches, and is created if it is missing."""
    pools = [make_pool(f"{zookeeper.hosts}/apps/billing", root="/locks") for _ in range(2)]
    with Lock("k", pools[0]).acquire(timeout=60) as held:
        assert len(observer.children("/apps/billing/locks/k")) == 1
        assert held.node.startswith("/locks/k/")
        waiter = Runner(lambda: Lock("k", pools[1]).acquire(timeout=120))
        observer.wait_count("/apps/billing/locks/k", 2)
    waiter.result().release()


def test_auth__refused(make_pool: MakePool) -> None:
    """Credentials of a scheme that the server does not know raise an error at once, also the second time."""
    pool = make_pool(auth=[("nosuch", "x")])
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match="authentication was refused") as caught:
            Lock("k", pool).acquire(timeout=60)
        assert time.monotonic() - began < GRACE
        assert caught.value.key == "k"


@pytest.mark.parametrize("value", ["", "nobody", [], ["world"], ["world:anyone"], ["world:anyone:x"], [1], [":a:r"]])
def test_acl__bad(value: Any) -> None:
    """The error for a wrong ACL shows a right one."""
    with pytest.raises(ValueError, match=r'like "world:anyone:r"|"open", "creator" or a list'):
        parse_acl(value)


def test_acl__list() -> None:
    """An entry is parsed with colons in its credential."""
    (entry,) = parse_acl(["digest:user:ha:sh=:cdrwa"])
    assert (entry.id.scheme, entry.id.id, entry.perms) == ("digest", "user:ha:sh=", 31)
