"""A server's view of the tree: the newest, or one that lags behind as a follower's does."""

from __future__ import annotations

from collections import deque

from .tree import Transaction, Tree
from .watches import Watches


class Replica:
    """A tree, the watches on it, and the zxid up to which it has come."""

    def __init__(self, tree: Tree, zxid: int = 0) -> None:
        """Begin with a tree."""
        self.tree = tree
        self.watches = Watches()
        self.zxid = zxid

    def apply(self, transaction: Transaction) -> None:
        """Make the changes of a transaction, and tell who watches."""
        self.zxid = transaction.zxid
        for change in transaction.changes:
            audience = self.tree.audience(change)
            self.tree.apply(change, transaction.zxid, transaction.now)
            self.watches.tell(change, audience)

    def catch_up(self, zxid: int | None = None) -> None:
        """Come up to a zxid, or to the newest; this one is there already."""


class LaggingReplica(Replica):
    """A follower that is always some transactions late, until it is told to catch up."""

    def __init__(self, tree: Tree, zxid: int, *, behind: int, pending: deque[Transaction] | None = None) -> None:
        """Begin with a tree of its own; ``behind`` is how many transactions it stays late."""
        super().__init__(tree, zxid)
        self._behind = behind
        self._pending = pending or deque()

    def receive(self, transaction: Transaction) -> None:
        """Hear of a new transaction, and apply those that are old enough."""
        self._pending.append(transaction)
        while len(self._pending) > self._behind:
            self.apply(self._pending.popleft())

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply all transactions up to a zxid, or all there are."""
        while self._pending and (zxid is None or self._pending[0].zxid <= zxid):
            self.apply(self._pending.popleft())

    def twin(self) -> LaggingReplica:
        """Make another follower that is as late as this one, without the watches."""
        return LaggingReplica(self.tree.copy(), self.zxid, behind=self._behind, pending=self._pending.copy())
