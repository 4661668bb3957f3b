"""A lagging follower: what a client reads late, never, or at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    EPHEMERAL,
    AddWatch,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Ping,
    SetData,
    SetWatches,
    Sync,
)
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

TIMEOUT = scaled(10)
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
NO_NODE, BAD_VERSION = -101, -103


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def writer(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address) as writer:
        yield writer


@pytest.fixture
def reader(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address) as reader:
        yield reader


def sees(client: Talker, path: str) -> bool:
    """Return whether a client can read a node."""
    reply = client.do(Exists(path))
    assert reply.error in {0, NO_NODE}
    return reply.error == 0


@pytest.mark.parametrize("zxids", [1, 2, 5])
def test_lag__others_changes(server: ZooKeeperServer, writer: Talker, reader: Talker, zxids: int) -> None:
    """Writes of another client are visible this number of transactions later; a reply has the zxid of its data."""
    with server.faults.lag_reads(zxids):
        for number in range(zxids + 3):
            written = writer.do(Create(f"/n{number}")).zxid
            assert sees(reader, f"/n{number}") is False
            if number >= zxids:
                reply = reader.do(Exists(f"/n{number - zxids}"))
                assert (reply.error, reply.zxid) == (0, written - zxids)
                assert not sees(reader, f"/n{number - zxids + 1}")
        assert reader.do(Ping()).zxid == written - zxids
    assert sees(reader, f"/n{zxids + 2}")


def test_lag__data_and_children(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """Data, versions and children have the same age; a write that relies on them is refused."""
    writer.ask(Create("/a", data=b"old"))
    with server.faults.lag_reads(2):
        writer.ask(SetData("/a", b"new"))
        writer.ask(Create("/a/b"))
        data, stat = reader.read("/a")
        assert (data, stat.version, stat.children) == (b"old", 0, 0)
        assert reader.ask(GetChildren("/a")) == ()
        assert reader.do(SetData("/a", b"mine", version=0)).error == BAD_VERSION


def test_lag__own_changes(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A client reads its own writes, and with them all earlier writes."""
    with server.faults.lag_reads(10):
        writer.ask(Create("/a"))
        assert sees(writer, "/a")
        assert not sees(reader, "/a")
        written = reader.do(Create("/b"))
        assert sees(reader, "/a")
        assert sees(reader, "/b")
        assert reader.do(Exists("/b")).zxid == written.zxid


