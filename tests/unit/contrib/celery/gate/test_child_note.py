"""What is written into the nodes of a task that runs for long."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.exceptions import OperationTimeoutError

from django_zklock.contrib.celery.gate.child_note import DELAY, ChildNote
from django_zklock.zk import node_data
from django_zklock.zk.contender import Contender
from django_zklock.zk.node_data import Identity, Work
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


def write(
    wire: Wire,
    *paths: str,
    connected: bool = True,
    note: ChildNote | None = None,
    now: float = 0.0,
    child: int = 93,
    forgotten: bool = False,
) -> None:
    session = SimpleNamespace(wire=wire, connected=connected, id=1, post=lambda call: call())
    contender = SimpleNamespace(session=session, node_paths={path: path for path in paths})
    facts = {"child": child, "granted": 1234.5, "forgotten": forgotten}
    (note or ChildNote()).write(cast("Contender", contender), now=now, **facts)


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
    """Without a connection nothing is written, and nothing waits for one; a later call tries again, and once."""
    wire, note = Wire({"/a": (DATA, 0)}), ChildNote()
    write(wire, "/a", connected=False, note=note, now=10.0)
    write(wire, "/a", note=note, now=10.1)
    assert wire.requests == []
    for now in (10.0 + DELAY, 10.0 + 2 * DELAY):
        write(wire, "/a", note=note, now=now)
        assert wire.requests == ["get /a", "set /a"]
    assert child_in(wire.nodes["/a"][0]) == 93


@pytest.mark.parametrize("lost", ["get", "set"])
def test_write__connection_lost(lost: str) -> None:
    """A request whose answer was lost with the connection is sent again; the node that was written is left alone."""
    wire, note = Wire({"/a": (DATA, 0), "/b": (DATA, 0)}, lost=f"{lost} /a"), ChildNote()
    write(wire, "/a", "/b", note=note, now=0.0)
    wire.requests.clear()
    write(wire, "/a", "/b", note=note, now=DELAY)
    assert wire.requests == ["get /a", "set /a"]
    assert [child_in(data) for data, _version in wire.nodes.values()] == [93, 93]


def test_write__refused_for_now() -> None:
    """An error that passes does not end the attempts."""
    wire, note = Wire({"/a": (DATA, 0)}, error=OperationTimeoutError()), ChildNote()
    write(wire, "/a", note=note, now=0.0)
    assert child_in(wire.nodes["/a"][0]) == 0
    write(wire, "/a", note=note, now=DELAY)
    assert child_in(wire.nodes["/a"][0]) == 93


def test_write__what_has_changed_since() -> None:
    """A task that waited for a slot has got it, and then its worker has forgotten it: each is written at once."""
    wire, note = Wire({"/a": (DATA, 0)}), ChildNote()
    write(wire, "/a", note=note, child=0)
    write(wire, "/a", note=note, child=93, now=0.1)
    assert child_in(wire.nodes["/a"][0]) == 93
    write(wire, "/a", note=note, child=93, forgotten=True, now=0.2)
    identity = node_data.decode_identity(wire.nodes["/a"][0])
    assert identity is not None
    assert identity.work is not None
    assert (identity.work.child, identity.work.forgotten) == (93, True)


def test_write__answer_about_what_was_before() -> None:
    """What an earlier note has read does not undo a later one, whose answer came first."""
    wire, note = Wire({"/a": (DATA, 0)}), ChildNote()
    late: list[Callable[[], None]] = []
    get = wire.get

    def read_late(path: str, reply: Callable[[Any, Any], None]) -> None:
        late.append(lambda: get(path, reply))

    wire.get = read_late  # type: ignore[method-assign]
    write(wire, "/a", note=note, child=0)
    wire.get = get  # type: ignore[method-assign]
    write(wire, "/a", note=note, child=93, now=0.1)
    late[0]()
    assert child_in(wire.nodes["/a"][0]) == 93
