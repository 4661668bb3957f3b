"""In the process that runs a task: the lock that the main process has chosen for it, from the ticket in the request.

Where tasks run in threads or greenlets of the main process, these do what children do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from django_zklock.api import current_work
from django_zklock.contrib.celery.gate.inherited import InheritedContender
from django_zklock.contrib.celery.gate.scoreboard import Cell, Scoreboard
from django_zklock.contrib.celery.gate.ticket import DELIVERY_HEADERS, HEADER, Ticket
from django_zklock.contrib.celery.tasks import locked_call_in, running_task, task_body
from django_zklock.exceptions import LockConflict, LockTimeout, ZooKeeperUnavailable
from django_zklock.locked_call import LockedCall, Outcome, Undecided
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.owners import Caller
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")


class ParentGate(Protocol):
    """The gate of the main process, as a child uses it."""

    scoreboard: Scoreboard
    release: Callable[[int], None]


# The gates of the workers of this process, by their origin. A child has inherited those of its parent.
gates: WeakValueDictionary[str, ParentGate] = WeakValueDictionary()


def read_ticket(call: LockedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TicketOffer | None:
    """Return the lock that the main process has chosen for the task that runs here; ``None`` without a ticket."""
    task, ticket = _take_ticket()
    if ticket is None:
        return None
    gate = gates.get(ticket.origin) if isinstance(ticket, Ticket) else None
    if gate is None:
        reason = "it is not of this worker"
    elif (difference := _difference(ticket, task, call, args, kwargs)) is None:
        return TicketOffer(gate, ticket, call.lock(ticket.keys, ticket.alias, current_work), task.request.id)
    else:
        if ticket.nodes:
            # The task cannot use the hold that the main process has for it.
            gate.release(ticket.hold_id)
        reason = difference
    logger.warning("event=header_refused task=%s reason=%r", task.request.id, reason)
    return None


def _take_ticket() -> tuple[Any, Any]:
    """Return the task that runs here and its ticket.

    The ticket is for the first lock of this delivery alone, and a retry would send the headers that it finds.
    """
    task = running_task()
    if task is None:
        return None, None
    request = task.request
    ticket = request.get(HEADER)
    for header in DELIVERY_HEADERS:
        vars(request).pop(header, None)
    if request.headers and not DELIVERY_HEADERS.isdisjoint(request.headers):
        request.headers = {name: value for name, value in request.headers.items() if name not in DELIVERY_HEADERS}
    return task, ticket


if hasattr(os, "register_at_fork"):
    # A process that the task forks could use the ticket too, or give it back.
    os.register_at_fork(after_in_child=_take_ticket)


def _difference(
    ticket: Ticket, task: Any, call: LockedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return why the lock of ``ticket`` is not that of this call; ``None`` if it is.

    It is if the call is the outermost one of the body, and has the same key on the same ensemble.
    """
    if locked_call_in(task_body(task)[0])[0] is not call:
        return f"it is for the body of the task {task.name}, and the call of {call.name} is another one"
    try:
        # Since the message a `__call__`, a signal or `pydantic` may have changed the arguments.
        key = call.key(args, kwargs)
        alias = call.alias(key)
    except Exception as error:  # noqa: BLE001 - the call will raise it
        return f"the arguments of the body give no key, or no alias: {error!r}"
    keys = [key] if isinstance(key, str) else list(key)
    if keys != ticket.keys:
        return f"the arguments of the message give the key {ticket.keys!r}, and those of the body give {keys!r}"
    if alias != ticket.alias:
        return f"using gives {ticket.alias!r} in the main process, and {alias!r} where the body runs"
    return None


@dataclass
class TicketOffer:
    """The lock of a ticket, with the hold or the refusal that the main process has got for it."""

    gate: ParentGate
    ticket: Ticket
    lock: Lock
    task: str

    @property
    def waited(self) -> float:
        return self.ticket.waited

    def take(self, caller: Caller) -> Outcome | Undecided:
        ticket, refusal = self.ticket, self.ticket.refusal
        if refusal is not None:
            self._send_contended()
            if isinstance(refusal, (LockTimeout, LockConflict, ZooKeeperUnavailable)):
                return None, refusal
            raise refusal
        if ticket.nodes and (held := self._take_hold(caller)) is not None:
            return held, None
        return Undecided(max(0.0, ticket.deadline - monotonic()) if ticket.deadline is not None else None)

    def _take_hold(self, caller: Caller) -> Held | None:
        ticket, lock = self.ticket, self.lock
        cell = Cell(self.gate.scoreboard, ticket.cell, ticket.hold_id)
        if not cell.claim(os.getpid()):
            text = "event=not_handed_over key=%r task=%s state=%s consequence=acquires_in_its_slot"
            logger.warning(text, lock.key, self.task, cell.state)
            if cell.claimed_by is None:
                self.gate.release(ticket.hold_id)
            return None
        contender = InheritedContender(ticket, cell, lock.rule, partial(self.gate.release, ticket.hold_id))
        held = Held(lock, contender, waited=ticket.waited, caller=caller)
        held.since = ticket.since
        self._send_contended()
        lock.listener.notify("acquired", lock, held=held)
        contender.report_to(held._possession)
        return held

    def _send_contended(self) -> None:
        if self.ticket.contended:
            self.lock.listener.notify("contended", self.lock, holder=self.ticket.holder)
