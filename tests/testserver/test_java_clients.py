"""Java's clients, Apache Curator and ``zkCli.sh``, get the same results from the test server as from the real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_zklock import LockTimeout, zk_lock
from django_zklock.connections import connections
from django_zklock.testing import ZooKeeperServer
from tests.testserver.zkcli import ZkCli, transcript
from tests.toolbox.curator.clients import Curator, CuratorClient, RefusedError
from tests.toolbox.curator.installation import curator_version, find_curator
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.processes.process import NotInstalledError
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import Installation, ZooKeeper

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.once, pytest.mark.zookeeper]

# Every command of zkCli.sh with a request: its success and its refusal. "~" is the test's own node.
SCRIPT = Path(__file__).parent / "zkcli.txt"

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Server:
    """A server, one of its addresses, whose connections ``cut`` drops, and a client that reads its tree."""

    hosts: str
    fragile_hosts: str
    cut: Callable[[], object]
    observer: Observer


@pytest.fixture(scope="session")
def our_server() -> Iterator[Server]:
    with ExitStack() as stack:
        ours = stack.enter_context(ZooKeeperServer())
        observer = Observer(ours.hosts)
        stack.callback(observer.close)
        yield Server(ours.hosts, ours.hosts, ours.faults.drop, observer)


@pytest.fixture(scope="session")
def real_server(zookeeper: ZooKeeper) -> Iterator[Server]:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(zookeeper.address))
        observer = Observer(zookeeper.hosts)
        stack.callback(observer.close)
        yield Server(zookeeper.hosts, proxy.hosts, proxy.cut, observer)


@pytest.fixture(params=["our", "real"])
def server(request: pytest.FixtureRequest) -> Server:
    """Return the test server, then the real one."""
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, Server)
    return server


@pytest.fixture
def java(curator: Curator, server: Server) -> Iterator[Callable[[], CuratorClient]]:
    """Return a function that creates clients of Curator; they are closed at the end."""
    clients: list[CuratorClient] = []

    def connect() -> CuratorClient:
        clients.append(curator.connect(server.fragile_hosts))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
    for client in clients:
        client.wait_closed()


@pytest.fixture
def root(server: Server) -> str:
    """Return the test's own node."""
    path = f"/java-{next(_numbers)}"
    server.observer.client.create(path)
    return path


@pytest.fixture
def path(server: Server, settings: Settings) -> str:
    """Put our locks on the server; return the path of the lock ``k``."""
    settings.ZKLOCK = {
        "default": {"HOSTS": server.hosts, "ROOT": f"/java-{next(_numbers)}", "SESSION_TIMEOUT": scaled(6)}
    }
    return connections["default"].path("k")


# Nodes and watches of Curator's clients.


def test_curator__create_read_write_delete(java: Callable[[], CuratorClient], root: str) -> None:
    """One client of Curator reads the nodes of another."""
    writer, reader = java(), java()
    assert writer.ask(f"create {root}/a one PERSISTENT") == f"{root}/a"
    assert writer.ask(f"create {root}/b two PERSISTENT") == f"{root}/b"
    assert reader.ask(f"list {root}") == "a b"
    assert reader.ask(f"get {root}/a") == "one"
    assert reader.ask(f"set {root}/a three") == "version 1"
    assert writer.ask(f"get {root}/a") == "three"
    writer.ask(f"delete {root}/a")
    assert reader.ask(f"list {root}") == "b"


def test_curator__kinds_of_nodes(java: Callable[[], CuratorClient], server: Server, root: str) -> None:
    """Curator's modes create sequential nodes, ephemeral nodes and containers."""
    client, other = java(), java()
    assert client.ask(f"create {root}/s- x PERSISTENT_SEQUENTIAL") == f"{root}/s-0000000000"
    assert client.ask(f"create {root}/s- x EPHEMERAL_SEQUENTIAL") == f"{root}/s-0000000001"
    assert client.ask(f"owner {root}/s-0000000000") == "0"
    assert other.ask(f"owner {root}/s-0000000001") == client.ask("session") != other.ask("session")
    assert client.ask(f"create {root}/c x CONTAINER") == f"{root}/c"
    # The Stat does not show that a node is a container.
    assert client.ask(f"owner {root}/c") == "0"
    client.close()
    server.observer.wait_count(root, 2)
    assert other.ask(f"list {root}") == "c s-0000000000"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("create {root} x PERSISTENT", "NodeExistsException"),
        ("create {root}/no/a x PERSISTENT", "NoNodeException"),
        ("create {root}/e/a x PERSISTENT", "NoChildrenForEphemeralsException"),
        ("get {root}/no", "NoNodeException"),
        ("set {root}/no x", "NoNodeException"),
        ("set {root} x 7", "BadVersionException"),
        ("delete {root}", "NotEmptyException"),
        ("unwatch {root}", "NoWatcherException"),
    ],
)
def test_curator__refused(java: Callable[[], CuratorClient], root: str, command: str, error: str) -> None:
    """The server's errors become Java's exceptions."""
    client = java()
    client.ask(f"create {root}/e x EPHEMERAL")
    with pytest.raises(RefusedError, match=f"^{error} "):
        client.ask(command.format(root=root))


