"""Watches: set with a read, kept over reconnects, and removed here and at the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from kazoo.protocol.connection import CHANGED_EVENT, CHILD_EVENT, DELETED_EVENT
from kazoo.protocol.serialization import Delete, GetChildren, GetData, int_struct, long_struct, write_string

Watcher = Callable[[bool], None]
"""Called once, on the connection's thread: with true if the watched node was deleted, else if what was read changed."""

WatchKey = tuple[int, str]
"""The type of the request that sets a watch, and the path."""

# The numbers of ZooKeeper's WatcherType, by the type of the request that sets the watch.
WATCHER_TYPES = {GetChildren.type: 1, GetData.type: 2}
# Which watches of a node an event ends. The event of a creation is for the watches of `exists`, which we never set.
_ENDED_BY = {
    CHANGED_EVENT: (GetData.type,),
    CHILD_EVENT: (GetChildren.type,),
    DELETED_EVENT: (GetData.type, GetChildren.type),
}

# The bytes of paths in one request to set watches again. The next one leaves when it is answered, so that on a thin
# link the lease has not to wait for all. ZooKeeper's own client sends requests of 128 kB, all at once.
MAX_PATHS = 16 * 1024


@dataclass(frozen=True)
class RemoveWatches:
    """The request to remove the watches of this session on a node (opcode 18, ZOOKEEPER-442)."""

    type = 18
    # The answer has no content.
    deserialize = Delete.deserialize

    path: str
    watcher_type: int

    def serialize(self) -> bytes:
        """Encode the record."""
        return bytes(write_string(self.path) + int_struct.pack(self.watcher_type))


@dataclass(frozen=True)
class SetWatches:
    """The request to set the watches of the last connection again (opcode 101).

    For each watched node that changed after the transaction ``seen`` the server sends the event at once, before the
    answer.
    """

    type = 101
    deserialize = Delete.deserialize

    seen: int
    data: tuple[str, ...]
    children: tuple[str, ...]

    def serialize(self) -> bytes:
        """Encode the record; its second list is for the watches of ``exists``, which this package never sets."""
        packet = bytearray(long_struct.pack(self.seen))
        for paths in (self.data, (), self.children):
            packet += int_struct.pack(len(paths))
            for path in paths:
                packet += write_string(path)
        return bytes(packet)


@dataclass(slots=True, eq=False, repr=False)
class Watch:
    """One watch: the request that sets it, and what to call with its event."""

    key: WatchKey
    callback: Watcher
    # The server has set it.
    is_set: bool = False


class WatchRegistry:
    """The watches of a client, from the request on. Used under the listener's monitor.

    ZooKeeper keeps one watch for each session, node and kind of read, for any number of ours. It is removed there when
    the last of ours is discarded.
    """

    def __init__(self) -> None:
        # In the order of their requests.
        self._watches: dict[WatchKey, dict[Watch, None]] = {}
        # The keys of watches of the last connection that are not yet set on this one, and the newest transaction whose
        # events that connection has delivered.
        self.lost: dict[WatchKey, None] = {}
        self._seen = 0

    def add(self, key: WatchKey, callback: Watcher) -> Watch:
        """Return a new watch, whose request is about to be sent."""
        watch = Watch(key, callback)
        self._watches.setdefault(key, {})[watch] = None
        return watch

    def discard(self, watch: Watch) -> bool:
        """Remove a watch; return whether it was there."""
        same = self._watches.get(watch.key)
        if same is None or watch not in same:
            return False
        del same[watch]
        if not same:
            del self._watches[watch.key]
            self.lost.pop(watch.key, None)
        return True

    def __iter__(self) -> Iterator[Watch]:
        return chain.from_iterable(list(self._watches.values()))

    def is_watched(self, key: WatchKey) -> bool:
        """Return whether there is any watch with that key."""
        return key in self._watches

    def clear(self) -> None:
        """Remove all watches, because the session is gone."""
        self._watches.clear()
        self.lost.clear()

    def triggered(self, event: int, path: str) -> Iterator[Watch]:
        """Remove and yield, one by one, the watches that the server has had and that this event ends.

        A watch that is requested and not answered yet is not among them: the server sends the event of a change before
        the answer to a read that sees the change.
        """
        for kind in _ENDED_BY.get(event, ()):
            for watch in [each for each in self._watches.get((kind, path), ()) if each.is_set]:
                # The call of one may discard others.
                if self.discard(watch):
                    yield watch

    # A watch outlives its connection.

    def suspend(self, seen: int) -> None:
        """Keep the watches that the server has set, for the next connection; discard the others.

        ``seen`` is the newest transaction that the connection has reported.
        """
        for watch in list(self):
            if not watch.is_set:
                self.discard(watch)
        if not self.lost:
            self._seen = seen
        self.lost = dict.fromkeys(self._watches)

    def next_lost(self) -> list[WatchKey]:
        """Return as many keys of lost watches as one request may set again."""
        keys, size = [], 0
        for key in self.lost:
            keys.append(key)
            size += len(key[1].encode())
            if size >= MAX_PATHS:
                break
        return keys

    def set_request(self, keys: Sequence[WatchKey]) -> SetWatches:
        """Return the request that sets the watches with these keys again."""
        data = tuple(path for kind, path in keys if kind == GetData.type)
        children = tuple(path for kind, path in keys if kind == GetChildren.type)
        return SetWatches(self._seen, data, children)

    def restored(self, keys: Iterable[WatchKey]) -> None:
        """Note that the server has the watches with these keys again."""
        for key in keys:
            self.lost.pop(key, None)
