"""kazoo as a transport: each thing that we rely on inside kazoo has a test that fails when kazoo changes it.

That a forked child forgets its parent's connection is shown with a real fork, in ``test_processes.py``.
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
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, BadVersionError, NoAuthError
from services.zookeeper import ZooKeeper

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.wire import (
    ConnectionOptions,
    KazooException,
    NoNodeError,
    Read,
    UnimplementedError,
    Wire,
    parse_acl,
)
from django_zklock.zk.wire.handler import make_handler
from django_zklock.zk.wire.multiread import MultiRead
from django_zklock.zk.wire.watch import RemoveWatches
from tests.zk.onlooker import MakePool, Onlooker, wait_until
from tests.zk.proxy import UP, Proxy, requests
from tests.zk.runner import Runner

pytestmark = pytest.mark.zookeeper

GET_CHILDREN, REMOVE_WATCHES, CLOSE = 8, 18, -11


class Listener:
    """Keeps what a wire tells, and does on the connection's thread what a test asks for."""

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

    def on_connected(self) -> None:
        self.note("connected")

    def on_suspended(self) -> None:
        self.note("suspended")

    def on_ended(self, reason: str, *, final: bool) -> None:
        self.note(("ended", reason, final))


class Plug:
    """A wire with its listener; calls are made on the connection's thread and waited for."""

    def __init__(self, hosts: str, *, session_timeout: float = 6.0, **options: Any) -> None:
        self.listener = Listener()
        self.wire = Wire(
            ConnectionOptions(hosts=hosts, session_timeout=session_timeout, **options), self.listener, patience=5.0
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
def plugs(zookeeper: ZooKeeper) -> Iterator[Any]:
    made: list[Plug] = []

    def make(hosts: str = zookeeper.hosts, **options: Any) -> Plug:
        made.append(Plug(hosts, **options))
        return made[-1]

    yield make
    for plug in made:
        plug.wire.close(1.0)


def test_requests__one_write(zookeeper: ZooKeeper, plugs: Any) -> None:
    """All requests of one wake-up leave in one write, and their answers come in their order."""
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts).connected()
        plug.ask("children", "/")
        seen = len(proxy.chunks)
        answers: list[int] = []
        plug.do(
            lambda: [
                plug.wire.children("/", lambda value, error, number=number: answers.append(number))
                for number in range(50)
            ]
        )
        wait_until(lambda: len(answers) == 50)
        written = [chunk for direction, chunk in proxy.chunks[seen:] if direction == UP]
        assert [list(requests(chunk)) for chunk in written] == [[GET_CHILDREN] * 50]
        assert answers == list(range(50))
        plug.wire.close(1.0)


