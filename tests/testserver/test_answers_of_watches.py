"""The events of watches and their order, on the real server and on the test server."""

from __future__ import annotations

import pytest

from tests.testserver.sequential_client import Visitor
from tests.testserver.server_area import Scene
from tests.toolbox.protocol.jute import Path
from tests.toolbox.protocol.operations import (
    OPEN,
    SEQUENCE,
    AddWatch,
    Auth,
    CheckWatches,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    Multi,
    Operation,
    Paths,
    RemoveWatches,
    SetAcl,
    SetData,
    SetWatches,
)
from tests.toolbox.protocol.raw_client import Event

CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
CONNECTED = 3
MARSHALLING, NO_WATCHER = -5, -121
ANN_ONLY = ((31, "auth", ""),)


def do(visitor: Visitor, *operations: Operation) -> None:
    for operation in operations:
        assert visitor.error(operation) == 0, operation


def test_event__frame(either: Scene) -> None:
    """An event is a frame without number and zxid, and comes before the reply to the request that caused it."""
    visitor = either.visitor()
    do(visitor, GetData("~", watch=True))
    visitor.client.send(SetData.opcode, SetData("~").encode(either.home))
    assert visitor.client.receive() == Event(CHANGED, CONNECTED, either.home.folder, (-1, -1, 0))


@pytest.mark.parametrize(
    ("watch", "heard"),
    [
        (Exists("~/a", watch=True), [(CREATED, "~/a")]),
        (GetData("~/a", watch=True), []),
        (GetChildren("~/a", watch=True), []),
        (GetChildren2("~/a", watch=True), []),
        (AddWatch("~/a"), [(CREATED, "~/a"), (CHILD, "~/a"), (CHANGED, "~/a")]),
    ],
    ids=str,
)
def test_watch__on_a_missing_node(either: Scene, watch: Operation, heard: list[tuple[int, str]]) -> None:
    """Only two requests set a watch on a node that does not exist."""
    visitor = either.visitor()
    visitor.ask(watch)
    do(visitor, Create("~/a"), Create("~/a/b"), SetData("~/a"))
    assert visitor.events() == heard


@pytest.mark.parametrize(
    ("watch", "heard"),
    [
        (Exists("~/a", watch=True), [(CHANGED, "~/a")]),
        (GetData("~/a", watch=True), [(CHANGED, "~/a")]),
        (GetChildren("~/a", watch=True), [(CHILD, "~/a")]),
        (
            AddWatch("~/a", 0),
            [(CHANGED, "~/a"), (CHILD, "~/a"), (CHILD, "~/a"), (DELETED, "~/a"), (CREATED, "~/a"), (CHANGED, "~/a")],
        ),
        (
            AddWatch("~/a", 1),
            [
                *((CHANGED, "~/a"), (CREATED, "~/a/b"), (CHANGED, "~/a/b"), (DELETED, "~/a/b")),
                *((DELETED, "~/a"), (CREATED, "~/a"), (CHANGED, "~/a")),
            ],
        ),
    ],
    ids=str,
)
def test_watch__hears(either: Scene, watch: Operation, heard: list[tuple[int, str]]) -> None:
    """Most watches end with their event; a persistent one gets events of children, or of the subtree without them."""
    observer, visitor = either.visitor(), either.visitor()
    do(visitor, Create("~/a"))
    do(observer, watch)
    do(visitor, SetAcl("~/a", OPEN), SetData("~/a"), Create("~/a/b"), SetData("~/a/b"), Delete("~/a/b"), Delete("~/a"))
    do(visitor, Create("~/a"), SetData("~/a"))
    assert observer.events() == heard


def test_watches__one_event_for_a_deletion(either: Scene) -> None:
    """With any number of watches on a node a connection gets one event for its deletion, then one for the children."""
    observer, visitor = either.visitor(), either.visitor()
    do(visitor, Create("~/a"))
    do(observer, Exists("~/a", watch=True), GetData("~/a", watch=True), GetChildren("~/a", watch=True))
    do(observer, GetChildren("~", watch=True), AddWatch("~", 1))
    do(visitor, Delete("~/a"))
    assert observer.events() == [(DELETED, "~/a")]


