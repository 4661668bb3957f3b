"""Cut replies: the bytes that arrive, and the changes that have happened all the same."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    CREATE2,
    CloseSession,
    Create,
    Exists,
    GetData,
    Multi,
    Ping,
    SetData,
)
from tests.toolbox.protocol.raw_client import RawClient
from tests.toolbox.protocol.session_client import Talker, connect_frame

NO_NODE = -101


# Length, xid, zxid and error; path with its length; Stat.
CREATE2_REPLY = 4 + 16 + (4 + 5) + 68
# Length; protocol, timeout and session; password with its length; read-only flag.
CONNECT_REPLY = 4 + (4 + 4 + 8) + (4 + 16) + 1
# Length; header; type and state; path with its length.
EVENT = 4 + 16 + 8 + (4 + 5)


def test_cut_reply__create2(server: ZooKeeperServer) -> None:
    """Each number of bytes arrives exactly, then the end; the node exists, and the session stays open."""
    for count in range(CREATE2_REPLY + 2):
        with Talker(server.address) as client, Talker(server.address) as other:
            path = f"/a{count:03}"
            cut = server.faults.cut_reply("create2", after_bytes=count)
            client.start(Create(path, opcode=CREATE2))
            received = client.receive_all()
            cut.wait()
            assert len(received) == min(count, CREATE2_REPLY)
            assert received == (CREATE2_REPLY - 4).to_bytes(4, "big")[:count] + received[4:]
            other.ask(Exists(path))
            with Talker(server.address, of=client) as again:
                assert again.session == client.session
                again.ask(Create(f"{path}/b", opcode=CREATE2))


def test_cut_reply__notification(server: ZooKeeperServer) -> None:
    """Each number of bytes of an event arrives exactly; the client that caused it gets its reply."""
    for count in range(EVENT + 2):
        with Talker(server.address) as client, Talker(server.address) as other:
            path = f"/a{count:03}"
            client.do(Exists(path, watch=True))
            cut = server.faults.cut_reply("notification", after_bytes=count)
            other.ask(Create(path))
            cut.wait()
            assert len(client.receive_all()) == min(count, EVENT), count
            other.ask(SetData(path))


def test_cut_reply__connect(server: ZooKeeperServer) -> None:
    """Each number of bytes of the reply to the connect request arrives; the session is open, unknown to any client."""
    for count in range(CONNECT_REPLY + 2):
        cut = server.faults.cut_reply("connect", after_bytes=count)
        with RawClient(server.address) as client:
            client.send_frame(connect_frame())
            assert len(client.receive_all()) == min(count, CONNECT_REPLY), count
        cut.wait()
        session = server.sessions()[-1]
        assert not session.connected
        with Talker(server.address) as client:
            assert client.session == session.id + 1


def test_cut_reply__in_a_batch(server: ZooKeeperServer) -> None:
    """Earlier replies arrive complete, and later requests are not executed."""
    with Talker(server.address) as client, Talker(server.address) as other:
        server.faults.cut_reply("setData", after_bytes=5)
        client.start(Create("/a"), Ping(), SetData("/a"), Create("/b"))
        assert [client.answer().xid for _ in range(2)] == [1, -2]
        assert len(client.receive_all()) == 5
        assert other.ask(GetData("/a"))
        assert other.do(Exists("/b")).error == NO_NODE


def test_cut_reply__error(server: ZooKeeperServer) -> None:
    """A reply with an error can be cut too."""
    with Talker(server.address) as client:
        cut = server.faults.cut_reply("create", after_bytes=6)
        client.start(Create("/no/such"))
        cut.wait()
        assert len(client.receive_all()) == 6


def test_cut_reply__one_session(server: ZooKeeperServer) -> None:
    """Only the first reply to that session is cut."""
    with Talker(server.address) as victim, Talker(server.address) as other:
        server.faults.cut_reply("exists", session=victim.session)
        other.ask(Exists("/"))
        victim.start(Exists("/"))
        assert victim.is_closed()
        with Talker(server.address, of=victim) as again:
            again.ask(Exists("/"))


def test_cut_reply__several(server: ZooKeeperServer) -> None:
    """Each cut affects one reply, in the order of the cuts."""
    cuts = [server.faults.cut_reply("getData", after_bytes=count) for count in (3, 9)]
    for count in (3, 9):
        with Talker(server.address) as client:
            client.start(GetData("/"))
            assert len(client.receive_all()) == count
    for cut in cuts:
        cut.wait()
    with Talker(server.address) as client:
        client.ask(GetData("/"))


@pytest.mark.parametrize(
    ("opcode", "operation", "count"),
    [("multi", Multi((Create("/a"),)), 30), ("close", CloseSession(), 11), ("ping", Ping(), 12)],
)
def test_cut_reply__other_requests(
    server: ZooKeeperServer, opcode: str, operation: Multi | CloseSession | Ping, count: int
) -> None:
    """Replies to all kinds of requests can be cut."""
    with Talker(server.address) as client:
        cut = server.faults.cut_reply(opcode, after_bytes=count)
        client.start(operation)
        assert len(client.receive_all()) == count
        cut.wait()


def test_cut_reply__in_a_hole(server: ZooKeeperServer) -> None:
    """The rest of the reply arrives after the black hole, then the end."""
    with Talker(server.address) as client:
        with server.faults.black_hole("replies"):
            cut = server.faults.cut_reply("create", after_bytes=7)
            client.start(Create("/a"))
            cut.wait()
        assert len(client.receive_all()) == 7


def test_cut_reply__kazoo(server: ZooKeeperServer, kazoo: KazooClient) -> None:
    """A client does not learn whether its node was created; it was."""
    cut = server.faults.cut_reply("create", after_bytes=17)
    with pytest.raises(ConnectionLoss):
        kazoo.create("/a")
    cut.wait()
    assert kazoo.retry(kazoo.exists, "/a")


def test_cut__nothing_was_answered(server: ZooKeeperServer) -> None:
    """The timeout error names the kind of reply."""
    cut = server.faults.cut_reply("getData", after_bytes=3)
    with Talker(server.address) as client:
        client.ask(Exists("/"))
    with pytest.raises(TimeoutError, match=r"^no reply was cut: no getData was answered within 0\.01 s$"):
        cut.wait(0.01)
