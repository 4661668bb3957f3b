"""The task's side of the gate: it reads its ticket, and takes the lock that the main process has acquired for it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

from django_zklock import locked_call
from django_zklock.contrib.celery.gate import ticket as tickets
from django_zklock.contrib.celery.gate.acquisition import make_hold
from django_zklock.contrib.celery.gate.gate import Gate
from django_zklock.contrib.celery.gate.scoreboard import HoldState, Scoreboard
from django_zklock.contrib.celery.gate.ticket import Ticket
from django_zklock.contrib.celery.tasks import is_call_of_message, running_task
from django_zklock.exceptions import LockConflict, LockTimeout, ZooKeeperUnavailable
from django_zklock.locked_call import LockedCall, Outcome
from django_zklock.work import current_work
from django_zklock.zk import node_data
from django_zklock.zk.background import TimerThread
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.rules import Rule
from django_zklock.zk.waiting import boottime

logger = logging.getLogger("django_zklock.celery")

# Headers about one delivery of a task, which a retry must not copy.
DELIVERY_HEADERS = frozenset({tickets.HEADER, tickets.DEADLINE_HEADER})

# How often in a session timeout a child checks whether its lock is lost; the parent's heartbeat comes seven times.
CHECKS_PER_SESSION = 12
# Poll interval in seconds while a caller waits for the deletion of the node.
GONE_POLL_INTERVAL = 0.005

# The gates of the workers of this process, by their origin. A child has inherited those of its parent, and uses their
# scoreboard and pipe.
gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()

# A thread that a child starts at its first hold.
_timers = TimerThread()


def install() -> None:
    """Read tickets before locked calls make their keys; calling it again changes nothing."""
    if read_ticket not in locked_call.acquire_hooks:
        locked_call.acquire_hooks.append(read_ticket)


def read_ticket(call: LockedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TicketOffer | None:
    """Return the lock that the main process has chosen for the task that runs here; ``None`` without a valid ticket."""
    task = running_task()
    if task is None:
        return None
    signed = task.request.get(tickets.HEADER)
    # The ticket is for the first lock of this delivery alone, and a retry would send the headers that it finds.
    _strip(task.request)
    if signed is None:
        return None
    try:
        ticket = tickets.read(signed, task_id=task.request.id, origins=gates)
    except tickets.TicketRejected as reason:
        _log_refusal(task.request.id, str(reason))
        return None
    if not is_call_of_message(task, call, args, kwargs):
        _release(gates[ticket.origin], ticket)
        _log_refusal(task.request.id, f"it is for the body and arguments of the message, not for this {call.name}")
        return None
    return TicketOffer(ticket, call.lock_of(ticket.keys, current_work))


class TicketOffer:
    """The lock of a ticket, with the hold or the refusal that the main process has got for it."""

    def __init__(self, ticket: Ticket, lock: Lock) -> None:
        self.lock = lock
        self._ticket = ticket

    def take(self) -> Outcome | locked_call.TimeLeft | None:
        """Return the hold or the refusal, or else the rest of the task's timeout, if it has one."""
        try:
            outcome = _use(self._ticket, self.lock)
        except tickets.TicketRejected as reason:
            _log_refusal(self._ticket.task, str(reason))
            return None
        deadline = self._ticket.deadline
        if outcome is None and deadline is not None:
            return locked_call.TimeLeft(max(0.0, deadline - time.time()))
        return outcome


def _strip(request: Any) -> None:
    for header in DELIVERY_HEADERS:
        vars(request).pop(header, None)
    if request.headers and not DELIVERY_HEADERS.isdisjoint(request.headers):
        request.headers = {name: value for name, value in request.headers.items() if name not in DELIVERY_HEADERS}


def _log_refusal(task: str, reason: str) -> None:
    logger.warning("event=header_refused task=%s reason=%r", task, reason)


def _use(ticket: Ticket, lock: Lock) -> Outcome | None:
    gate = gates[ticket.origin]
    if ticket.refusal is not None:
        return _refusal(ticket, lock)
    if ticket.acquires:
        return None
    if os.getpid() != gate.worker.pid and gate.worker.scoreboard is not None:
        return _take_in_child(gate, ticket, lock)
    return _take_in_process(gate, ticket, lock)


def _release(gate: Gate, ticket: Ticket) -> None:
    """Let the main process release the hold of a ticket, if it has one, that the task cannot use."""
    if ticket.acquires or ticket.refusal is not None:
        return
    if gate.worker.child_watcher is not None:
        gate.worker.child_watcher.send_release(ticket.nonce)
    elif (request := gate.requests.get(ticket.nonce)) is not None:
        request.release()


