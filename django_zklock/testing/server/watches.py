"""The watches of the clients: one-time watches, and persistent ones on a node or on its whole subtree.

The rules are ZooKeeper's. A watch on data gets creation, deletion and change; a watch on children gets deletion, and
creation and deletion of children. A client that has both gets one event for a deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from .acl import AclEntry
from .protocol import EventType, WatchKind
from .tree import AclPair, Change, Created, DataSet, Deleted, parent

# Takes the type of the event, the path, and the access control list that restricts the event.
Watcher = Callable[[EventType, str, tuple[AclEntry, ...]], None]


class WatchTable:
    """The watches on data, or those on children."""

    def __init__(self) -> None:
        """Start without watches."""
        self._by_path: dict[str, dict[Watcher, WatchKind]] = {}
        self._by_watcher: dict[Watcher, dict[str, None]] = {}
        self._recursive = 0

    def add(self, path: str, watcher: Watcher, kind: WatchKind = WatchKind.STANDARD) -> None:
        """Set a watch; a new kind replaces the old one."""
        here = self._by_path.setdefault(path, {})
        self._count(here.get(watcher), -1)
        here[watcher] = kind
        self._count(kind, 1)
        self._by_watcher.setdefault(watcher, {})[path] = None

    def has(self, path: str) -> bool:
        """Return whether any client watches exactly this node, like ZooKeeper 3.8."""
        return path in self._by_path

    def remove(self, path: str, watcher: Watcher) -> bool:
        """Remove a watch; return whether there was one."""
        here = self._by_path.get(path, {})
        if watcher not in here:
            return False
        self._count(here.pop(watcher), -1)
        if not here:
            del self._by_path[path]
        mine = self._by_watcher[watcher]
        del mine[path]
        if not mine:
            del self._by_watcher[watcher]
        return True

    def remove_all(self, watcher: Watcher) -> None:
        """Remove all watches of one client."""
        for path in list(self._by_watcher.get(watcher, ())):
            self.remove(path, watcher)

    def trigger(
        self, event: EventType, path: str, acl: tuple[AclEntry, ...], notified: AbstractSet[Watcher] = frozenset()
    ) -> AbstractSet[Watcher]:
        """Notify the watchers of ``path`` that are not in ``notified``; return all that are notified now."""
        watchers: dict[Watcher, None] = {}
        for watcher, kind in list(self._by_path.get(path, {}).items()):
            if kind is WatchKind.RECURSIVE and event is EventType.CHILD:
                continue
            watchers[watcher] = None
            if kind is WatchKind.STANDARD:
                self.remove(path, watcher)
        if self._recursive and event is not EventType.CHILD:
            for above in _above(path):
                for watcher, kind in self._by_path.get(above, {}).items():
                    if kind is WatchKind.RECURSIVE:
                        watchers[watcher] = None
        for watcher in watchers:
            if watcher not in notified:
                watcher(event, path, acl)
        return notified | watchers.keys()

    def owned(self, watcher: Watcher) -> list[tuple[str, WatchKind]]:
        """Return the watches of one client."""
        return [(path, self._by_path[path][watcher]) for path in self._by_watcher.get(watcher, ())]

    @property
    def watchers(self) -> int:
        """The number of clients with a watch."""
        return len(self._by_watcher)

    @property
    def paths(self) -> int:
        """The number of watched nodes."""
        return len(self._by_path)

    @property
    def total(self) -> int:
        """The number of watches."""
        return sum(map(len, self._by_path.values()))

    def _count(self, kind: WatchKind | None, step: int) -> None:
        if kind is WatchKind.RECURSIVE:
            self._recursive += step


class Watches:
    """The watches on data and on children, and the events of a change."""

    def __init__(self) -> None:
        """Start without watches."""
        self.data = WatchTable()
        self.children = WatchTable()

    def notify(self, change: Change, acls: AclPair) -> None:
        """Send the events of a change that was just applied."""
        path = change.path
        if isinstance(change, Created):
            self.data.trigger(EventType.CREATED, path, acls.node)
            self.children.trigger(EventType.CHILD, parent(path), acls.parent)
        elif isinstance(change, Deleted):
            notified = self.data.trigger(EventType.DELETED, path, acls.node)
            self.children.trigger(EventType.DELETED, path, acls.node, notified)
            self.children.trigger(EventType.CHILD, parent(path), acls.parent)
        elif isinstance(change, DataSet):
            self.data.trigger(EventType.CHANGED, path, acls.node)

    def remove_all(self, watcher: Watcher) -> None:
        """Remove all watches of one client."""
        self.data.remove_all(watcher)
        self.children.remove_all(watcher)

    def move(self, watcher: Watcher, other: Watches) -> None:
        """Move the watches of one client to ``other``."""
        for mine, theirs in ((self.data, other.data), (self.children, other.children)):
            for path, kind in mine.owned(watcher):
                theirs.add(path, watcher, kind)
            mine.remove_all(watcher)


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = parent(path)
        yield path
