"""What passes between a worker's main process and its children: a ticket with the task, and the end of the body.

The ticket is in the request that goes to the pool. Nothing that a producer sends can be one: a message has no objects,
and ``origin`` is a secret of the process that makes the ticket. Where tasks run in threads or greenlets of the main
process, these do what children do.

The end of the body comes through a pipe that all children inherit, and the end of a child from the system. Celery
reports a dead child ten seconds later (``worker_lost_wait``), and its lock would not be free until then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError

from django_zklock.api import current_work
from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.gate.scoreboard import Cell, InheritedContender, InheritedDescriptor, finalizer_of
from django_zklock.contrib.celery.tasks import locked_call_in, running_task, task_body
from django_zklock.exceptions import LockConflict, LockLost, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locked_call import LockedCall, Outcome
from django_zklock.zk import node_data
from django_zklock.zk.background import note_end
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Identity
from django_zklock.zk.owners import Caller
from django_zklock.zk.waiting import monotonic, serve
from django_zklock.zk.wire import BadVersionError

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")

# What is about one delivery of a task, and a retry must not copy: the ticket, and the rest of a timeout.
HEADER, DELIVERY_HEADERS = headers.HOLD, headers.OF_ONE_DELIVERY

# The gates of the workers of this process, by their origin. A child has inherited those of its parent.
gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a task needs to know about its lock."""

    # The main process, and the cell of its scoreboard.
    origin: str
    cell: int
    hold_id: int
    keys: list[str]
    # When the lock was decided, in seconds since the Unix epoch.
    since: float
    # Seconds; and whether another contender was in the way, and which.
    waited: float
    contended: bool
    holder: Identity | None = None
    session_timeout: float
    # By the paths of the queues.
    nodes: Mapping[str, str] = field(default_factory=dict)
    token: int = 0
    # Why there is no lock. Without that and without nodes the task acquires it itself, and may wait until then, on the
    # monotonic clock, which all processes of a host share.
    refusal: ZkLockError | None = None
    deadline: float | None = None