def test_curator__watches_fire_once(java: Callable[[], CuratorClient], root: str) -> None:
    """Watches on data, existence and children send the first change only."""
    watcher, writer = java(), java()
    assert watcher.ask(f"watch-exists {root}/a") == "absent"
    assert watcher.ask(f"watch-children {root}") == ""
    writer.ask(f"create {root}/a one PERSISTENT")
    assert {watcher.events.get(), watcher.events.get()} == {f"NodeCreated {root}/a", f"NodeChildrenChanged {root}"}
    assert watcher.ask(f"watch-data {root}/a") == "one"
    writer.ask(f"set {root}/a two")
    writer.ask(f"set {root}/a three")
    assert watcher.events.get() == f"NodeDataChanged {root}/a"
    assert watcher.ask(f"watch-exists {root}/a") == "present"
    writer.ask(f"delete {root}/a")
    assert watcher.events.get() == f"NodeDeleted {root}/a"
    assert watcher.events.empty()


def test_curator__lasting_watches(java: Callable[[], CuratorClient], root: str) -> None:
    """Persistent watches send every change, of a node or of its subtree, until they are removed."""
    of_node, of_tree, writer = java(), java(), java()
    of_node.ask(f"watch-always {root} PERSISTENT")
    of_tree.ask(f"watch-always {root} PERSISTENT_RECURSIVE")
    for value in "one", "two":
        writer.ask(f"set {root} {value}")
    writer.ask(f"create {root}/a x PERSISTENT")
    writer.ask(f"create {root}/a/b x PERSISTENT")
    writer.ask(f"delete {root}/a/b")
    of_node.ask(f"unwatch {root}")
    of_tree.ask(f"unwatch {root}")
    writer.ask(f"delete {root}/a")
    expected = [f"NodeDataChanged {root}"] * 2
    end = f"PersistentWatchRemoved {root}"
    assert _until(of_node, end) == [*expected, f"NodeChildrenChanged {root}"]
    assert _until(of_tree, end) == [
        *expected,
        f"NodeCreated {root}/a",
        f"NodeCreated {root}/a/b",
        f"NodeDeleted {root}/a/b",
    ]


def test_curator__cache(java: Callable[[], CuratorClient], root: str) -> None:
    """Curator's tree cache reads the tree and follows its changes."""
    cache, writer = java(), java()
    writer.ask(f"create {root}/a one PERSISTENT")
    cache.ask(f"cache {root}")
    assert set(_until(cache, "INITIALIZED")) == {f"NODE_CREATED {root} ", f"NODE_CREATED {root}/a one"}
    writer.ask(f"set {root}/a two")
    assert cache.events.get() == f"NODE_CHANGED {root}/a two"
    writer.ask(f"create {root}/a/b three PERSISTENT")
    assert cache.events.get() == f"NODE_CREATED {root}/a/b three"
    writer.ask(f"delete {root}/a/b")
    assert cache.events.get() == f"NODE_DELETED {root}/a/b three"


def _until(client: CuratorClient, last: str) -> list[str]:
    events = []
    while (event := client.events.get()) != last:
        events.append(event)
    return events


def test_curator__dropped_connection(java: Callable[[], CuratorClient], server: Server, root: str) -> None:
    """A client whose connection is dropped resumes its session, with its nodes, watches and lock."""
    client, other = java(), java()
    session = client.ask("session")
    client.ask(f"create {root}/mine x EPHEMERAL")
    client.ask(f"watch-data {root}/mine")
    # Of another node: one event from the server fires all watches on a node in Java.
    client.ask(f"create {root}/tree x PERSISTENT")
    client.ask(f"watch-always {root}/tree PERSISTENT_RECURSIVE")
    client.ask(f"acquire mutex {root}/m")
    server.cut()
    for each in client, other:
        assert [each.events.get(), each.events.get()] == ["SUSPENDED", "RECONNECTED"]
    assert client.ask("session") == session
    assert other.ask(f"owner {root}/mine") == session
    assert other.ask(f"try mutex {root}/m 100") == "busy"
    for value in "one", "two":
        other.ask(f"set {root}/mine {value}")
        other.ask(f"set {root}/tree {value}")
    changes = [client.events.get() for _ in range(3)]
    assert changes == [f"NodeDataChanged {root}/{name}" for name in ("mine", "tree", "tree")]


# Locks.