def _take_in_child(gate: Gate, ticket: Ticket, lock: Lock) -> Outcome | None:
    scoreboard, child_watcher = gate.worker.scoreboard, gate.worker.child_watcher
    assert scoreboard is not None
    assert child_watcher is not None
    release = partial(child_watcher.send_release, ticket.nonce)
    if not scoreboard.claim(ticket.slot, ticket.nonce, os.getpid()):
        logger.warning(
            "event=not_handed_over key=%r task=%s state=%s consequence=acquires_again",
            lock.key, ticket.task, scoreboard.state(ticket.slot, ticket.nonce),
        )  # fmt: skip
        release()
        return None
    contender = ParentContender(ticket, scoreboard, lock.rule, release)
    if contender.lease_expired or contender.lost is not None:
        # A body never begins with a lock that is lost.
        logger.warning("event=lost_before_start key=%r task=%s consequence=acquires_again", lock.key, ticket.task)
        release()
        return None
    # A hold uses no more of a contender than this one has.
    held = make_hold(lock, cast("Contender", contender), waited=ticket.waited, since=ticket.since)
    _send_signals(held, ticket)
    unsent = {"lost", "revoked"}

    def check() -> bool:
        if contender.revoked is not None and "revoked" in unsent:
            unsent.discard("revoked")
            held._report_revocation(contender.revoked)
        if held.lost and "lost" in unsent:
            unsent.discard("lost")
            held._report_loss(contender.lost or "the lease ran out")
        return "lost" in unsent

    contender.check_regularly(check)
    return held, None


def _take_in_process(gate: Gate, ticket: Ticket, lock: Lock) -> Outcome | None:
    request = gate.requests.get(ticket.nonce)
    if request is None:
        raise tickets.TicketRejected("it has been used")
    held = request.take_hold(lock, waited=ticket.waited)
    if held is None:
        return None
    _send_signals(held, ticket)
    return held, None


def _send_signals(held: Held, ticket: Ticket) -> None:
    _send_contended(held.lock, ticket)
    held.lock.listener.notify("acquired", held.lock, held=held)


def _send_contended(lock: LockValue, ticket: Ticket) -> None:
    if ticket.contended:
        holder = node_data.decode_identity(ticket.holder.encode()) if ticket.holder else None
        lock.listener.notify("contended", lock, holder=holder)


def _refusal(ticket: Ticket, lock: Lock) -> Outcome:
    _send_contended(lock, ticket)
    error = ticket.error()
    if isinstance(error, (LockTimeout, LockConflict, ZooKeeperUnavailable)):
        return None, error
    assert error is not None
    raise error


class ParentContender:
    """The contender of a hold in a child, and the contender's session: the real ones are in the parent.

    It reads the scoreboard and the clock of this process. It does no I/O, and notices a loss even while the parent is
    stopped.
    """

    def __init__(self, ticket: Ticket, scoreboard: Scoreboard, rule: Rule, send_release: Callable[[], None]) -> None:
        self.rule = rule
        self.token = ticket.token
        self.node_paths: Mapping[str, str] = ticket.nodes
        self.session = self
        self._ticket = ticket
        self._scoreboard = scoreboard
        self._send_release = send_release
        self._lost: str | None = None
        self._left = False

    # As a contender.

    @property
    def lost(self) -> str | None:
        """Why the hold can no longer be trusted."""
        if self._lost is None and not self._left:
            state = self._state
            if state is HoldState.LOST:
                reason = self._scoreboard.reason(self._ticket.slot, state)
                self._lost = f"the worker's main process has lost it: {reason}"
            elif state is None:
                self._lost = "the worker's main process no longer holds it"
        return self._lost

    @property
    def revoked(self) -> str | None:
        """Why the holder is asked to release."""
        state = self._state
        return self._scoreboard.reason(self._ticket.slot, state) if state is HoldState.REVOKED else None

    def leave(self) -> None:
        """Let the parent release the lock."""
        if not self._left:
            self._left = True
            self._send_release()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost."""
        self._lost = self._lost or reason

    def on_deleted(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the parent has reported the deletion of the node."""
        if self._state in {HoldState.GONE, None}:
            call()
        else:
            _timers.call_later(GONE_POLL_INTERVAL, partial(self.on_deleted, call))

    @property
    def _state(self) -> HoldState | None:
        return self._scoreboard.state(self._ticket.slot, self._ticket.nonce)

    # As a session.

    @property
    def lease_expired(self) -> bool:
        """Whether the parent's session may have ended."""
        return boottime() >= self._scoreboard.lease_end(self._ticket.slot)

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` at once: there is no connection thread here."""
        call()

    def check_regularly(self, check: Callable[[], bool]) -> None:
        """Call ``check`` regularly until it returns ``False`` or the lock is released."""

        def again() -> None:
            if not self._left and check():
                self.check_regularly(check)

        _timers.call_later(self._ticket.session_timeout / CHECKS_PER_SESSION, again)
