"""A lock that the main process holds for the task that runs in this child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.contrib.celery.gate.board import Mark
from django_zklock.zk.clock import Clock, lease_now
from django_zklock.zk.rules import Rule

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.board import Board
    from django_zklock.contrib.celery.gate.header import Ticket

# How often a child looks whether its lock is lost, in a session's time; the parent's heartbeat comes six times.
LOOKS_A_SESSION = 12
# How often it looks whether the node is gone while somebody waits for that, in seconds.
GLANCE = 0.005


class Remote:
    """What a hold sees of its contender, and of the contender's session, when both are in the parent.

    Read from the board, and by this process's own clock: no I/O, and true also when the parent stands still.
    """

    def __init__(self, ticket: Ticket, board: Board, rule: Rule, tell: Callable[[], None]) -> None:
        self.rule = rule
        self.token = ticket.token
        self.node_paths: Mapping[str, str] = ticket.nodes
        self.session = self
        self._ticket = ticket
        self._board = board
        self._tell = tell
        self._lost: str | None = None
        self._left = False

    # Of the contender.

    @property
    def lost(self) -> str | None:
        """Why the hold can no longer be trusted."""
        if self._lost is None and not self._left:
            mark = self._mark
            if mark is Mark.LOST:
                self._lost = f"the worker's main process has lost it: {self._board.reason(self._ticket.cell, mark)}"
            elif mark is None:
                self._lost = "the worker's main process holds it no more"
        return self._lost

    @property
    def revoked(self) -> str | None:
        """Why somebody asks to let go."""
        mark = self._mark
        return self._board.reason(self._ticket.cell, mark) if mark is Mark.REVOKED else None

    def leave(self) -> None:
        """Have the parent give the lock back."""
        if not self._left:
            self._left = True
            self._tell()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost."""
        self._lost = self._lost or reason

    def when_gone(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the parent says that the node is surely gone."""
        if self._mark in {Mark.GONE, None}:
            call()
        else:
            clock().call_later(GLANCE, partial(self.when_gone, call))

    @property
    def _mark(self) -> Mark | None:
        return self._board.look(self._ticket.cell, self._ticket.nonce)

    # Of the session.

    @property
    def lease_over(self) -> bool:
        """Whether the parent's session may have ended."""
        return lease_now() >= self._board.lease_end(self._ticket.cell)

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call``: there is no other thread that it could disturb."""
        call()

    # News.

    def watch(self, news: Callable[[], bool]) -> None:
        """Call ``news`` regularly, as long as it wants."""

        def look() -> None:
            if not self._left and news():
                self.watch(news)

        clock().call_later(self._ticket.session_timeout / LOOKS_A_SESSION, look)


_clock = Clock()


def clock() -> Clock:
    """Give the clock of this process."""
    return _clock
