"""Watches: set with a read, kept over reconnects, and removed here and at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.protocol.serialization import GetChildren, GetData, int_struct, long_struct, write_string
from kazoo.protocol.states import EventType, WatchedEvent

Watcher = Callable[[bool], None]
"""Called once, on the connection's thread: with true if the watched node was deleted, else if what was read changed."""

WatchKey = tuple[int, str]
"""The type of the request that sets a watch, and the path."""

# The numbers of ZooKeeper's WatcherType, by the type of the request that sets the watch.
WATCHER_TYPES = {GetChildren.type: 1, GetData.type: 2}


class _Request:
    """A request whose answer has no content."""

    @classmethod
    def deserialize(cls, _data: bytes, _offset: int) -> bool:
        """Return true: the answer was no error."""
        return True


@dataclass(frozen=True)
class RemoveWatches(_Request):
    """The request to remove the watches of this session on a node (opcode 18, ZOOKEEPER-442); kazoo has none."""

    type: ClassVar[int] = 18

    path: str
    watcher_type: int

    def serialize(self) -> bytes:
        """Encode the record."""
        return bytes(write_string(self.path) + int_struct.pack(self.watcher_type))


# ZooKeeper's own client puts as many bytes of paths into one request; a server takes no request above jute.maxbuffer.
MAX_PATHS = 128 * 1024


@dataclass(frozen=True)
class SetWatches(_Request):
    """The request to set the watches of the last connection again (opcode 101); kazoo has none.

    For each watched node that changed after the transaction ``seen`` the server sends the event at once, before the
    answer.
    """

    type: ClassVar[int] = 101

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


class Watch:
    """One watch. kazoo keeps it by its path and calls it with the event."""

    __slots__ = ("_callback", "_registry", "key")

    def __init__(self, registry: WatchRegistry, key: WatchKey, callback: Watcher) -> None:
        self.key = key
        self._registry = registry
        self._callback = callback

    def __call__(self, event: WatchedEvent) -> None:
        # EventType.NONE is kazoo's own, for the end of the connection: the listener was notified of that before.
        if self._registry.discard(self) and event.type != EventType.NONE:
            self._callback(event.type == EventType.DELETED)


class WatchRegistry:
    """The watches of a client, from the request on. Used under the listener's monitor.

    ZooKeeper keeps one watch for each session, node and kind of read, for any number of ours. It is removed there when
    the last of ours is discarded.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._watches: set[Watch] = set()
        # The number of watches with each key.
        self._counts: dict[WatchKey, int] = {}
        # Discarded before kazoo has stored them.
        self._unwanted: list[Watch] = []
        # The watches of the last connection that are not yet set on this one, and the newest transaction whose events
        # that connection has delivered.
        self._lost: set[Watch] = set()
        self._seen = 0

    def add(self, key: WatchKey, callback: Watcher) -> Watch:
        """Return a new watch, whose request is about to be sent."""
        watch = Watch(self, key, callback)
        self._watches.add(watch)
        self._counts[key] = self._counts.get(key, 0) + 1
        return watch

    def discard(self, watch: Watch) -> bool:
        """Remove a watch from the registry; return whether it was there."""
        if watch not in self._watches:
            return False
        self._watches.discard(watch)
        left = self._counts.pop(watch.key) - 1
        if left:
            self._counts[watch.key] = left
        return True

    def __contains__(self, watch: object) -> bool:
        return watch in self._watches

    def is_watched(self, key: WatchKey) -> bool:
        """Return whether there is any watch with that key."""
        return key in self._counts

    def remove(self, watch: Watch) -> bool:
        """Discard a watch, here and in kazoo; return whether it was there."""
        if not self.discard(watch):
            return False
        self._drop(watch)
        self._lost.discard(watch)
        return True

    def clear(self) -> None:
        """Remove all watches, because the session is gone."""
        self._watches.clear()
        self._counts.clear()
        self._lost.clear()

    # kazoo stores a watch after the reply to its request, and calls all it has at the end of a connection.

    def answered(self, watch: Watch) -> None:
        """Note that the reply was called. kazoo stores the watch after it, even if it was discarded."""
        if watch not in self._watches:
            self._unwanted.append(watch)

    def drop_unwanted(self) -> None:
        """Remove from kazoo the watches that were discarded before it has stored them."""
        while self._unwanted:
            self._drop(self._unwanted.pop())

    def suspend(self) -> None:
        """Keep the watches that the server has set, for the next connection; discard the others."""
        tables = (self._client._data_watchers, self._client._child_watchers)
        stored = {watch for table in tables for watches in table.values() for watch in watches}
        for table in tables:
            # kazoo would call them all, for the end of the connection.
            table.clear()
        for watch in self._watches.difference(stored):
            self.discard(watch)
        if not self._lost:
            self._seen = self._client.last_zxid
        self._lost = set(self._watches)

    @property
    def restoring(self) -> bool:
        """Whether watches of the last connection are not yet set on this one."""
        return bool(self._lost)

    def store_lost(self) -> None:
        """Make kazoo call the watches of the last connection for events on this one."""
        for watch in self._lost:
            kazoo_watchers(self._client, watch).setdefault(watch.key[1], set()).add(watch)

    def set_requests(self) -> list[SetWatches]:
        """Return the requests that set the watches of the last connection again."""
        requests = []
        keys = sorted({watch.key for watch in self._lost & self._watches})
        while keys:
            size = count = 0
            while count < len(keys) and size < MAX_PATHS:
                size += len(keys[count][1].encode())
                count += 1
            batch, keys = keys[:count], keys[count:]
            data = tuple(path for kind, path in batch if kind == GetData.type)
            children = tuple(path for kind, path in batch if kind == GetChildren.type)
            requests.append(SetWatches(self._seen, data, children))
        return requests

    def restored(self) -> None:
        """Note that the server has set the watches of the last connection again."""
        self._lost.clear()

    def _drop(self, watch: Watch) -> None:
        stored, path = kazoo_watchers(self._client, watch), watch.key[1]
        same_path = stored.get(path)
        if same_path is not None:
            same_path.discard(watch)
            if not same_path:
                del stored[path]


def remove_request(watch: Watch) -> RemoveWatches:
    """Return the request to remove a watch at the server."""
    request_type, path = watch.key
    return RemoveWatches(path, WATCHER_TYPES[request_type])


def kazoo_watchers(client: KazooClient, watch: Watch) -> dict[str, set[Any]]:
    """Return the dictionary in which kazoo stores such watches by their path."""
    stored: dict[str, set[Any]] = client._child_watchers if watch.key[0] == GetChildren.type else client._data_watchers
    return stored
