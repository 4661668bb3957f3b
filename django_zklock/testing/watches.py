"""Who wants to hear of which node: one-shot watches, and persistent ones that may see all below a node.

The rules are ZooKeeper's. A watch on data hears of creation, deletion and change; one on children hears of
deletion and of children that come and go. A client that has both hears of a deletion once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from .acl import Entry
from .protocol import EventType, WatchKind
from .tree import Audience, Change, Created, DataSet, Deleted, parent

# Takes the news: the kind of event, the path, and the list that says who may hear of it.
Watcher = Callable[[EventType, str, tuple[Entry, ...]], None]


class Table:
    """The watches on one aspect."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_path: dict[str, dict[Watcher, WatchKind]] = {}
        self._by_watcher: dict[Watcher, dict[str, None]] = {}
        self._recursive = 0

    def add(self, path: str, watcher: Watcher, kind: WatchKind = WatchKind.STANDARD) -> None:
        """Set a watch; a new kind takes the place of the old one."""
        here = self._by_path.setdefault(path, {})
        self._count(here.get(watcher), -1)
        here[watcher] = kind
        self._count(kind, 1)
        self._by_watcher.setdefault(watcher, {})[path] = None

    def has(self, path: str) -> bool:
        """Tell whether there is such a watch, as ZooKeeper 3.8 does: anybody's on the very node will do."""
        return path in self._by_path

    def remove(self, path: str, watcher: Watcher) -> bool:
        """Take a watch away; whether there was one."""
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

    def forget(self, watcher: Watcher) -> None:
        """Take all watches of one client away."""
        for path in list(self._by_watcher.get(watcher, ())):
            self.remove(path, watcher)

    def trigger(
        self, event: EventType, path: str, acl: tuple[Entry, ...], told: AbstractSet[Watcher] = frozenset()
    ) -> AbstractSet[Watcher]:
        """Tell who watches ``path``, but for those in ``told`` who know; give all who know now."""
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
            if watcher not in told:
                watcher(event, path, acl)
        return told | watchers.keys()

    def owned(self, watcher: Watcher) -> list[tuple[str, WatchKind]]:
        """Give the watches of one client."""
        return [(path, self._by_path[path][watcher]) for path in self._by_watcher.get(watcher, ())]

    @property
    def watchers(self) -> int:
        """How many clients watch."""
        return len(self._by_watcher)

    @property
    def paths(self) -> int:
        """How many nodes are watched."""
        return len(self._by_path)

    @property
    def total(self) -> int:
        """How many watches there are."""
        return sum(map(len, self._by_path.values()))

    def _count(self, kind: WatchKind | None, step: int) -> None:
        if kind is WatchKind.RECURSIVE:
            self._recursive += step


class Watches:
    """The watches on both aspects, and what a change tells them."""

    def __init__(self) -> None:
        """Begin with none."""
        self.data = Table()
        self.children = Table()

    def tell(self, change: Change, audience: Audience) -> None:
        """Tell who watches of a change that has just been made."""
        path = change.path
        if isinstance(change, Created):
            self.data.trigger(EventType.CREATED, path, audience.node)
            self.children.trigger(EventType.CHILD, parent(path), audience.parent)
        elif isinstance(change, Deleted):
            told = self.data.trigger(EventType.DELETED, path, audience.node)
            self.children.trigger(EventType.DELETED, path, audience.node, told)
            self.children.trigger(EventType.CHILD, parent(path), audience.parent)
        elif isinstance(change, DataSet):
            self.data.trigger(EventType.CHANGED, path, audience.node)

    def forget(self, watcher: Watcher) -> None:
        """Take all watches of one client away."""
        self.data.forget(watcher)
        self.children.forget(watcher)

    def move(self, watcher: Watcher, other: Watches) -> None:
        """Have ``other`` keep the watches of one client."""
        for mine, theirs in ((self.data, other.data), (self.children, other.children)):
            for path, kind in mine.owned(watcher):
                theirs.add(path, watcher, kind)
            mine.forget(watcher)


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = parent(path)
        yield path