def read_ticket(call: LockedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TicketOffer | None:
    """Return the lock that the main process has chosen for the task that runs here; ``None`` without a ticket."""
    task, ticket = _take_ticket()
    if ticket is None:
        return None
    gate = gates.get(ticket.origin) if isinstance(ticket, Ticket) else None
    if gate is None:
        reason = "it is not of this worker"
    elif (difference := _difference(ticket, task, call, args, kwargs)) is None:
        return TicketOffer(gate, ticket, call.lock(ticket.keys, current_work), task.request.id)
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

    It is if the call is the outermost one of the body, and has the same key.
    """
    if locked_call_in(task_body(task)[0])[0] is not call:
        return f"it is for the body of the task {task.name}, and the call of {call.name} is another one"
    try:
        # Since the message a `__call__`, a signal or `pydantic` may have changed the arguments.
        key = call.key(args, kwargs)
    except Exception as error:  # noqa: BLE001 - the call will raise it
        return f"the arguments of the body give no key: {error!r}"
    keys = [key] if isinstance(key, str) else list(key)
    if keys != ticket.keys:
        return f"the arguments of the message give the key {ticket.keys!r}, and those of the body give {keys!r}"
    return None


@dataclass
class TicketOffer:
    """The lock of a ticket, with the hold or the refusal that the main process has got for it."""

    gate: Gate
    ticket: Ticket
    lock: Lock
    task: str

    @property
    def waited(self) -> float:
        return self.ticket.waited

    def take(self, caller: Caller) -> Outcome | float | None:
        """Return the hold or the refusal, or else the rest of the task's timeout, if it has one."""
        ticket, refusal = self.ticket, self.ticket.refusal
        if refusal is not None:
            self._send_contended()
            if isinstance(refusal, (LockTimeout, LockConflict, ZooKeeperUnavailable)):
                return None, refusal
            raise refusal
        if ticket.nodes and (held := self._take_hold(caller)) is not None:
            return held, None
        return max(0.0, ticket.deadline - monotonic()) if ticket.deadline is not None else None

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
        # A hold uses no more of a contender than this one has.
        held = Held(lock, cast("Contender", contender), waited=ticket.waited, caller=caller)
        held.since = ticket.since
        self._send_contended()
        lock.listener.notify("acquired", lock, held=held)
        contender.report_to(held._possession)
        return held

    def _send_contended(self) -> None:
        if self.ticket.contended:
            self.lock.listener.notify("contended", self.lock, holder=self.ticket.holder)


# The children, as the main process sees them.

_HOLD_ID = struct.Struct("=Q")
# Poll interval in seconds where pidfd is not available.
_POLL_INTERVAL = 0.05
# Seconds for which a task has run when its child is written into the nodes.
DELAY = 5.0


class ChildWatcher:
    """Calls ``on_release`` with what a child has sent, and ``on_end`` with the child's pid, on a thread of its own."""

    def __init__(self, on_release: Callable[[int], None], on_end: Callable[[int], None]) -> None:
        self._on_release, self._on_end = on_release, on_end
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._inherited = InheritedDescriptor(self._write_end)
        self._read = finalizer_of(self, self._read_end)
        self._selector = selectors.DefaultSelector()
        self._is_closed = False
        self._selector.register(self._read_end, selectors.EVENT_READ)
        # The descriptor of each child; one without it is polled. Guarded by _changing, reentrant for a signal handler.
        self._watched: dict[int, int | None] = {}
        self._changing = threading.RLock()
        self._thread: threading.Thread | None = None

    def add(self, pid: int) -> bool:
        """Watch the child ``pid``; return ``False`` if it has ended already."""
        with self._changing:
            if self._is_closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=partial(serve, self._run), name="zklock-children", daemon=True)
                self._thread.start()
            if pid in self._watched:
                return True
            try:
                descriptor = os.pidfd_open(pid)
                self._selector.register(descriptor, selectors.EVENT_READ, pid)
                self._watched[pid] = descriptor
            except ProcessLookupError:
                return False
            except (AttributeError, OSError):  # not on this system, not in this container, or no descriptor is left
                if _has_ended(pid):
                    return False
                self._watched[pid] = None
                # The thread may wait without a limit, for descriptors alone.
                self.send_release(0)
            return True

    def kill(self, pid: int) -> None:
        """Kill the child ``pid`` if it is watched and has not ended."""
        with self._changing, contextlib.suppress(ProcessLookupError, KeyError):
            if (descriptor := self._watched[pid]) is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Watch no child any more, and end the thread: the worker has ended."""
        with self._changing:
            self._is_closed = True
            if self._thread is None:
                self._close_descriptors()
            else:
                note_end(self._thread)
                self.send_release(0)

    def _close_descriptors(self) -> None:
        with self._changing:
            for descriptor in filter(None, self._watched.values()):
                os.close(descriptor)
            self._watched.clear()
            self._selector.close()
            self._inherited.close()
            self._read()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                polled = [pid for pid, descriptor in list(self._watched.items()) if descriptor is None]
                for key, _ in self._selector.select(_POLL_INTERVAL if polled else None):
                    if key.fileobj == self._read_end:
                        for (hold_id,) in _HOLD_ID.iter_unpack(os.read(self._read_end, 4096 * _HOLD_ID.size)):
                            self._call(self._on_release, hold_id)
                    else:
                        self._ended(key.data)
                for pid in filter(_has_ended, polled):
                    self._ended(pid)
            except Exception:
                logger.exception("event=child_watcher_failed")
        self._close_descriptors()

    def _ended(self, pid: int) -> None:
        with self._changing:
            if (descriptor := self._watched.pop(pid, None)) is not None:
                self._selector.unregister(descriptor)
                os.close(descriptor)
        self._call(self._on_end, pid)

    def _call(self, call: Callable[[int], None], argument: int) -> None:
        """Call ``call``; its error must not keep the other locks, of which this thread has read as well."""
        try:
            call(argument)
        except Exception:
            logger.exception("event=child_watcher_failed")

    def send_release(self, hold_id: int) -> None:
        """In a child: let the parent release the lock; it does so with the result if the pipe is full or closed."""
        with contextlib.suppress(OSError):
            os.write(self._inherited.intact, _HOLD_ID.pack(hold_id))


def _has_ended(pid: int) -> bool:
    """Return whether the child ``pid`` of this process has ended, also while Celery has not read its end yet."""
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        # On macOS before Python 3.13: it finds a killed child until Celery has read its end, within some five seconds.
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return True
    return False


class ChildNote:
    """Writes ``facts``, the arguments of ``node_data.add_run``, into each node of ``contender``; nothing waits for it.

    A node is created before a child has the task. A task that runs for ``DELAY`` seconds may be the one that hangs, and
    the operator needs its process, also when neither the broker nor the worker answers. Any thread may start or cancel
    it; a later note cancels the one before, whose answers may come after it, and must not undo it.
    """

    def __init__(self, contender: Contender, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.is_cancelled = False
        self._contender = contender
        self._paths = list(contender.node_paths.values())
        contender.post(self._read)

    def _read(self) -> None:
        if self._paths and not self.is_cancelled:
            self._contender.ask(partial(self._contender.session.wire.get, self._paths[0]), self._write)

    def _write(self, found: Any, error: Exception | None) -> None:
        session = self._contender.session
        if error is None and found[1].ephemeralOwner == session.id and not self.is_cancelled:
            changed = node_data.add_run(found[0], **self.facts)
            if changed is not None and changed != found[0]:
                write = partial(session.wire.set, self._paths[0], changed, version=found[1].version)
                self._contender.ask(write, self._written)
                return
        # A node that cannot be read or written shows what it has shown before.
        self._written(None, error)

    def _written(self, _stat: object, error: Exception | None) -> None:
        # Until no request to release is written between the read and the write.
        if not isinstance(error, BadVersionError):
            self._paths.pop(0)
        self._read()


class ChildEndedError(LockLost, WorkerLostError):
    """``LockLost`` in the result of the task, and the loss of a child to Celery."""

    def __reduce__(self) -> tuple[object, ...]:
        return LockLost(str(self), key=self.key).__reduce__()


# The result backend stores an error by these names.
ChildEndedError.__module__ = LockLost.__module__
ChildEndedError.__name__ = ChildEndedError.__qualname__ = LockLost.__name__


def ended_child_failure(key: str) -> ExceptionInfo:
    """Return the failure of a task whose child was killed because its lock was lost."""
    text = f"lock {key!r} was lost, and its task was ended; another contender may hold it now"
    try:
        # Celery expects an exception with a traceback.
        raise ChildEndedError(text, key=key)  # noqa: TRY301
    except ChildEndedError:
        return ExceptionInfo()
