"""The registry of the watches of a connection."""

from __future__ import annotations

import struct

import pytest
from kazoo.protocol.connection import CHANGED_EVENT, CHILD_EVENT, CREATED_EVENT, DELETED_EVENT
from kazoo.protocol.serialization import GetChildren, GetData

from django_zklock.zk.wire.watches import WATCHER_TYPES, RemoveWatches, Watch, WatchKey, WatchRegistry

DATA, CHILDREN = (GetData.type, "/k"), (GetChildren.type, "/k")


@pytest.fixture
def registry() -> WatchRegistry:
    return WatchRegistry()


def ignore(_deleted: bool) -> None: ...


def add(registry: WatchRegistry, key: WatchKey) -> Watch:
    """Return a watch that the server has set."""
    watch = registry.add(key, ignore)
    watch.is_set = True
    return watch


@pytest.mark.parametrize(
    ("event", "ended"),
    [
        (CREATED_EVENT, []),
        (CHANGED_EVENT, [DATA]),
        (CHILD_EVENT, [CHILDREN]),
        (DELETED_EVENT, [DATA, CHILDREN]),
        (99, []),
    ],
)
def test_triggered(registry: WatchRegistry, event: int, ended: list[WatchKey]) -> None:
    """An event ends the watches of its kind on its node, once."""
    watches = [add(registry, key) for key in (DATA, CHILDREN, (GetData.type, "/j"))]
    assert [watch.key for watch in registry.triggered(event, "/k")] == ended
    assert list(registry.triggered(event, "/k")) == []
    assert list(registry) == [watch for watch in watches if watch.key not in ended]


def test_triggered__not_set(registry: WatchRegistry) -> None:
    """A watch whose read is not answered stays: the event is of a change before that read."""
    requested, set_before = registry.add(DATA, ignore), add(registry, DATA)
    assert list(registry.triggered(DELETED_EVENT, "/k")) == [set_before]
    assert requested in registry


def test_triggered__removed_first(registry: WatchRegistry) -> None:
    """A watch is removed before its call, which can add the next one or discard others."""
    first, second, third = (add(registry, DATA) for _ in range(3))
    called = []
    for watch in registry.triggered(CHANGED_EVENT, "/k"):
        called.append(watch)
        assert watch not in registry
        if watch is first:
            assert registry.discard(second)
            added = add(registry, DATA)
    assert called == [first, third]
    assert list(registry) == [added]


def test_discard__once(registry: WatchRegistry) -> None:
    """A watch cannot be discarded twice, nor after its event, nor after all were cleared."""
    first, second, third = (add(registry, key) for key in (DATA, CHILDREN, DATA))
    assert registry.discard(first)
    assert not registry.discard(first)
    assert list(registry.triggered(CHILD_EVENT, "/k")) == [second]
    assert not registry.discard(second)
    registry.clear()
    assert not registry.discard(third)


def test_key__shared(registry: WatchRegistry) -> None:
    """A key is watched until the last of its watches is discarded; other keys are not affected."""
    first, second = add(registry, DATA), add(registry, DATA)
    other, elsewhere = add(registry, CHILDREN), add(registry, (GetData.type, "/j"))
    assert registry.discard(first)
    assert (first in registry, second in registry) == (False, True)
    assert registry.is_watched(DATA)
    assert registry.discard(second)
    assert not registry.is_watched(DATA)
    assert other in registry
    assert elsewhere in registry


def test_suspend__keeps_what_is_set(registry: WatchRegistry) -> None:
    """The watches that the server has set are set again on the next connection; the others are discarded."""
    kept, requested = add(registry, DATA), registry.add(CHILDREN, ignore)
    registry.suspend(7)
    assert requested not in registry
    assert registry.lost
    request = registry.set_request(registry.next_lost())
    assert (request.seen, request.data, request.children) == (7, ("/k",), ())
    # A second connection ends before they are set again, so events after the first one may still be missing.
    add(registry, CHILDREN)
    registry.suspend(9)
    request = registry.set_request(registry.next_lost())
    assert (request.seen, request.data, request.children) == (7, ("/k",), ("/k",))
    registry.restored([DATA, CHILDREN])
    assert registry.next_lost() == []
    assert kept in registry
    registry.suspend(11)
    assert registry.set_request([]).seen == 11


def test_suspend__event_before_the_answer(registry: WatchRegistry) -> None:
    """Nothing is left to restore when the events of all lost watches are here, or the watches are not wanted."""
    first, second = add(registry, DATA), add(registry, CHILDREN)
    registry.suspend(7)
    assert list(registry.triggered(CHANGED_EVENT, "/k")) == [first]
    assert registry.lost
    assert registry.discard(second)
    assert not registry.lost


@pytest.mark.parametrize(("key", "number"), [(CHILDREN, 1), (DATA, 2)])
def test_remove_request__record(key: WatchKey, number: int) -> None:
    """The request has the path and ZooKeeper's number for the kind of watch."""
    kind, path = key
    request = RemoveWatches(path, WATCHER_TYPES[kind])
    assert (request.type, request.serialize()) == (18, struct.pack("!i2si", 2, b"/k", number))
