"""The registry of the watches of a connection."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from django_zklock.zk.wire.watches import Watch, WatchRegistry, kazoo_watchers, remove_request

DATA, CHILDREN = (GetData.type, "/k"), (GetChildren.type, "/k")


@pytest.fixture
def registry() -> WatchRegistry:
    return WatchRegistry(SimpleNamespace(_child_watchers={}, _data_watchers={}))


@pytest.fixture
def calls() -> list[bool]:
    return []


def event(kind: str) -> WatchedEvent:
    return WatchedEvent(type=kind, state=KeeperState.CONNECTED, path="/k")


@pytest.mark.parametrize(
    ("kind", "deleted"), [(EventType.DELETED, True), (EventType.CHANGED, False), (EventType.CHILD, False)]
)
def test_call__deleted(registry: WatchRegistry, calls: list[bool], kind: str, deleted: bool) -> None:
    """A watch is called once, with whether the node was deleted, and is not in the registry after that."""
    watch = registry.add(DATA, calls.append)
    watch(event(kind))
    watch(event(kind))
    assert calls == [deleted]
    assert watch not in registry
    assert not registry.is_watched(DATA)


def test_call__removed_first(registry: WatchRegistry) -> None:
    """The watch is removed before its callback runs, so that the callback can add the next one."""
    seen: list[bool] = []
    registry.add(DATA, lambda _deleted: seen.append(registry.is_watched(DATA)))(event(EventType.CHANGED))
    assert seen == [False]


def test_call__of_kazoo_alone(registry: WatchRegistry, calls: list[bool]) -> None:
    """An event of kazoo about the connection removes the watch without a call."""
    watch = registry.add(DATA, calls.append)
    watch(event(EventType.NONE))
    assert calls == []
    assert not registry.is_watched(DATA)


def test_call__discarded(registry: WatchRegistry, calls: list[bool]) -> None:
    """A watch that was discarded, alone or with all others, is not called, even if kazoo still has it."""
    given_up, forgotten = registry.add(DATA, calls.append), registry.add(CHILDREN, calls.append)
    assert registry.discard(given_up)
    registry.clear()
    given_up(event(EventType.DELETED))
    forgotten(event(EventType.DELETED))
    assert calls == []


def test_discard__once(registry: WatchRegistry, calls: list[bool]) -> None:
    """A watch cannot be discarded twice, nor after its call, nor after all were cleared."""
    first, second, third = (registry.add(DATA, calls.append) for _ in range(3))
    assert registry.discard(first)
    assert not registry.discard(first)
    second(event(EventType.CHANGED))
    assert not registry.discard(second)
    registry.clear()
    assert not registry.discard(third)


def test_key__shared(registry: WatchRegistry, calls: list[bool]) -> None:
    """A key is watched until the last of its watches is discarded; other keys are not affected."""
    first, second = registry.add(DATA, calls.append), registry.add(DATA, calls.append)
    other, elsewhere = registry.add(CHILDREN, calls.append), registry.add((GetData.type, "/j"), calls.append)
    assert registry.discard(first)
    assert (first in registry, second in registry) == (False, True)
    assert registry.is_watched(DATA)
    assert registry.discard(second)
    assert not registry.is_watched(DATA)
    assert other in registry
    assert elsewhere in registry


def test_clear__then_anew(registry: WatchRegistry, calls: list[bool]) -> None:
    """After a clear the registry is empty, and old watches do not affect new ones."""
    old = registry.add(DATA, calls.append)
    registry.clear()
    new = registry.add(DATA, calls.append)
    assert not registry.discard(old)
    old(event(EventType.DELETED))
    assert new in registry
    new(event(EventType.DELETED))
    assert calls == [True]


@pytest.mark.parametrize(("key", "number"), [(CHILDREN, 1), (DATA, 2)])
def test_remove_request__record(registry: WatchRegistry, calls: list[bool], key: tuple[int, str], number: int) -> None:
    """The request has the path and ZooKeeper's number for the kind of watch."""
    request = remove_request(registry.add(key, calls.append))
    assert (request.type, request.serialize()) == (18, struct.pack("!i2si", 2, b"/k", number))


def test_kazoo_watchers(registry: WatchRegistry, calls: list[bool]) -> None:
    """Each kind of watch belongs to the dictionary in which kazoo stores it."""
    client = SimpleNamespace(_child_watchers={}, _data_watchers={})
    watches: list[Watch] = [registry.add(key, calls.append) for key in (CHILDREN, DATA)]
    assert kazoo_watchers(client, watches[0]) is client._child_watchers
    assert kazoo_watchers(client, watches[1]) is client._data_watchers
