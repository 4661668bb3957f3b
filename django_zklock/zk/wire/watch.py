"""Watches: kazoo calls them, we give them up again, here and at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.protocol.serialization import GetChildren, GetData, int_struct, write_string
from kazoo.protocol.states import EventType, WatchedEvent

Watcher = Callable[[bool], None]
"""Called once: with true if the watched node was deleted, else if what was read of it has changed.

On the connection's thread.
"""

# The numbers of ZooKeeper's WatcherType, by the request that leaves the watch.
WATCHER_TYPES = {GetChildren.type: 1, GetData.type: 2}


@dataclass(frozen=True)
class RemoveWatches:
    """The request to forget the watches of this session on a node (opcode 18, ZOOKEEPER-442); kazoo has none."""

    type: ClassVar[int] = 18

    path: str
    watcher_type: int

    def serialize(self) -> bytes:
        """Write the record."""
        return bytes(write_string(self.path) + int_struct.pack(self.watcher_type))

    @classmethod
    def deserialize(cls, _data: bytes, _offset: int) -> bool:
        """Read nothing: that there is no error says it all."""
        return True


class Watch:
    """One watch, as kazoo keeps it by its path until the event that it calls it with."""

    __slots__ = ("_book", "_call", "place")

    def __init__(self, book: WatchBook, place: tuple[int, str], call: Callable[[bool], None]) -> None:
        self.place = place
        self._book = book
        self._call = call

    def __call__(self, event: WatchedEvent) -> None:
        # EventType.NONE is kazoo's own, for "the connection is gone": the listener has heard that already.
        if self._book.strike(self) and event.type != EventType.NONE:
            self._call(event.type == EventType.DELETED)


class WatchBook:
    """Who watches what, from the moment the request is made; only the connection's thread touches it.

    ZooKeeper keeps one watch for a session, a node and what is watched of it, however many of ours stand behind it.
    It is taken off there when the last of them is given up.
    """

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        # How many there are of each place.
        self._counts: dict[tuple[int, str], int] = {}

    def open(self, place: tuple[int, str], call: Callable[[bool], None]) -> Watch:
        """Enter a watch that is about to be asked for; ``place`` is the type of the request and the path."""
        watch = Watch(self, place, call)
        self._watches.add(watch)
        self._counts[place] = self._counts.get(place, 0) + 1
        return watch

    def strike(self, watch: Watch) -> bool:
        """Cross a watch out; whether it was still wanted."""
        if watch not in self._watches:
            return False
        self._watches.discard(watch)
        left = self._counts.pop(watch.place) - 1
        if left:
            self._counts[watch.place] = left
        return True

    def is_watched(self, place: tuple[int, str]) -> bool:
        """Whether anybody still wants to hear of that."""
        return place in self._counts

    def wants(self, watch: Watch) -> bool:
        """Whether a watch was neither called nor crossed out."""
        return watch in self._watches

    def clear(self) -> None:
        """Forget everything, because the connection is gone and the server with it forgets too."""
        self._watches.clear()
        self._counts.clear()


def removal(watch: Watch) -> RemoveWatches:
    """Give the request that has the server forget a watch."""
    request_type, path = watch.place
    return RemoveWatches(path, WATCHER_TYPES[request_type])


def table(client: Any, watch: Watch) -> dict[str, set[Any]]:
    """Give the table in which kazoo keeps such watches by their path."""
    kept: dict[str, set[Any]] = client._child_watchers if watch.place[0] == GetChildren.type else client._data_watchers
    return kept
