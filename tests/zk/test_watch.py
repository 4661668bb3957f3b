"""Who watches what: the book that a wire keeps of its watches."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from django_zklock.zk.wire.watch import Watch, WatchBook, removal, table

DATA, CHILDREN = (GetData.type, "/k"), (GetChildren.type, "/k")


@pytest.fixture
def book() -> WatchBook:
    return WatchBook()


@pytest.fixture
def told() -> list[bool]:
    return []


def event(kind: str) -> WatchedEvent:
    return WatchedEvent(type=kind, state=KeeperState.CONNECTED, path="/k")


@pytest.mark.parametrize(
    ("kind", "deleted"), [(EventType.DELETED, True), (EventType.CHANGED, False), (EventType.CHILD, False)]
)
def test_call__says_whether_it_was_deleted(book: WatchBook, told: list[bool], kind: str, deleted: bool) -> None:
    """A watch is called once, with what has happened to the node, and is out of the book then."""
    watch = book.open(DATA, told.append)
    watch(event(kind))
    watch(event(kind))
    assert told == [deleted]
    assert not book.wants(watch)
    assert not book.is_watched(DATA)


def test_call__out_of_the_book_first(book: WatchBook) -> None:
    """Who is called finds the watch gone, so that it can open the next one."""
    seen: list[bool] = []
    book.open(DATA, lambda _deleted: seen.append(book.is_watched(DATA)))(event(EventType.CHANGED))
    assert seen == [False]


def test_call__of_kazoo_alone(book: WatchBook, told: list[bool]) -> None:
    """What kazoo tells of the connection is no news of the node, and ends the watch."""
    watch = book.open(DATA, told.append)
    watch(event(EventType.NONE))
    assert told == []
    assert not book.is_watched(DATA)


def test_call__crossed_out(book: WatchBook, told: list[bool]) -> None:
    """A watch that was given up, or forgotten with the connection, is not called, whatever kazoo still has."""
    given_up, forgotten = book.open(DATA, told.append), book.open(CHILDREN, told.append)
    assert book.strike(given_up)
    book.clear()
    given_up(event(EventType.DELETED))
    forgotten(event(EventType.DELETED))
    assert told == []


def test_strike__once(book: WatchBook, told: list[bool]) -> None:
    """Giving up a second time is none, nor is giving up what was called or forgotten."""
    first, second, third = (book.open(DATA, told.append) for _ in range(3))
    assert book.strike(first)
    assert not book.strike(first)
    second(event(EventType.CHANGED))
    assert not book.strike(second)
    book.clear()
    assert not book.strike(third)


def test_place__shared(book: WatchBook, told: list[bool]) -> None:
    """A place is watched until the last of its watches is given up; another one is not touched."""
    first, second = book.open(DATA, told.append), book.open(DATA, told.append)
    other, elsewhere = book.open(CHILDREN, told.append), book.open((GetData.type, "/j"), told.append)
    assert book.strike(first)
    assert (book.wants(first), book.wants(second)) == (False, True)
    assert book.is_watched(DATA)
    assert book.strike(second)
    assert not book.is_watched(DATA)
    assert book.wants(other)
    assert book.wants(elsewhere)


def test_clear__then_anew(book: WatchBook, told: list[bool]) -> None:
    """After the connection the book begins anew, and what is old does not touch what is new."""
    old = book.open(DATA, told.append)
    book.clear()
    new = book.open(DATA, told.append)
    assert not book.strike(old)
    old(event(EventType.DELETED))
    assert book.wants(new)
    new(event(EventType.DELETED))
    assert told == [True]


@pytest.mark.parametrize(("place", "number"), [(CHILDREN, 1), (DATA, 2)])
def test_removal__record(book: WatchBook, told: list[bool], place: tuple[int, str], number: int) -> None:
    """The request names the path and ZooKeeper's number for what is watched of it."""
    request = removal(book.open(place, told.append))
    assert (request.type, request.serialize()) == (18, struct.pack("!i2si", 2, b"/k", number))


def test_table__of_kazoo(book: WatchBook, told: list[bool]) -> None:
    """Each kind of watch is taken out of that table of kazoo's in which kazoo keeps it."""
    client = SimpleNamespace(_child_watchers={}, _data_watchers={})
    watches: list[Watch] = [book.open(place, told.append) for place in (CHILDREN, DATA)]
    assert table(client, watches[0]) is client._child_watchers
    assert table(client, watches[1]) is client._data_watchers