def test_lag__own_refused_change(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A refusal brings a client up to the state that refused it."""
    with server.faults.lag_reads(10):
        writer.ask(Create("/a"))
        assert not sees(reader, "/a")
        assert reader.do(Create("/a")).error == -110
        assert sees(reader, "/a")


def test_lag__sync(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """After a sync a client reads all changes, and from then on it lags again."""
    with server.faults.lag_reads(1):
        writer.ask(Create("/a"))
        assert not sees(reader, "/a")
        reader.ask(Sync("/"))
        assert sees(reader, "/a")
        writer.ask(Create("/b"))
        assert not sees(reader, "/b")


def test_lag__refused_transactions_count(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A refused write is a transaction, and so are the start and the end of a session."""
    with server.faults.lag_reads(3):
        writer.ask(Create("/a"))
        assert writer.do(Delete("/no-such")).error == NO_NODE
        with Talker(server.address) as other:
            assert not sees(reader, "/a")
            other.do(CloseSession())
        assert sees(reader, "/a")


def test_lag__another_connection_ends_over_its_event(server: ZooKeeperServer, writer: Talker) -> None:
    """A client gets the events of each transaction, even of one that ends the connection of an earlier client."""
    writer.ask(Create("/a", data=b"old"))
    with Talker(server.address) as doomed, Talker(server.address) as reader, server.faults.lag_reads(1):
        doomed.ask(GetData("/a", watch=True))
        cut = server.faults.cut_reply("notification")
        # The second one makes the followers apply the first.
        for data in (b"one", b"two"):
            writer.ask(SetData("/a", data))
        cut.wait()
        reader.ask(Sync("/"))
        assert reader.read("/a")[0] == b"two"


def test_lag__each_client_for_itself(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """Catching up of one client does not affect the others."""
    with Talker(server.address) as third, server.faults.lag_reads(5):
        writer.ask(Create("/a"))
        reader.ask(Sync("/"))
        assert sees(reader, "/a")
        assert not sees(third, "/a")
        third.ask(Create("/b"))
        assert sees(third, "/a")
        assert not sees(reader, "/b")


def test_lag__multi(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """The changes of one transaction become visible together."""
    with server.faults.lag_reads(1):
        writer.ask(Multi((Create("/a"), Create("/b"), Create("/c"))))
        assert reader.ask(GetChildren("/")) == ("zookeeper",)
        writer.ask(Multi((Delete("/a"), Create("/d"))))
        assert reader.ask(GetChildren("/")) == ("a", "b", "c", "zookeeper")


def test_lag__ephemerals(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """The node of an ended session is still visible."""
    writer.ask(Create("/held", EPHEMERAL))
    with server.faults.lag_reads(1):
        server.faults.expire(writer.session)
        assert sees(reader, "/held")
        assert server.paths() == ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"]
        reader.ask(Sync("/"))
        assert not sees(reader, "/held")


# Watches.


def test_lag__events(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """Events are as late as the changes, in their order, and before a reply that shows the change."""
    with server.faults.lag_reads(2):
        assert not sees(reader, "/a")
        reader.do(Exists("/a", watch=True))
        reader.ask(GetChildren("/", watch=True))
        writer.ask(Create("/a"))
        writer.ask(SetData("/a"))
        assert reader.news() == []
        writer.ask(SetData("/a"))
        assert reader.news() == [(CREATED, "/a"), (CHILD, "/")]
        reader.ask(GetData("/a", watch=True))
        # In one packet: the event comes before the reply to the sync.
        reader.start(Sync("/"), GetData("/a"))
        assert reader.event() == (CHANGED, "/a")
        assert [reader.answer().error for _ in range(2)] == [0, 0]
        assert reader.news() == []


def test_lag__events_of_own_changes(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A client gets missed events before the reply to its own change."""
    with server.faults.lag_reads(9):
        reader.do(Exists("/a", watch=True))
        reader.do(Exists("/b", watch=True))
        writer.ask(Create("/a"))
        reader.start(Create("/b"))
        assert [reader.event(), reader.event()] == [(CREATED, "/a"), (CREATED, "/b")]
        assert reader.answer().error == 0


def test_lag__watch_on_what_is_there_already(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A watch for a node that is not visible yet fires when the node becomes visible."""
    with server.faults.lag_reads(1):
        writer.ask(Create("/a"))
        assert reader.do(Exists("/a", watch=True)).error == NO_NODE
        writer.ask(Create("/b"))
        assert reader.event() == (CREATED, "/a")


def test_lag__watches_from_before(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """Watches from before the fault fire late; those left at its end fire at once."""
    reader.do(Exists("/a", watch=True))
    reader.do(Exists("/b", watch=True))
    reader.ask(AddWatch("/", 1))
    with server.faults.lag_reads(1):
        writer.ask(Create("/a"))
        assert reader.news() == []
        writer.ask(SetData("/a"))
        assert reader.news() == [(CREATED, "/a")]
    assert reader.event() == (CHANGED, "/a")
    writer.ask(Create("/b"))
    writer.ask(SetData("/b"))
    assert reader.news() == [(CREATED, "/b"), (CHANGED, "/b")]


def test_lag__end_tells_all(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """The end of the fault sends all pending events, once each and in order."""
    with server.faults.lag_reads(100):
        reader.ask(AddWatch("/", 1))
        for number in range(10):
            writer.ask(Create(f"/n{number}"))
        assert reader.news() == []
    assert [reader.event() for _ in range(10)] == [(CREATED, f"/n{number}") for number in range(10)]
    assert reader.news() == []


def test_lag__set_watches(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A client that restores its watches gets the events that its follower knows, and the rest later."""
    writer.ask(Create("/a"))
    with server.faults.lag_reads(2):
        seen = writer.do(SetData("/a")).zxid
        writer.ask(Create("/b"))
        with Talker(server.address, of=reader, last_zxid=seen) as again:
            again.do(SetWatches(seen, data=("/a",), exist=("/b",)))
            assert again.events == []
            writer.ask(SetData("/a"))
            writer.ask(SetData("/a"))
            assert again.news() == [(CREATED, "/b")]
            writer.ask(SetData("/a"))
            assert again.news() == [(CHANGED, "/a")]


def test_lag__end_of_own_session(server: ZooKeeperServer, writer: Talker) -> None:
    """A client that closes its session gets the deletion of its own nodes before the reply."""
    writer.ask(Create("/held", EPHEMERAL))
    with server.faults.lag_reads(5):
        writer.ask(Exists("/held", watch=True))
        writer.start(CloseSession())
        assert writer.event() == (DELETED, "/held")
        assert writer.answer().error == 0
        assert writer.is_closed()


# Connections.


def test_lag__new_session(server: ZooKeeperServer, writer: Talker) -> None:
    """A client reads everything from before the start of its session."""
    with server.faults.lag_reads(5):
        writer.ask(Create("/a"))
        with Talker(server.address) as new:
            assert sees(new, "/a")
            writer.ask(Create("/b"))
            assert not sees(new, "/b")


def test_lag__reconnect(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """A client that reconnects reads at least what it claims to have seen, and maybe no more."""
    with server.faults.lag_reads(3):
        seen = [writer.do(Create(f"/n{number}")).zxid for number in range(3)]
        for claimed, last in ((0, -1), (seen[0], 0), (seen[1], 1), (seen[2], 2), (seen[0], 0)):
            with Talker(server.address, of=reader, last_zxid=claimed) as again:
                assert [sees(again, f"/n{number}") for number in range(3)] == [number <= last for number in range(3)]
                assert again.do(Ping()).zxid == max(claimed, seen[0] - 1)


def test_lag__followers_are_given_up(server: ZooKeeperServer, writer: Talker, reader: Talker) -> None:
    """The follower of a closed connection is removed, and at the end of the fault all are."""
    with Talker(server.address, greet=False) as late:
        late.greet()
        with server.faults.lag_reads():
            followers = server.service.followers
            assert server.call(lambda: len(followers)) == 3
            late.close()
            with Talker(server.address, of=reader):
                assert reader.is_closed()
                server.faults.drop(writer.session)
                assert writer.is_closed()
                assert server.call(lambda: len(followers)) == 1
        assert server.call(lambda: len(server.service.followers)) == 0


def test_lag__twice(server: ZooKeeperServer) -> None:
    """A second lag is refused; the first one continues."""
    with Talker(server.address) as one, Talker(server.address) as other:
        with server.faults.lag_reads(1):
            with pytest.raises(RuntimeError, match="reads lag already"):
                server.faults.lag_reads(2)
            one.ask(Create("/a"))
            assert not sees(other, "/a")
        assert sees(other, "/a")


def test_lag__kazoo(server: ZooKeeperServer) -> None:
    """Code that trusts its reads is wrong, and code that syncs first is right."""
    clients = [KazooClient(server.hosts) for _ in range(2)]
    for client in clients:
        client.start(timeout=TIMEOUT)
    one, other = clients
    with server.faults.lag_reads(1):
        one.create("/a")
        assert other.exists("/a") is None
        other.sync("/")
        assert other.exists("/a") is not None
    for client in clients:
        client.stop()
        client.close()