def test_wake__one_byte(plugs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of wake-ups before the connection's thread gets to it are one byte, and one look at the queue."""
    plug = plugs().connected()
    held, entered = threading.Event(), threading.Event()
    plug.do(entered.set, lambda: held.wait(5))
    assert entered.wait(5)
    connection = plug.wire._connection
    sent: list[bytes] = []

    class Counting:
        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def send(self, data: bytes) -> int:
            sent.append(data)
            return self._sock.send(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

    connection._write_sock = Counting(connection._write_sock)
    # kazoo's socket pair would block after some 280 of them.
    for _ in range(5000):
        plug.wire.wake()
    before = plug.listener.wakes
    held.set()
    wait_until(lambda: plug.listener.wakes > before)
    assert sent == [b"\0"]
    assert plug.listener.wakes == before + 1
    assert plug.ask("children", "/")[1] is None


def test_wake__interrupted(plugs: Any) -> None:
    """A wake-up that an exception interrupts does not silence the connection."""
    plug = plugs().connected()
    connection = plug.wire._connection
    real = connection._write_sock

    class Interrupted:
        def send(self, data: bytes) -> int:
            raise KeyboardInterrupt

    connection._write_sock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        plug.wire.wake()
    connection._write_sock = real
    assert plug.ask("children", "/")[1] is None


def test_events__one_thread_in_wire_order(plugs: Any, onlooker: Onlooker, root: str) -> None:
    """Answers, watch events and states arrive on the connection's thread in the order of the wire."""
    plug = plugs().connected()
    note = plug.listener.note
    onlooker.client.create(root, b"a")
    wire = plug.wire
    plug.do(
        lambda: (
            wire.get(root, lambda value, error: note(("got", value[0])), lambda deleted: note(("watch", deleted))),
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
    """What kazoo waits for is told to every thread that waits, and a wait has its end."""
    handler = make_handler(ConnectionOptions(hosts="nowhere"), patience=1.0)
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
    """A wire has one thread: kazoo's two workers are not started."""
    before = set(threading.enumerate())
    plug = plugs().connected()
    (thread,) = set(threading.enumerate()) - before
    assert plug.wire.close(2.0)
    wait_until(lambda: not thread.is_alive())


@pytest.fixture
def watcher(plugs: Any, onlooker: Onlooker, root: str) -> Watching:
    """Give a wire, and a node that it can watch."""
    onlooker.client.create(root)
    return Watching(plugs().connected(), root)


class Watching:
    """Sets watches on one node and takes them off, and keeps what each is told."""

    def __init__(self, plug: Plug, path: str) -> None:
        self.plug = plug
        self.path = path
        self.told: list[tuple[str, bool]] = []
        self._off: dict[str, Callable[[], None]] = {}

    def watch(self, name: str, method: str = "get") -> None:
        """Have the watch ``name`` asked for, without waiting for the answer."""

        def ask() -> None:
            call = getattr(self.plug.wire, method)
            self._off[name] = call(self.path, lambda *_: None, lambda deleted: self.told.append((name, deleted)))

        self.plug.do(ask)

    def unwatch(self, *names: str) -> None:
        self.plug.do(lambda: [self._off[name]() for name in names])

    def settle(self) -> None:
        """Wait until all that was asked for is answered."""
        assert self.plug.ask("children", "/")[1] is None

    @property
    def kept(self) -> int:
        """How many watches kazoo keeps."""
        client = self.plug.wire._client
        return sum(len(here) for table in (client._data_watchers, client._child_watchers) for here in table.values())


def watches_at(server: ZooKeeper) -> int:
    """Ask a server how many watches it keeps."""
    with socket.create_connection(server.address, 5.0) as connection:
        connection.sendall(b"mntr")
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(dict(line.split("\t", 1) for line in answer.splitlines())["zk_watch_count"])


def test_watch__data(watcher: Watching, onlooker: Onlooker) -> None:
    """A watch on a node tells once, whether it was changed or deleted."""
    watcher.watch("first")
    watcher.settle()
    onlooker.client.set(watcher.path, b"new")
    wait_until(lambda: watcher.told == [("first", False)])
    watcher.watch("second")
    watcher.settle()
    onlooker.client.create(f"{watcher.path}/child")
    onlooker.client.delete(f"{watcher.path}/child")
    onlooker.client.delete(watcher.path)
    wait_until(lambda: watcher.told == [("first", False), ("second", True)])
    assert watcher.kept == 0


def test_watch__children(watcher: Watching, onlooker: Onlooker) -> None:
    """A watch on the children tells of a new one and of one that goes, and of the end of the node itself."""
    steps: list[tuple[Callable[[str], object], str, bool]] = [
        (onlooker.client.create, "/child", False),
        (onlooker.client.delete, "/child", False),
        (onlooker.client.delete, "", True),
    ]
    for number, (change, below, deleted) in enumerate(steps):
        watcher.watch(str(number), "children")
        watcher.settle()
        change(watcher.path + below)
        wait_until(lambda number=number, deleted=deleted: watcher.told[number:] == [(str(number), deleted)])  # type: ignore[misc]
    assert watcher.kept == 0


@pytest.mark.parametrize("method", ["get", "children"])
def test_watch__taken_off(watcher: Watching, onlooker: Onlooker, method: str) -> None:
    """A watch that is taken off is not called, leaves nothing in kazoo, and does not disturb another one."""
    watcher.watch("off", method)
    watcher.watch("on", method)
    watcher.settle()
    watcher.unwatch("off")
    watcher.unwatch("off")
    watcher.settle()
    assert watcher.kept == 1
    onlooker.client.delete(watcher.path)
    wait_until(lambda: watcher.told == [("on", True)])
    assert watcher.kept == 0


@pytest.mark.parametrize("method", ["get", "children"])
def test_watch__taken_off_under_way(watcher: Watching, onlooker: Onlooker, method: str) -> None:
    """A watch can be given up before the answer that leaves it, and another one may take its place at once."""
    watcher.watch("off", method)
    watcher.unwatch("off")
    watcher.settle()
    assert watcher.kept == 0
    watcher.watch("off too", method)
    watcher.unwatch("off too")
    watcher.watch("on", method)
    watcher.settle()
    assert watcher.kept == 1
    onlooker.client.delete(watcher.path)
    wait_until(lambda: watcher.told == [("on", True)])
    watcher.settle()
    assert watcher.told == [("on", True)]


def test_watch__removed_at_the_server(own_zookeeper: ZooKeeper, plugs: Any, own_onlooker: Onlooker) -> None:
    """The server forgets a watch when the last of those who share it is taken off, and no other watch."""
    own_onlooker.client.create("/k")
    one = Watching(plugs(own_zookeeper.hosts).connected(), "/k")
    other = Watching(plugs(own_zookeeper.hosts).connected(), "/k")
    for watching in (one, other):
        for name in ("a", "b", "c"):
            watching.watch(name)
        watching.watch("of the children", "children")
        watching.settle()
    # The server keeps one for a session, a node and what is watched of it.
    assert watches_at(own_zookeeper) == 4
    for number, name in enumerate(["a", "b", "c", "of the children"], 1):
        one.unwatch(name)
        one.settle()
        assert watches_at(own_zookeeper) == {1: 4, 2: 4, 3: 3, 4: 2}[number]
    one.watch("under way")
    one.unwatch("under way")
    one.settle()
    assert watches_at(own_zookeeper) == 2
    own_onlooker.client.delete("/k")
    wait_until(lambda: len(other.told) == 4)
    one.settle()
    assert sorted(other.told) == [("a", True), ("b", True), ("c", True), ("of the children", True)]
    assert one.told == []
    assert watches_at(own_zookeeper) == 0


def test_watch__taken_off_too_late(plugs: Any, zookeeper: ZooKeeper, onlooker: Onlooker, root: str) -> None:
    """A watch that goes off while its removal is on the way is not called, and the server's refusal does no harm."""
    onlooker.client.create(root)
    with Proxy(zookeeper.address) as proxy:
        watching = Watching(plugs(proxy.hosts).connected(), root)
        watching.watch("off")
        watching.settle()
        proxy.pause("down")
        onlooker.client.delete(root)
        watching.unwatch("off")
        wait_until(lambda: [REMOVE_WATCHES] in [list(requests(chunk)) for way, chunk in proxy.chunks[2:] if way == UP])
        proxy.resume()
        watching.settle()
        assert watching.told == []
        assert watching.plug.listener.events == ["connected"]
        watching.plug.wire.close(1.0)


def test_watch__connection_lost(watcher: Watching, onlooker: Onlooker) -> None:
    """A watch ends with its connection, without a call; the listener hears of that."""
    watcher.watch("lost")
    watcher.settle()
    watcher.plug.wire.drop("for the test")
    wait_until(lambda: watcher.plug.listener.events == ["connected", "suspended", "connected"])
    watcher.unwatch("lost")
    watcher.watch("new")
    watcher.settle()
    assert watcher.kept == 1
    onlooker.client.delete(watcher.path)
    wait_until(lambda: watcher.told == [("new", True)])


def test_error__unknown_to_kazoo(watcher: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without a name is an error for the one who asked, and the connection goes on."""
    # ZooKeeper's NoWatcher, as it is to kazoo 2.10.
    unnamed: defaultdict[int, Any] = defaultdict(EXCEPTIONS.default_factory)
    monkeypatch.setattr("kazoo.protocol.connection.EXCEPTIONS", unnamed)
    monkeypatch.setattr("django_zklock.zk.wire.connection.EXCEPTIONS", unnamed)
    answers: list[Any] = []
    wire = watcher.plug.wire
    watcher.plug.do(lambda: wire._send(RemoveWatches(watcher.path, 2), lambda *answer: answers.append(answer)))
    wait_until(lambda: answers)
    assert [str(error) for _, error in answers] == ["ZooKeeper's error -121"]
    assert isinstance(answers[0][1], KazooException)
    watcher.settle()
    assert watcher.plug.listener.events == ["connected"]


def test_unknown_request__refused_out_of_turn(
    plugs: Any, onlooker: Onlooker, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server does not know it refuses before what was asked earlier, and closes the connection, not more."""
    onlooker.client.create(root)
    monkeypatch.setattr(MultiRead, "type", 77)
    plug = plugs().connected()
    wire, session = plug.wire, plug.wire.session_id
    for number in range(5):
        plug.listener.events.clear()
        refusals: list[Any] = []
        plug.do(
            # A write takes longer than a refusal.
            lambda: wire.create(f"{root}/a", b"", lambda *_: None),
            lambda: wire.children(root, lambda *_: None),
            lambda: wire.read_many([Read(root)], lambda _value, error: refusals.append(error)),  # noqa: B023 - waited for
        )
        wait_until(lambda: plug.listener.events == ["suspended", "connected"])
        assert [type(error) for error in refusals] == [UnimplementedError]
        # Done, whether that was answered or not.
        assert len(plug.ask("children", root)[0]) == number + 1
    assert wire.session_id == session


def test_answer__to_another_request(zookeeper: ZooKeeper, plugs: Any) -> None:
    """An answer to what was not asked ends the connection, and not the session with all its locks."""
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
    assert not plug.wire._client._data_watchers


@pytest.mark.parametrize(("asked", "given"), [(0.1, 0.8), (3.0, 3.0), (1000.0, 60.0)])
def test_session_timeout__negotiated(plugs: Any, asked: float, given: float) -> None:
    """The timeout that the server has granted is known, not only the one that was asked for."""
    plug = plugs(session_timeout=asked).connected()
    assert plug.wire.session_timeout == given


def test_acked__requests_and_pings(plugs: Any) -> None:
    """The lease moves with each answered request and with answered pings."""
    plug = plugs(session_timeout=1.2).connected()
    first = plug.wire.acked
    plug.ask("children", "/")
    second = plug.wire.acked
    assert second > first
    wait_until(lambda: plug.wire.acked > second, 3)
    assert plug.wire.silent_for() == 0.0


def test_acked__not_without_an_answer(zookeeper: ZooKeeper, plugs: Any) -> None:
    """The lease stands still, and the silence grows, while requests are sent and not answered."""
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts, session_timeout=30.0).connected()
        plug.ask("children", "/")
        before = plug.wire.acked
        proxy.pause("down")
        answers: list[Any] = []
        plug.do(lambda: plug.wire.children("/", lambda *answer: answers.append(answer)))
        wait_until(lambda: plug.wire.silent_for() > 0.2)
        assert plug.wire.acked == before
        proxy.resume()
        wait_until(lambda: answers)
        assert plug.wire.acked > before
        assert plug.wire.silent_for() == 0.0
        plug.wire.close(1.0)


def test_drop__same_session(plugs: Any) -> None:
    """A dropped connection comes back with the same session, and works."""
    plug = plugs().connected()
    session = plug.wire.session_id
    for _ in range(3):
        plug.listener.events.clear()
        plug.wire.drop("for the test")
        wait_until(lambda: plug.listener.events == ["suspended", "connected"])
    assert plug.wire.session_id == session
    assert plug.ask("children", "/")[1] is None


def test_answers__lost(zookeeper: ZooKeeper, plugs: Any) -> None:
    """What was under way when the connection broke is never answered, and never sent again."""
    with Proxy(zookeeper.address) as proxy:
        plug = plugs(proxy.hosts).connected()
        proxy.pause("up", "down")
        answers: list[Any] = []
        plug.do(lambda: plug.wire.children("/", lambda *answer: answers.append(answer)))
        wait_until(lambda: plug.wire._client._pending)
        proxy.resume(drop=True)
        proxy.cut()
        wait_until(lambda: plug.listener.events[-1] == "connected" and len(plug.listener.events) == 3)
        assert plug.ask("children", "/")[1] is None
        assert answers == []
        plug.wire.close(1.0)


def test_reply__raises(plugs: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a reply, a watch or a listener is logged and does not end the connection."""
    plug = plugs().connected()

    def fail(*_: Any) -> None:
        raise ValueError("wrong")

    plug.do(lambda: plug.wire.children("/", fail))
    plug.do(fail)
    # What is asked for in the same wake-up would be left to the next one.
    wait_until(lambda: "event=listener_failed" in caplog.text)
    assert plug.ask("children", "/")[1] is None
    assert "event=reply_failed" in caplog.text


def test_request__unencodable(plugs: Any) -> None:
    """A request that cannot be encoded is an error for the one who made it, and for nobody else."""
    plug = plugs().connected()
    value, error = plug.ask("children", "/\ud800")
    assert value is None
    assert isinstance(error, KazooException)
    assert plug.ask("children", "/")[1] is None


def test_close__frozen_server(own_zookeeper: ZooKeeper) -> None:
    """Closing is bounded when the server does not answer, and its thread ends."""
    before = set(threading.enumerate())
    plug = Plug(own_zookeeper.hosts).connected()
    own_zookeeper.pause()
    began = time.monotonic()
    assert not plug.wire.close(0.3)
    assert time.monotonic() - began < 2
    assert plug.wire.close(0.3)
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_close__ends_the_session(plugs: Any, onlooker: Onlooker, root: str) -> None:
    """Closing removes the session's nodes at once."""
    plug = plugs(session_timeout=30.0).connected()
    onlooker.client.create(root)
    (name, stat), error = plug.ask("create", f"{root}/x-", b"data")
    assert error is None
    assert stat.ephemeralOwner == plug.wire.session_id
    assert onlooker.children(root) == [name]
    assert plug.wire.close(2.0)
    assert onlooker.children(root) == []
    assert plug.listener.events[-1] == ("ended", "the session was closed", True)


def test_close__during_the_handshake(zookeeper: ZooKeeper) -> None:
    """A session that comes of a handshake while the wire is being closed is ended too."""
    with Proxy(zookeeper.address) as proxy:
        proxy.pause("down")
        plug = Plug(proxy.hosts, session_timeout=30.0)
        wait_until(lambda: proxy.chunks)
        closing = Runner(lambda: plug.wire.close(10.0))
        wait_until(lambda: plug.wire._closing)
        proxy.resume()
        assert closing.result()
        _handshake, *rest = [chunk for direction, chunk in proxy.chunks if direction == UP]
        assert [list(requests(chunk)) for chunk in rest] == [[CLOSE]]
        assert plug.listener.events[-1] == ("ended", "the session was closed", True)
        assert plug.wire.session_id is None


@pytest.fixture
def handshake() -> Iterator[Handshake]:
    """Give a wire whose session is there, and does not know of it yet."""
    with ZooKeeperServer() as server:
        held = server.faults.black_hole("replies")
        plug = Plug(server.hosts, session_timeout=30.0)
        wait_until(server.sessions)
        yield Handshake(server, plug, held.end)
        server.faults.heal()
        plug.wire.close(1.0)


@dataclass(frozen=True)
class Handshake:
    """What is at both ends of a handshake, and what has the answer come."""

    server: ZooKeeperServer
    plug: Plug
    end: Callable[[], None]


class Late:
    """Stands for kazoo's event that says "connected", and has the connection come right after a look at it."""

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
    """A session whose handshake ends after the wire was asked to close is ended by one request, at once."""
    closing = Runner(lambda: handshake.plug.wire.close(10.0))
    wait_until(handshake.plug.wire._client._stopped.is_set)
    handshake.end()
    assert closing.result() is True
    assert handshake.server.sessions() == []
    assert handshake.server.requests.count("close") == 1


def test_close__as_the_session_gets_known(handshake: Handshake) -> None:
    """Nor does it matter if the handshake ends between a look whether it has, and what follows from that."""
    client = handshake.plug.wire._client
    live = client._live

    def arrive() -> None:
        handshake.end()
        wait_until(live.is_set)
        # The connection's thread must not come as far as that, but would in this time.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: handshake.plug.listener.events, 0.3)

    client._live = Late(live, arrive)
    assert handshake.plug.wire.close(10.0) is True
    assert handshake.server.sessions() == []
    assert handshake.server.requests.count("close") == 1


def test_close__is_not_confirmed(handshake: Handshake) -> None:
    """Who closes hears that nobody knows what has become of the session, if the connection goes before the answer."""
    handshake.end()
    wait_until(handshake.plug.wire._client._live.is_set)
    handshake.server.faults.cut_reply("close")
    assert handshake.plug.wire.close(10.0) is False


def test_create_all(plugs: Any, onlooker: Onlooker, root: str) -> None:
    """Nodes are created together; the answer names them in the order of the stems, with the transaction of all."""
    for line in ("b", "a", "c"):
        onlooker.client.create(f"{root}/{line}", makepath=True)
    plug = plugs().connected()
    stems = [f"{root}/{line}/x-" for line in ("b", "a", "c", "b")]
    (names, token), error = plug.ask("create_all", stems, b"data")
    assert error is None
    assert names == ["x-0000000000", "x-0000000000", "x-0000000000", "x-0000000001"]
    for stem, name in zip(stems, names, strict=True):
        data, stat = onlooker.client.get(stem.removesuffix("x-") + name)
        assert (data, stat.czxid, stat.ephemeralOwner) == (b"data", token, plug.wire.session_id)
    # The next transaction, so that the number is not that of whatever was answered last.
    onlooker.client.create(f"{root}/between")
    (_, later), _ = plug.ask("create_all", stems, b"data")
    assert later > token + 1


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_create_all__no_parent(plugs: Any, onlooker: Onlooker, root: str, missing: int) -> None:
    """When one parent is missing nothing is created, and the error is that one's."""
    onlooker.client.create(f"{root}/k", makepath=True)
    plug = plugs().connected()
    stems = [f"{root}/k/x-"] * 3
    stems[missing] = f"{root}/none/x-"
    value, error = plug.ask("create_all", stems, b"data")
    assert value is None
    assert isinstance(error, NoNodeError)
    assert onlooker.children(f"{root}/k") == []


def test_create_all__chroot(plugs: Any, zookeeper: ZooKeeper, onlooker: Onlooker, root: str) -> None:
    """The path in HOSTS is put before every stem, and names have none."""
    onlooker.client.create(f"{root}/a", makepath=True)
    onlooker.client.create(f"{root}/b")
    plug = plugs(zookeeper.hosts + root).connected()
    (names, token), error = plug.ask("create_all", ["/a/x-", "/b/x-"], b"")
    assert error is None
    assert names == ["x-0000000000"] * 2
    assert [onlooker.client.exists(f"{root}/{line}/x-0000000000").czxid for line in "ab"] == [token] * 2


def test_set(plugs: Any, onlooker: Onlooker, root: str) -> None:
    """Data is replaced whatever its version, or only if the node has the one that is given."""
    onlooker.client.create(root, b"old")
    plug = plugs().connected()
    assert plug.ask("set", root, b"new")[1] is None
    assert onlooker.client.get(root)[0] == b"new"
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
    assert onlooker.client.get(root)[0] == b"for version 1"
    assert isinstance(plug.ask("set", f"{root}/none", b"")[1], NoNodeError)


def test_session__expired(plugs: Any, zookeeper: ZooKeeper) -> None:
    """An expired session is told as ended and not final, and the next one as connected."""
    plug = plugs().connected()
    client = plug.wire._client
    before = plug.wire.session_id
    other = KazooClient(hosts=zookeeper.hosts, client_id=(client._session_id, client._session_passwd))
    other.start()
    other.stop()
    other.close()
    wait_until(lambda: plug.listener.events[-1] == "connected" and len(plug.listener.events) > 1)
    assert [event for event in plug.listener.events if event != "suspended"] == [
        "connected",
        ("ended", "the session expired", False),
        "connected",
    ]
    assert plug.wire.session_id not in {None, before}
    assert plug.ask("children", "/")[1] is None


def test_chroot(make_pool: MakePool, zookeeper: ZooKeeper, onlooker: Onlooker) -> None:
    """A path in HOSTS is put before every path, watches included, and is made when missing."""
    pools = [make_pool(f"{zookeeper.hosts}/apps/billing", root="/locks") for _ in range(2)]
    with Lock("k", pools[0]).acquire(timeout=5) as held:
        assert len(onlooker.children("/apps/billing/locks/k")) == 1
        assert held.node.startswith("/locks/k/")
        waiter = Runner(lambda: Lock("k", pools[1]).acquire(timeout=10))
        onlooker.wait_count("/apps/billing/locks/k", 2)
    waiter.result().release()


def test_acl__creator(make_pool: MakePool, onlooker: Onlooker) -> None:
    """With credentials and the ACL "creator" the owner locks, and a stranger gets an error that says why."""
    auth = [("digest", "billing:secret")]
    owner, friend, stranger = make_pool(auth=auth, acl="creator"), make_pool(auth=auth, acl="creator"), make_pool()
    with Lock("k", owner).acquire(timeout=5) as held:
        with pytest.raises(NoAuthError):
            onlooker.client.get(held.node)
        waiter = Runner(lambda: Lock("k", friend).acquire(timeout=10))
        began = time.monotonic()
        calls: list[Callable[[], object]] = [
            lambda: Lock("k", stranger).acquire(timeout=5),
            lambda: Lock("k", stranger).try_acquire(),
        ]
        for call in calls:
            with pytest.raises(ZkLockError, match=r"refused: NoAuthError.*check the ACL.*credentials") as caught:
                call()
            assert not isinstance(caught.value, ZooKeeperUnavailable)
            assert "secret" not in str(caught.value)
        assert time.monotonic() - began < 5
        held.check()
    waiter.result().release()


def test_acl__wrong_credentials(make_pool: MakePool) -> None:
    """Other credentials are those of a stranger."""
    right = make_pool(auth=[("digest", "billing:secret")], acl="creator")
    wrong = make_pool(auth=[("digest", "billing:wrong")], acl="creator")
    Lock("k", right).acquire(timeout=5).release(wait=True)
    with pytest.raises(ZkLockError, match="refused: NoAuthError"):
        Lock("k", wrong).acquire(timeout=5)


def test_auth__refused(make_pool: MakePool) -> None:
    """Credentials of a scheme that the server does not know are an error at once, and again the next time."""
    pool = make_pool(auth=[("nosuch", "x")])
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match="authentication was refused") as caught:
            Lock("k", pool).acquire(timeout=5)
        assert time.monotonic() - began < 5
        assert caught.value.key == "k"


@pytest.mark.parametrize("value", ["", "nobody", [], ["world"], ["world:anyone"], ["world:anyone:x"], [1], [":a:r"]])
def test_acl__bad(value: Any) -> None:
    """A wrong ACL is refused with what would be right."""
    with pytest.raises(ValueError, match=r'like "world:anyone:r"|"open", "creator" or a list'):
        parse_acl(value)


def test_acl__list() -> None:
    """Entries are read with a credential that may hold colons."""
    (entry,) = parse_acl(["digest:user:ha:sh=:cdrwa"])
    assert (entry.id.scheme, entry.id.id, entry.perms) == ("digest", "user:ha:sh=", 31)