def test_watches__parent_hears_after_the_child(either: Scene) -> None:
    """The event of the node comes first, that of its parent's children second."""
    observer, visitor = either.visitor(), either.visitor()
    do(observer, GetChildren("~", watch=True))
    observer.ask(Exists("~/a", watch=True))
    do(visitor, Create("~/a"))
    assert observer.events() == [(CREATED, "~/a"), (CHILD, "~")]
    do(observer, GetChildren("~", watch=True), GetData("~/a", watch=True))
    do(visitor, Delete("~/a"))
    assert observer.events() == [(DELETED, "~/a"), (CHILD, "~")]


def test_watch__replaced_by_a_later_one(either: Scene) -> None:
    """A node has one watch of each kind for a connection: a read with a watch replaces a persistent one."""
    observer, visitor = either.visitor(), either.visitor()
    do(observer, AddWatch("~"), GetData("~", watch=True))
    do(visitor, SetData("~"), SetData("~"), Create("~/", SEQUENCE), Create("~/", SEQUENCE))
    assert observer.events() == [(CHANGED, "~"), (CHILD, "~"), (CHILD, "~")]


def test_multi__is_heard_part_by_part(either: Scene) -> None:
    """The events of parts come in their order; if one part fails there are none."""
    observer, visitor = either.visitor(), either.visitor()
    do(observer, AddWatch("~", 1))
    do(visitor, Multi((Create("~/a"), Create("~/a/b"), Delete("~/none"))))
    assert observer.events() == []
    do(visitor, Multi((Create("~/a"), Create("~/a/b"), SetData("~/a"), Delete("~/a/b"))))
    assert observer.events() == [(CREATED, "~/a"), (CREATED, "~/a/b"), (CHANGED, "~/a"), (DELETED, "~/a/b")]


@pytest.mark.parametrize(
    ("kind", "checked", "heard"),
    [
        (1, [0, 0, NO_WATCHER, NO_WATCHER], [(CHANGED, "~")]),
        (2, [0, 0, NO_WATCHER, NO_WATCHER], [(CHILD, "~")]),
        (3, [0, 0, NO_WATCHER, NO_WATCHER], []),
        (0, [MARSHALLING] * 4, [(CHANGED, "~"), (CHILD, "~")]),
        (4, [MARSHALLING] * 4, [(CHANGED, "~"), (CHILD, "~")]),
    ],
)
@pytest.mark.parametrize(
    "watches", [(GetData("~", watch=True), GetChildren("~", watch=True)), (AddWatch("~"),)], ids=["once", "lasting"]
)
def test_watches__removed(
    either: Scene, watches: tuple[Operation, ...], kind: int, checked: list[int], heard: list[tuple[int, str]]
) -> None:
    """Watches on children, on data or on both are found and removed without an event."""
    visitor = either.visitor()
    do(visitor, *watches)
    order = (CheckWatches("~", kind), RemoveWatches("~", kind), RemoveWatches("~", kind), CheckWatches("~", kind))
    assert [visitor.error(operation) for operation in order] == checked
    do(visitor, SetData("~"), Create("~/a"))
    assert visitor.events() == heard


def test_watches__of_others(either: Scene) -> None:
    """The check finds a watch of any client; the removal affects only the client's own watches."""
    observer, visitor = either.visitor(), either.visitor()
    do(observer, GetData("~", watch=True))
    assert visitor.error(CheckWatches("~", 2)) == 0
    assert visitor.error(RemoveWatches("~", 2)) == NO_WATCHER
    do(visitor, SetData("~"))
    assert observer.events() == [(CHANGED, "~")]


