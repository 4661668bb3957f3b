"""In the process that runs a task: what stands for the contender of its lock, which is in the worker's main process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from django_zklock.contrib.celery.gate.scoreboard import Cell, HoldState
from django_zklock.contrib.celery.gate.ticket import Ticket
from django_zklock.zk.background import TimerHandle, TimerThread
from django_zklock.zk.contender import State
from django_zklock.zk.held import Possession
from django_zklock.zk.queue import Rule
from django_zklock.zk.waiting import boottime

# How often in a session timeout a child checks whether its lock is lost; the parent's heartbeat comes seven times.
CHECKS_PER_SESSION = 12
# Poll interval in seconds while a caller waits for the deletion of the node.
GONE_POLL_INTERVAL = 0.005
_timers = TimerThread()


class InheritedSession:
    """The session of an :class:`InheritedContender`."""

    def __init__(self, cell: Cell) -> None:
        self.pid = os.getpid()
        self._cell = cell

    @property
    def lease_expired(self) -> bool:
        """Whether the parent's session may have ended."""
        return boottime() >= self._cell.lease_end

    def post(self, call: Callable[[], object]) -> None:
        # There is no connection thread here.
        call()


class InheritedContender:
    """The contender of a hold in a child: the real one is in the parent.

    It reads the cell and the clock of this process, and notices a loss even while the parent is stopped.
    """

    def __init__(self, ticket: Ticket, cell: Cell, rule: Rule, release: Callable[[], None]) -> None:
        self.rule = rule
        self.token = ticket.token
        self.node_paths = ticket.nodes
        self.session = InheritedSession(cell)
        self.state = State.HELD
        self._cell = cell
        self._release = release
        self._check_interval = ticket.session_timeout / CHECKS_PER_SESSION
        self._timer: TimerHandle | None = None
        self._lost: str | None = None

    def report_to(self, possession: Possession) -> None:
        """Let ``possession`` learn again and again whether it is revoked or lost."""
        self._timer = _timers.call_later(self._check_interval, partial(self._report, possession))

    def _report(self, possession: Possession) -> None:
        if self.state is State.HELD:
            # This finds the end of the lease.
            possession.loss()
            possession.on_change()
            if self.lost is None or self.loss_reason_pending:
                self.report_to(possession)

    @property
    def lost(self) -> str | None:
        if self._lost is None and self.state is State.HELD:
            state = self._cell.state
            if state is HoldState.LOSING:
                # Not kept: there is more to say soon.
                return "the worker's main process has lost it"
            if state is HoldState.LOST:
                self._lost = f"the worker's main process has lost it: {self._cell.reason(state)}"
            elif state is None:
                self._lost = "the worker's main process no longer holds it"
        return self._lost

    @property
    def loss_reason_pending(self) -> bool:
        """Whether the parent reads why the lock is lost."""
        return self._lost is None and self._cell.state is HoldState.LOSING

    @property
    def revoked(self) -> str | None:
        return self._cell.reason(HoldState.REVOKED) if self._cell.state is HoldState.REVOKED else None

    def leave(self) -> None:
        if self.state is State.HELD:
            # First: the main process may read the pipe late, and lose the lock meanwhile.
            self._cell.end()
            self.state = State.LEAVING
            if self._timer is not None:
                self._timer.cancel()
            self._release()

    def lose(self, reason: str) -> None:
        self._lost = self._lost or reason

    def when_deleted(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the parent has reported the deletion of the node."""
        if self._cell.state is None:
            call()
        else:
            _timers.call_later(GONE_POLL_INTERVAL, partial(self.when_deleted, call))
