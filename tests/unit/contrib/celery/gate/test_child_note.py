"""What is written into the nodes of a task that runs for long."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import OperationTimeoutError

from django_zklock.contrib.celery.gate.child_note import ChildNote
from django_zklock.zk import node_data
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.scripts import Script
from django_zklock.zk.wire import BadVersionError, NoAuthError, NoNodeError

pytestmark = pytest.mark.celery

WORK = Work(kind="task", name="bill", id="77", worker="w@web1", child=0)
DATA = Identity(host="web1", pid=71, work=WORK).encode()


class Wire:
    """The nodes of a server, by path: their data and version, of the session 1."""

    def __init__(
        self, nodes: dict[str, tuple[bytes, int]], *, owner: int = 1, error: Exception | None = None, lost: str = ""
    ) -> None:
        self.nodes = nodes
        self.requests: list[str] = []
        self._owner = owner
        self._error = error
        # The first such request is never answered.
        self._lost = lost

    def _is_lost(self, request: str) -> bool:
        self.requests.append(request)
        if request != self._lost:
            return False
        self._lost = ""
        return True

    def get(self, path: str, reply: Callable[[Any, Any], None]) -> None:
        if self._is_lost(f"get {path}"):
            return
        if path not in self.nodes:
            reply(None, NoNodeError())
            return
        data, version = self.nodes[path]
        reply((data, SimpleNamespace(version=version, ephemeralOwner=self._owner)), None)

    def set(self, path: str, data: bytes, reply: Callable[[Any, Any], None], *, version: int) -> None:
        if self._is_lost(f"set {path}"):
            return
        error, self._error = self._error, None
        if error is None:
            assert version == self.nodes[path][1]
            self.nodes[path] = data, version + 1
        elif isinstance(error, BadVersionError):
            # A request to release was written in between.
            self.nodes[path] = node_data.encode_revoke(self.nodes[path][0], "deploy"), version + 1
        reply(None, error)


class Session:
    """A session that runs calls at once, or not before it has a connection."""

    id = 1

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.connected = True
        self.epoch = 0
        self.listeners: dict[Any, None] = {}
        self.later: list[Callable[[], object]] = []

    def add_listener(self, listener: Any) -> None:
        self.listeners[listener] = None

    def retry_later(self, call: Callable[[], object], _error: Exception) -> None:
        self.later.append(call)

    def reconnect(self) -> None:
        self.epoch += 1
        self.connected = True
        for listener in list(self.listeners):
            listener.suspended()
        for listener in list(self.listeners):
            listener.resumed()


class Contender(Script):
    """The contender of a hold, of which a note needs that it asks until there is an answer."""

    def __init__(self, session: Any, paths: tuple[str, ...]) -> None:
        super().__init__(session)
        self.node_paths = {path: path for path in paths}
        session.add_listener(self)

    def post(self, call: Callable[[], object]) -> None:
        call()

    def session_ended(self, _reason: str, /) -> None:
        self.stop()


def write(
    wire: Wire, *paths: str, session: Session | None = None, child: int = 93, forgotten: bool = False
) -> ChildNote:
    contender: Any = Contender(session or Session(wire), paths)
    return ChildNote(contender, {"child": child, "granted": 1234.5, "forgotten": forgotten})


def child_in(data: bytes) -> int | None:
    identity = node_data.decode_identity(data)
    assert identity is not None
    assert identity.work is not None
    return identity.work.child


def test_write__each_node() -> None:
    """Each node of several keys is read and written once."""
    wire = Wire({"/a": (DATA, 0), "/b": (DATA, 3)})
    write(wire, "/a", "/b")
    assert wire.requests == ["get /a", "set /a", "get /b", "set /b"]
    assert [child_in(data) for data, _version in wire.nodes.values()] == [93, 93]
    assert [node_data.decode_owner(data)[1] for data, _version in wire.nodes.values()] == [1234.5, 1234.5]


def test_write__beside_a_request_to_release() -> None:
    """A request to release that is written at the same time is kept."""
    wire = Wire({"/a": (DATA, 0)}, error=BadVersionError())
    write(wire, "/a")
    data, _version = wire.nodes["/a"]
    assert (child_in(data), node_data.decode_revoke(data)) == (93, "deploy")


@pytest.mark.parametrize(
    ("wire", "requests"),
    [
        (Wire({}), ["get /a"]),
        (Wire({"/a": (b"of another client", 0)}), ["get /a"]),
        (Wire({"/a": (DATA, 0)}, owner=2), ["get /a"]),
        (Wire({"/a": (DATA, 0)}, error=NoAuthError()), ["get /a", "set /a"]),
    ],
)
def test_write__not_possible(wire: Wire, requests: list[str]) -> None:
    """A node that is gone, or not ours, or that may not be written, is left alone."""
    before = dict(wire.nodes)
    write(wire, "/a")
    assert (wire.requests, wire.nodes) == (requests, before)


def test_write__without_a_connection() -> None:
    """Without a connection nothing is written; it is when there is one, and once."""
    wire = Wire({"/a": (DATA, 0)})
    session = Session(wire)
    session.connected = False
    write(wire, "/a", session=session)
    assert wire.requests == []
    for _ in range(2):
        session.reconnect()
        assert wire.requests == ["get /a", "set /a"]
    assert child_in(wire.nodes["/a"][0]) == 93


@pytest.mark.parametrize("lost", ["get", "set"])
def test_write__connection_lost(lost: str) -> None:
    """A request whose answer was lost with the connection is sent again, and then the other nodes are written."""
    wire = Wire({"/a": (DATA, 0), "/b": (DATA, 0)}, lost=f"{lost} /a")
    session = Session(wire)
    write(wire, "/a", "/b", session=session)
    wire.requests.clear()
    session.reconnect()
    assert wire.requests == [f"{lost} /a", *(["set /a"] if lost == "get" else []), "get /b", "set /b"]
    assert [child_in(data) for data, _version in wire.nodes.values()] == [93, 93]


def test_write__refused_for_now() -> None:
    """An error that passes does not end the attempts."""
    wire = Wire({"/a": (DATA, 0)}, error=OperationTimeoutError())
    session = Session(wire)
    write(wire, "/a", session=session)
    assert child_in(wire.nodes["/a"][0]) == 0
    session.later[0]()
    assert child_in(wire.nodes["/a"][0]) == 93


def test_write__session_ended() -> None:
    """With its session a node is gone, and nothing is written any more."""
    wire = Wire({"/a": (DATA, 0)}, lost="get /a")
    session = Session(wire)
    write(wire, "/a", session=session)
    for contender in session.listeners:
        contender.session_ended("the session expired")
    session.reconnect()
    assert wire.requests == ["get /a"]


def test_write__answer_about_what_was_before() -> None:
    """What an earlier note has read does not undo a later one, whose answer came first."""
    wire = Wire({"/a": (DATA, 0)})
    session = Session(wire)
    late: list[Callable[[], None]] = []
    get = wire.get

    def read_late(path: str, reply: Callable[[Any, Any], None]) -> None:
        late.append(lambda: get(path, reply))

    wire.get = read_late  # type: ignore[method-assign]
    earlier = write(wire, "/a", session=session, child=0)
    wire.get = get  # type: ignore[method-assign]
    earlier.is_cancelled = True
    write(wire, "/a", session=session, child=93)
    late[0]()
    assert child_in(wire.nodes["/a"][0]) == 93
