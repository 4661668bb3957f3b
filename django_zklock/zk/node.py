"""The own node of a contender: its watch, its verification, a request to release it, its loss and its deletion."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import formatting, node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.creation import LockPath
from django_zklock.zk.rules import Rule
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException, ZnodeStat

logger = DeferredLogger("django_zklock.contender")

NODE_DELETED = "its node was deleted"


class NodeContender(Contender):
    """A contender with one node. ``node`` is its name, if it has one; ``path`` is the path of the lock."""

    __slots__ = ("_own_watch_requested", "_own_watch_set", "node", "path")

    def __init__(
        self, session: Session, path: LockPath, rule: Rule, *, data: bytes, wait: bool, notify: Callable[[], None]
    ) -> None:
        super().__init__(session, (path,), rule, data=data, wait=wait, notify=notify)
        self.path = path.path
        self.node: str | None = None
        self._own_watch_requested = False
        self._own_watch_set = False

    def __repr__(self) -> str:
        return f"<Contender {self.state.value} {self.path}/{self.node or '?'}>"

    @property
    def node_paths(self) -> dict[str, str]:
        return {self.path: self._own_path}

    def heartbeat(self) -> None:
        """Read the held node: the answer proves that it exists and belongs to our session."""
        if self.state is State.HELD:
            self.session.reads.add(self._own_path, partial(self._verified, self._generation))

    def lose(self, reason: str) -> None:
        if self.state is State.HELD and self.lost is None:
            # A process that ends while it holds does so on purpose.
            level = logging.INFO if self.session.closing else logging.WARNING
            logger.log(level, "event=lost path=%s node=%s reason=%s", self.path, self.node, reason)
            super().lose(reason)

    @abstractmethod
    def _start_again(self) -> None:
        """Our node was deleted while we waited: create another one."""

    @property
    def _own_path(self) -> str:
        return f"{self.path}/{self.node}"

    def _watch_own_node(self) -> None:
        self._own_watch_requested = True
        # Never removed: it ends with the node.
        watched, changed = partial(self._own_node_read, self._generation), partial(self._own_node_changed, self.node)
        self.session.wire.get(self._own_path, watched, changed)

    def _own_node_read(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._generation:
            return
        self._own_watch_set = value is not None
        if error is not None and wire.is_temporary(error):
            self._own_watch_requested = False
            self.on_refusal(error)
        else:
            self._verified(asked, value, error)

    def _own_node_changed(self, node: str | None, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        if node != self.node or self.state not in {State.WAITING, State.HELD}:
            return
        self._own_watch_requested = self._own_watch_set = False
        if not deleted:
            self._watch_own_node()
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    def _verified(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._generation or self.state not in {State.WAITING, State.HELD}:
            return
        if value is not None and value[1].ephemeralOwner == self.session.id:
            self._check_revocation(value[0])
        elif value is None and not isinstance(error, wire.NoNodeError):
            logger.warning("event=unverified path=%s node=%s error=%r", self.path, self.node, error)
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    def _check_revocation(self, data: bytes) -> None:
        reason = node_data.decode_revoke(data) if self.revoked is None else None
        if reason is not None:
            logger.warning("event=revoked path=%s node=%s reason=%r", self.path, self.node, reason)
            self.revoked = reason
            self._notify()

    def _lose_node(self) -> None:
        """Lose the lock at once. Signals wait until it is known whether a reason was written to the lock's node."""
        if self.loss_reason_pending:
            return
        if self.lost is not None:
            # That was reported with another reason.
            self._finish()
            return
        self.loss_reason_pending, self.lost = True, NODE_DELETED
        self._notify()
        logger.warning("event=lost path=%s node=%s reason=%s", self.path, self.node, self.lost)
        self.session.wire.get(self.path, partial(self._loss_reason_read, self._generation))

    def _loss_reason_read(
        self, asked: int, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None
    ) -> None:
        if asked != self._generation or self.state is not State.HELD:
            return
        written = node_data.decode_lock_node(value[0]) if value is not None else None
        if written is not None and written.removal is not None and written.removal.node == self.node:
            self.lost = f"{NODE_DELETED}: {formatting.escape_controls(written.removal.why)}"
        self._finish()

    def _delete(self) -> None:
        if self.session.connected:
            self.session.deleting.add(self._own_path)
            self.session.wire.delete(self._own_path, partial(self._deleted, self._generation))

    def _deleted(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._generation:
            return
        if error is None or isinstance(error, wire.NoNodeError):
            self._finish()
        else:
            self.on_refusal(error)

    def _finish(self) -> None:
        self.session.deleting.discard(self._own_path)
        super()._finish()