def test_mutex__two_clients(java: Callable[[], CuratorClient], server: Server, root: str) -> None:
    """Curator's mutex excludes, and is granted to the waiter after its release."""
    first, second = java(), java()
    assert first.ask(f"acquire mutex {root}") == "acquired"
    assert second.ask(f"try mutex {root} 100") == "busy"
    second.send(f"acquire mutex {root}")
    server.observer.wait_count(root, 2)
    assert second.answers.empty()
    first.ask(f"release mutex {root}")
    assert second.answer() == "acquired"
    assert first.ask(f"try mutex {root} 100") == "busy"


def test_mutex__holder_gone(java: Callable[[], CuratorClient], server: Server, root: str) -> None:
    """When a client ends without a release, the waiter gets the mutex."""
    first, second = java(), java()
    assert first.ask(f"acquire mutex {root}") == "acquired"
    second.send(f"acquire mutex {root}")
    server.observer.wait_count(root, 2)
    first.close()
    assert second.answer() == "acquired"


def test_mutex__we_hold(java: Callable[[], CuratorClient], server: Server, path: str) -> None:
    """Java waits for a lock that we hold, and gets it after our release."""
    client = java()
    with zk_lock("k"):
        assert client.ask(f"try mutex {path} 100") == "busy"
        client.send(f"acquire mutex {path}")
        server.observer.wait_count(path, 2)
        assert client.answers.empty()
    assert client.answer() == "acquired"


def test_mutex__java_holds(java: Callable[[], CuratorClient], server: Server, path: str) -> None:
    """We wait for a lock that Java holds, and get it after Java's release."""
    client = java()
    assert client.ask(f"acquire mutex {path}") == "acquired"
    with pytest.raises(LockTimeout):
        zk_lock("k").acquire(timeout=0)
    waiting = Runner(lambda: zk_lock("k").acquire(timeout=20))
    server.observer.wait_count(path, 2)
    assert waiting.running
    client.ask(f"release mutex {path}")
    held = waiting.result()
    assert client.ask(f"try mutex {path} 100") == "busy"
    held.release(wait=True)
    assert client.ask(f"try mutex {path} 15000") == "acquired"


def test_read_write_lock(java: Callable[[], CuratorClient], server: Server, root: str) -> None:
    """Readers share Curator's read-write lock; a writer waits for all of them and then excludes them."""
    writer, one, two = java(), java(), java()
    assert one.ask(f"acquire read {root}") == "acquired"
    assert two.ask(f"try read {root} 15000") == "acquired"
    assert writer.ask(f"try write {root} 100") == "busy"
    writer.send(f"acquire write {root}")
    server.observer.wait_count(root, 3)
    one.ask(f"release read {root}")
    server.observer.wait_count(root, 2)
    assert writer.answers.empty()
    two.ask(f"release read {root}")
    assert writer.answer() == "acquired"
    assert one.ask(f"try read {root} 100") == "busy"


# The command line.


def test_zkcli__commands(server: Server, root: str) -> None:
    """The common commands of ``zkCli.sh`` work, and its watches send events."""
    with ZkCli(server.hosts) as cli:
        assert cli.run(f"create {root}/a one") == f"Created {root}/a"
        assert cli.run(f"ls {root}") == "[a]"
        assert cli.run(f"get -w {root}/a") == "one"
        cli.run(f"set {root}/a two")
        assert cli.events.get() == f"state:SyncConnected type:NodeDataChanged path:{root}/a"
        assert "dataVersion = 1\n" in cli.run(f"stat {root}/a")
        cli.run(f"delete {root}/a")
        assert cli.run(f"stat {root}/a") == f"Node does not exist: {root}/a"
        cli.run("addauth digest me:secret")
        # In any order.
        assert set(cli.run("whoami").splitlines()) == {"Auth scheme: User", "digest: me", "ip: 127.0.0.1"}


def test_zkcli__same_on_both(our_server: Server, real_server: Server) -> None:
    """The output of ``zkCli.sh`` is the same on both servers, except times and numbers of transactions."""
    root = f"/cli-{next(_numbers)}"
    commands = SCRIPT.read_text(encoding="ascii").splitlines()
    ours, real = (transcript(server.hosts, root, commands) for server in (our_server, real_server))
    assert ours == real


def test_find_curator__none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Curator one line says how to get it; a folder with its jars is enough."""
    monkeypatch.setenv("CURATOR_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match=r"^CURATOR_HOME=.*`apt-get install libcurator-recipes-java`"):
        find_curator()
    with pytest.raises(NotInstalledError, match="no curator-recipes jar"):
        curator_version()
    (tmp_path / "curator-recipes-5.4.0.jar").touch()
    assert find_curator() == f"{tmp_path}/*"
    assert curator_version() == (5, 4)


def test_shell__none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With ZooKeeper's jars but without its scripts, one line says how to get them."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "zookeeper-3.8.0.jar").touch()
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match=r"bin/zkCli.sh is not there; get it with `apt-get install zookeeper`"):
        Installation.find().shell()
