"""A running task's hold, as the worker's main process writes it up for the child that runs the task."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django_zklock.contrib.celery.gate.board import Mark

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.board import Board
    from django_zklock.zk.claim import Claim


class Entry:
    """One cell of the board; a tenant of the hold's session, whose every heartbeat renews the lease there.

    Called by any thread of the main process: the board has its own lock, and forgets whom it has no longer.
    """

    def __init__(self, board: Board, nonce: int, cell: int, contender: Claim) -> None:
        self.cell = cell
        self._board = board
        self._nonce = nonce
        self._contender = contender
        self._session = contender.session
        self._closed = False

    @classmethod
    def open(cls, board: Board, nonce: int, contender: Claim) -> Entry | None:
        """Write up what ``contender`` holds; ``None`` if the board is full."""
        cell = board.open(nonce, contender.session.lease_end)
        if cell is None:
            return None
        entry = cls(board, nonce, cell, contender)
        entry._session.post(partial(entry._session.attach, entry))
        return entry

    def update(self) -> Mark | None:
        """Write what has become of the hold, and give it; ``None`` if it is as it was granted."""
        lost, revoked = self._contender.lost, self._contender.revoked
        # The child words its error when it first sees the loss, so that comes with its reason: a round trip later,
        # which is little beside the time until a heartbeat finds it.
        if lost is not None and not self._contender.asking_why:
            self._board.mark(self.cell, self._nonce, Mark.LOST, lost)
            return Mark.LOST
        if revoked is not None:
            self._board.mark(self.cell, self._nonce, Mark.REVOKED, revoked)
            return Mark.REVOKED
        return None

    def tell_when_gone(self) -> None:
        """Write when the node is surely gone, of which the child may want to know."""
        gone = partial(self._board.mark, self.cell, self._nonce, Mark.GONE)
        self._session.post(partial(self._contender.when_gone, gone))

    def close(self) -> None:
        """Take it off the board."""
        self._closed = True
        self._board.close(self.cell, self._nonce)

    # Of a tenant.

    def heartbeat(self) -> None:
        """Renew the lease, or leave when the task is over."""
        if self._closed:
            self._session.detach(self)
        else:
            self._board.renew(self.cell, self._nonce, self._session.lease_end)

    def resumed(self) -> None:
        self.heartbeat()

    def suspended(self) -> None: ...

    def session_ended(self, _reason: str) -> None: ...

    def unavailable(self, _reason: str) -> None: ...

    def lose(self, _reason: str) -> None: ...
