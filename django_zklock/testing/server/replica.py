"""A server's view of the tree: the newest, or one that lags behind like a follower's."""

from __future__ import annotations

from collections import deque

from .tree import Transaction, Tree
from .watches import Watches


class Replica:
    """A tree, its watches, and the zxid of its last transaction."""

    def __init__(self, tree: Tree, zxid: int = 0) -> None:
        """Start with a tree."""
        self.tree = tree
        self.watches = Watches()
        self.zxid = zxid

    def apply(self, transaction: Transaction) -> None:
        """Apply the changes of a transaction and send the events of their watches."""
        self.zxid = transaction.zxid
        for change in transaction.changes:
            acls = self.tree.acls(change)
            self.tree.apply(change, transaction.zxid, transaction.now)
            self.watches.notify(change, acls)

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply all transactions up to a zxid, or all there are; here they are always applied."""


class LaggingReplica(Replica):
    """A follower that stays some transactions behind, except after ``catch_up``."""

    def __init__(self, tree: Tree, zxid: int, *, behind: int, pending: deque[Transaction] | None = None) -> None:
        """Start with its own tree; ``behind`` is the number of transactions that it lags."""
        super().__init__(tree, zxid)
        self._behind = behind
        self._pending = pending or deque()

    def receive(self, transaction: Transaction) -> None:
        """Queue a new transaction, and apply those that are old enough."""
        self._pending.append(transaction)
        while len(self._pending) > self._behind:
            self.apply(self._pending.popleft())

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply all transactions up to a zxid, or all there are."""
        while self._pending and (zxid is None or self._pending[0].zxid <= zxid):
            self.apply(self._pending.popleft())

    def copy(self) -> LaggingReplica:
        """Return another follower with the same state, without the watches."""
        return LaggingReplica(self.tree.copy(), self.zxid, behind=self._behind, pending=self._pending.copy())