@pytest.mark.parametrize(
    ("path", "checked", "removed"),
    [
        ("~/a", NO_WATCHER, NO_WATCHER),
        ("", NO_WATCHER, NO_WATCHER),
        ("a", MARSHALLING, NO_WATCHER),
        (None, MARSHALLING, NO_WATCHER),
    ],
)
def test_watches__where_none_are(either: Scene, path: Path, checked: int, removed: int) -> None:
    """A wrong path finds and removes nothing; some paths are malformed."""
    visitor = either.visitor()
    assert visitor.error(CheckWatches(path)) == checked
    assert visitor.error(RemoveWatches(path)) == removed


@pytest.mark.parametrize("mode", [-1, 2])
def test_watch__wrong_mode(either: Scene, mode: int) -> None:
    """There are two modes."""
    assert either.visitor().error(AddWatch("~", mode)) == MARSHALLING


def test_watch__of_what_may_not_be_read(either: Scene) -> None:
    """A client that may not read a node gets no event of it, but loses its watch; it gets the event of the parent."""
    observer, owner = either.visitor(), either.visitor()
    do(owner, Auth(), Create("~/a", acl=ANN_ONLY))
    do(observer, Exists("~/a", watch=True), AddWatch("~"))
    do(owner, SetData("~/a"))
    do(observer, Auth())
    do(owner, SetData("~/a"), Create("~/b", acl=ANN_ONLY))
    assert observer.events() == [(CHILD, "~")]


def test_watch__ends_with_its_connection(either: Scene) -> None:
    """A session that reconnects has no watches, and its old connection gets no more events."""
    observer, visitor = either.visitor(), either.visitor()
    do(observer, GetData("~", watch=True))
    back = either.resume(observer)
    assert observer.client.is_closed()
    do(visitor, SetData("~"))
    assert back.events() == []


@pytest.mark.parametrize(
    ("data", "exist", "child", "at_once", "later"),
    [
        (("~/same",), (), (), [], [(CHANGED, "~/same")]),
        (("~/changed", "~/none"), (), (), [(CHANGED, "~/changed"), (DELETED, "~/none")], []),
        ((), ("~/same", "~/none"), (), [(CREATED, "~/same")], [(CREATED, "~/none")]),
        ((), (), ("~/same", "~/changed", "~/none"), [(CHILD, "~/changed"), (DELETED, "~/none")], [(CHILD, "~/same")]),
        (
            ("~/changed",),
            ("~/changed",),
            ("~/changed",),
            [(kind, "~/changed") for kind in (CHANGED, CREATED, CHILD)],
            [],
        ),
        (("~/changed", "~/changed"), (), (), [(CHANGED, "~/changed")] * 2, []),
    ],
)
def test_set_watches(
    either: Scene,
    data: Paths,
    exist: Paths,
    child: Paths,
    at_once: list[tuple[int, str]],
    later: list[tuple[int, str]],
) -> None:
    """Changes since the zxid are sent before the reply, in the order of the request; all other paths are watched."""
    visitor = either.visitor()
    do(visitor, Create("~/same"), Create("~/changed"))
    seen = visitor.zxid()
    do(visitor, SetData("~/changed"), Create("~/changed/child"))
    observer = either.resume(visitor)
    do(observer, SetWatches(seen, data, exist, child))
    assert observer.kept() == at_once
    do(observer, SetData("~/same"), Create("~/none"), Create("~/same/child"), SetData("~/changed"))
    assert observer.events() == later


def test_set_watches__lasting(either: Scene) -> None:
    """Persistent watches are set without events for the past."""
    visitor = either.visitor()
    do(visitor, Create("~/a"), Create("~/b"))
    do(visitor, SetWatches(0, persistent=("~/a",), recursive=("~/b",)))
    assert visitor.kept() == []
    for _ in range(2):
        do(visitor, SetData("~/a"), Create("~/b/c"), Delete("~/b/c"))
    assert visitor.events() == [(CHANGED, "~/a"), (CREATED, "~/b/c"), (DELETED, "~/b/c")] * 2
