"""The task's side of the gate: taking over what the main process has acquired for it."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django_zklock import calls
from django_zklock.contrib.celery.gate import header
from django_zklock.contrib.celery.gate.board import Mark
from django_zklock.contrib.celery.gate.place import hold
from django_zklock.contrib.celery.gate.remote import Remote
from django_zklock.contrib.celery.task import in_worker
from django_zklock.exceptions import LockConflict, LockTimeout, ZooKeeperUnavailable
from django_zklock.zk import identity
from django_zklock.zk.attempt import in_own_thread
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock

if TYPE_CHECKING:
    from django_zklock.calls import Outcome
    from django_zklock.contrib.celery.gate.gate import Gate
    from django_zklock.contrib.celery.gate.header import Ticket
    from django_zklock.zk.claim import Claim

logger = logging.getLogger("django_zklock.celery")

# The gate of this worker; a child has its parent's, of which it uses board and pipe.
gate: Gate | None = None


def install() -> None:
    """Have locked calls ask here first; calling it again changes nothing."""
    if take not in calls.elsewhere:
        calls.elsewhere.append(take)


def take(lock: Lock) -> Outcome | None:
    """Give what the main process has for the task that runs here; ``None`` if the task must lock for itself."""
    task = in_worker()
    signed = task.request.get(header.HEADER) if task is not None else None
    if task is None or signed is None:
        return None
    # For the first lock of this delivery alone: a retry sends the headers that it finds.
    _strip(task.request)
    try:
        ticket = header.read(signed, task_id=task.request.id, origin=gate.origin if gate is not None else None)
        assert gate is not None
        if os.getpid() != gate.pid and gate.board is not None:
            return _take_as_child(gate, ticket, lock)
        return _take_in_process(gate, ticket, lock)
    except header.Refused as reason:
        logger.warning("event=header_refused task=%s reason=%r", task.request.id, str(reason))
        return None


def _strip(request: Any) -> None:
    vars(request).pop(header.HEADER, None)
    if request.headers:
        request.headers = {name: value for name, value in request.headers.items() if name != header.HEADER}


def _fits(ticket: Ticket, lock: Lock) -> bool:
    rule = lock.rule
    return (ticket.alias, ticket.paths, ticket.kind, ticket.limit) == (
        lock.pool.name, list(lock.paths), rule.kind.value, rule.limit,
    )  # fmt: skip


def _take_as_child(gate: Gate, ticket: Ticket, lock: Lock) -> Outcome | None:
    board, children = gate.board, gate.children
    assert board is not None
    assert children is not None
    give_back = partial(children.tell, ticket.nonce)
    if ticket.refusal is not None:
        return _refusal(ticket, lock) if _fits(ticket, lock) else None
    if board.look(ticket.cell, ticket.nonce) in {Mark.GONE, None}:
        raise header.Refused("it has been used")
    if not _fits(ticket, lock):
        # The key is another one than the parent has made of the same arguments.
        give_back()
        raise header.Refused(f"it is for {ticket.paths}")
    remote = Remote(ticket, board, lock.rule, give_back)
    # A hold asks no more of a contender than this one can tell.
    held = hold(lock, cast("Claim", remote), waited=ticket.waited, since=ticket.since)
    _announce(held, ticket)
    untold = {"lost", "revoked"}

    def news() -> bool:
        if remote.revoked is not None and "revoked" in untold:
            untold.discard("revoked")
            in_own_thread(lock.observer.revoked, held, remote.revoked)
        if held.lost and "lost" in untold:
            untold.discard("lost")
            in_own_thread(held.tell_loss, remote.lost or "the lease ran out")
        return "lost" in untold

    remote.watch(news)
    return held, None


def _take_in_process(gate: Gate, ticket: Ticket, lock: Lock) -> Outcome | None:
    waiter = gate.waiters.get(ticket.nonce)
    if waiter is None:
        raise header.Refused("it has been used")
    if ticket.refusal is not None:
        return _refusal(ticket, lock) if _fits(ticket, lock) else None
    if not _fits(ticket, lock):
        waiter.release()
        raise header.Refused(f"it is for {ticket.paths}")
    held = waiter.claim(lock, waited=ticket.waited)
    if held is None:
        return None
    _announce(held, ticket)
    return held, None


def _announce(held: Held, ticket: Ticket) -> None:
    _announce_wait(held.lock, ticket)
    held.lock.observer.acquired(held)


def _announce_wait(lock: Lock, ticket: Ticket) -> None:
    if ticket.contended:
        holder = identity.decode(ticket.holder.encode()) if ticket.holder else None
        lock.observer.contended(lock, holder)


def _refusal(ticket: Ticket, lock: Lock) -> Outcome:
    _announce_wait(lock, ticket)
    error = ticket.error()
    if isinstance(error, (LockTimeout, LockConflict, ZooKeeperUnavailable)):
        return None, error
    assert error is not None
    raise error
