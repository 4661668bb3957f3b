"""One request on its way through the gate, from its arrival to the end of its task.

::

    QUEUED --a slot--> JOINING --granted, refused----------------> RUNNING --the end of the task--> OVER
      ^                   '--somebody is before us--> PARKED          ^
      |                                                 |             |
      |                                              granted, refused |
      |                                                 v             |
      '--no slot for too long------------------------ CALLED --a slot-'

A request asks for its lock when its worker has a slot for it, so a busy worker does not hold what an idle one could
use. The slot is given back while the request waits in line.
"""

from __future__ import annotations

import enum
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request

from django_zklock.calls import Chances, LockedCall
from django_zklock.contrib.celery.gate import header
from django_zklock.contrib.celery.gate.board import Mark
from django_zklock.contrib.celery.gate.entry import Entry
from django_zklock.contrib.celery.gate.place import Place
from django_zklock.exceptions import LockConflict, LockLost, LockTimeout, ZkLockError
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")

# How long a request keeps its slot while ZooKeeper thinks, in seconds: a few of its round trips.
KEEP_SLOT = 0.02
# How long a granted lock waits for a slot. What runs in the slots may itself wait for that lock.
KEEP_LOCK = 1.0
# How often to look for a slot in a pool that does not tell when it has one, in seconds.
LOOK_FOR_SLOT = 0.05

# The methods of a request that we take the place of.
_STATIONS = ("execute_using_pool", "on_accepted", "on_success", "on_failure", "on_timeout")
# What the pool itself reports, before or after the child is gone; anything else a child has said by itself.
_DEATHS = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)


class ChildEndedError(LockLost, WorkerLostError):
    """``LockLost``, as whoever asks for the result gets it, that Celery treats as the loss of a child."""

    def __reduce__(self) -> tuple[object, ...]:
        return LockLost(str(self), key=self.key).__reduce__()


# By these names the result backend stores it.
ChildEndedError.__module__ = LockLost.__module__
ChildEndedError.__name__ = ChildEndedError.__qualname__ = LockLost.__name__


class Stage(enum.Enum):
    """Where a request is; see the picture in this module's docstring."""

    QUEUED = "queued"
    JOINING = "joining"
    PARKED = "parked"
    CALLED = "called"
    RUNNING = "running"
    OVER = "over"


WAITING = {Stage.JOINING, Stage.PARKED, Stage.CALLED}


class Waiter:
    """A request of a locked task.

    ``step``, ``mind`` and ``drop`` run in the gate's loop; Celery calls what it finds in the request from its own
    threads, and the end may be told by any. ``_changing`` guards ``stage`` and what is decided by it.
    """

    def __init__(self, gate: Gate, request: Request, call: LockedCall, lock: Lock) -> None:
        self.gate = gate
        self.request = request
        self.lock = lock
        self.nonce = secrets.randbits(63) | 1
        self.stage = Stage.QUEUED
        self.pid: int | None = None
        self.contended = False
        self.place: Place | None = None
        self._may_end_child = call.on_lost == "terminate"
        self._work = Work(kind="task", name=request.task.name, id=request.id)
        self._chances = Chances(lock, call.patience, self._work)
        self._refusal: ZkLockError | None = None
        self._changing = threading.RLock()
        # Celery will come with a slot.
        self._awaits_slot = False
        self._pool: Any = None
        # What a child may read of the hold.
        self._entry: Entry | None = None
        self._claimed = False
        # We have killed the child, and Celery is to hear why.
        self._ended_child = False
        self._arrived = self._moved = time.monotonic()
        # When it asked for its lock for the first time. What it waits for before that is a slot.
        self._asked = math.inf
        self._since = 0.0
        self._qos: Any = None
        self._originals = {name: getattr(request, name) for name in _STATIONS}
        for name, ours in zip(_STATIONS, self._stations(), strict=True):
            setattr(request, name, ours)

    def __repr__(self) -> str:
        return f"<Waiter {self.stage.value} {self.lock.key!r} task={self.request.id}>"

    def _stations(self) -> tuple[Callable[..., Any], ...]:
        return self._with_slot, self._on_accepted, self._on_success, self._on_failure, self._on_timeout

    # Getting in.

    def enter(self) -> None:
        """Get in line for a slot, as any request."""
        self._awaits_slot = True
        self.gate.handle(self.request)

    def _with_slot(self, pool: Any, **options: Any) -> Any:
        """Take the place of ``execute_using_pool``: Celery has a slot for us."""
        with self._changing:
            self._awaits_slot = False
            self._pool = pool
            stage = self.stage
            if stage is Stage.QUEUED:
                if self.request.revoked():
                    self.finish()
                    # As the original; whoever has called takes the slot back.
                    raise TaskRevokedError(self.request.id)
                self._move(Stage.JOINING if self._can_join() else Stage.RUNNING)
            elif stage is Stage.CALLED:
                self._move(Stage.RUNNING)
            now = self.stage
        if stage in {Stage.QUEUED, Stage.CALLED}:
            return self._submit(pool, **options) if now is Stage.RUNNING else None
        # Its turn has passed meanwhile.
        self.gate.loop.post(self.gate.return_slot)
        return None

    def _can_join(self) -> bool:
        try:
            self._join()
        except Exception:
            # It would end Celery's loop, and with it the worker.
            logger.exception("event=not_joined task=%s consequence=the_task_locks_for_itself", self.request.id)
            self.place = None
            return False
        return True

    def _join(self) -> None:
        self.place = Place(self.lock, self._chances.patience, self._wake, self._news)
        self.place.start()
        self._asked = min(self._asked, time.monotonic())
        self.gate.call_later(KEEP_SLOT, self.step)
        self._wake()

    def _wake(self) -> None:
        if self.stage in WAITING:
            self.gate.loop.post(self.step)

    def step(self) -> None:
        """See what has become of the place in the line, and act on it."""
        with self._changing:
            if self.stage not in WAITING:
                return
            before, decided = self.stage, self._is_decided()
            if self.place is not None and self.place.take_announcement():
                self.contended = True
                self.gate.tell("waiting", self)
            if decided and before is not Stage.CALLED:
                self._move(Stage.RUNNING if before is Stage.JOINING and self.gate.has_slot else Stage.CALLED)
            elif not decided and (before is Stage.CALLED or (before is Stage.JOINING and self._is_slow())):
                self._move(Stage.PARKED)
            calls = self.stage is Stage.CALLED and not self._awaits_slot and self.gate.has_slot
            self._awaits_slot = self._awaits_slot or calls
        if self.stage is not before and before is Stage.JOINING:
            if self.stage is Stage.RUNNING:
                self._submit_by_ourselves()
            else:
                self.gate.return_slot()
        elif calls:
            self.gate.handle(self.request)
        self.gate.arm(self.patience)

    @property
    def is_minded(self) -> bool:
        """Whether there is something to look at from time to time."""
        return self.stage in WAITING or self._is_put_off or self.is_kept_waiting

    @property
    def _is_put_off(self) -> bool:
        """Whether it needs a slot of a pool that does not tell when it has one."""
        return self.stage in {Stage.QUEUED, Stage.CALLED} and not self._awaits_slot

    @property
    def patience(self) -> float | None:
        """After how many seconds there is something to look at, if nothing happens."""
        if self._is_put_off:
            return LOOK_FOR_SLOT
        if self.place is None or self.stage not in {Stage.JOINING, Stage.PARKED}:
            return None
        return self.place.sleep_for()

    def _is_decided(self) -> bool:
        if self._refusal is not None or self.place is None:
            return True
        try:
            return self.place.step()
        except (LockTimeout, LockConflict) as error:
            self.place.end()
            if self._chances.another(error):
                self._join()
                return False
            self._refusal = error.with_traceback(None)
        except ZkLockError as error:
            self.place.end()
            self._refusal = error.with_traceback(None)
        return True

    def _is_slow(self) -> bool:
        return self.place is None or self.place.waits or time.monotonic() - self._moved >= KEEP_SLOT

    def _move(self, stage: Stage) -> None:
        if stage is Stage.PARKED:
            self._qos = self.gate.park()
        elif self._qos is not None:
            self.gate.unpark(self._qos)
            self._qos = None
        self.stage = stage
        self._moved = time.monotonic()

    # Running.

    def _submit_by_ourselves(self) -> None:
        try:
            self._submit(self._pool)
        except TaskRevokedError:
            self.gate.return_slot()
        except Exception:
            self.gate.return_slot()
            raise

    def _submit(self, pool: Any, **options: Any) -> Any:
        try:
            self.gate.submitted.add(self.nonce)
            self._prepare()
            return self._originals["execute_using_pool"](pool, **options)
        except BaseException:
            self.finish()
            raise

    def _prepare(self) -> None:
        if self.place is None:
            return
        self._since = time.time()
        try:
            self._sign()
        except Exception:
            logger.exception("event=not_signed task=%s consequence=the_task_locks_for_itself", self.request.id)
            self.request.request_dict.pop(header.HEADER, None)
            self.place.end()

    def _sign(self) -> None:
        place, board = self.place, self.gate.board
        assert place is not None
        session = place.contender.session
        holds = self._refusal is None
        if holds and board is not None:
            self._entry = Entry.open(board, self.nonce, place.contender)
            if self._entry is None:
                logger.error("event=board_full key=%r consequence=the_task_locks_for_itself", self.lock.key)
                place.end()
                return
            self._news()
        if holds:
            self.gate.tell("held", self)
        ticket = header.Ticket(
            task=self.request.id,
            origin=self.gate.origin,
            cell=self._entry.cell if self._entry is not None else 0,
            nonce=self.nonce,
            alias=self.lock.pool.name,
            kind=self.lock.rule.kind.value,
            limit=self.lock.rule.limit,
            paths=list(self.lock.paths),
            nodes=place.contender.node_paths if holds else {},
            token=place.contender.token or 0,
            since=self._since,
            waited=time.monotonic() - self._asked,
            contended=self.contended,
            session_timeout=session.timeout,
            holder=place.contender.holder.encode().decode() if place.contender.holder and self.contended else None,
            refusal=header.refusal(self._refusal) if self._refusal is not None else None,
        )
        self.request.request_dict[header.HEADER] = ticket.sign()

    def claim(self, lock: Lock, *, waited: float) -> Held | None:
        """Give the hold to the thread or greenlet of this process that runs the task; ``None`` if it has none."""
        with self._changing:
            if self.stage is not Stage.RUNNING or self._claimed or self.place is None or self._refusal is not None:
                return None
            self._claimed = True
        return self.place.hold(lock, waited=waited, since=self._since)

    def _news(self) -> None:
        # On the machine's threads too.
        entry = self._entry
        if entry is not None and entry.update() is Mark.LOST and self._may_end_child:
            self.gate.loop.post(self._end_child)

    def facts(self) -> dict[str, Any]:
        """Give what there is to see of it, in what JSON can hold."""
        place = self.place
        holder = place.contender.holder if place is not None and self.stage is Stage.PARKED else None
        return {
            "id": self.request.id,
            "name": self.request.task.name,
            "key": self.lock.key,
            "alias": self.lock.pool.name,
            "kind": self.lock.rule.kind.value,
            "state": self.stage.value,
            "holder": str(holder) if holder is not None else None,
            "token": place.contender.token if place is not None and place.granted else None,
            "pid": self.pid,
            "seconds": round(time.monotonic() - self._moved, 3),
        }

    # The ends.

    def _on_accepted(self, pid: int, accepted: float) -> None:
        self.pid = pid
        self.gate.submitted.discard(self.nonce)
        if self.gate.children is not None:
            self.gate.children.when_gone(pid, self.nonce, self._child_gone)
        # It may be lost already.
        self._news()
        self._originals["on_accepted"](pid, accepted)

    def _end_child(self) -> None:
        with self._changing:
            if self.stage is not Stage.RUNNING or self.pid is None or self.gate.children is None or self._ended_child:
                return
            self._ended_child = True
        logger.warning("event=child_ended key=%r task=%s pid=%d reason=lost", self.lock.key, self.request.id, self.pid)
        self.gate.children.kill(self.pid)

    def _child_gone(self) -> None:
        self.finish()
        if self._ended_child:
            # Celery would find out in ten seconds, and not why.
            self.gate.loop.post(self._fail)

    def _fail(self) -> None:
        try:
            # What Celery wants to be told of has a traceback.
            raise ChildEndedError(  # noqa: TRY301
                f"lock {self.lock.key!r} was lost, and its task was ended; somebody else may hold it now",
                key=self.lock.key,
            )
        except ChildEndedError:
            self._originals["on_failure"](ExceptionInfo())

    def _on_success(self, result: Any, **options: Any) -> Any:
        self.finish()
        return self._originals["on_success"](result, **options)

    def _on_failure(self, failure: Any, *facts: Any, **options: Any) -> Any:
        if self._ended_child:
            return None
        error = getattr(failure.exception, "exc", failure.exception)
        if not (isinstance(error, _DEATHS) and self._is_watched):
            self.finish()
        return self._originals["on_failure"](failure, *facts, **options)

    def _on_timeout(self, soft: bool, timeout: float) -> Any:  # noqa: FBT001 - Celery's signature
        # The child is killed after this; its lock is free when it is gone.
        if not soft and not self._is_watched:
            self.finish()
        return self._originals["on_timeout"](soft, timeout)

    @property
    def _is_watched(self) -> bool:
        return self.gate.children is not None and self.pid is not None

    def release(self) -> None:
        """Give the lock back: the task has, but is not over."""
        if self.stage is Stage.RUNNING and self.place is not None:
            self.place.end()
            if self._entry is not None:
                self._entry.tell_when_gone()

    def leave(self, *, wait: bool = True) -> bool:
        """Give back everything, unless the task runs; ``False`` if another thread is at it, and we do not wait."""
        if not self._changing.acquire(blocking=wait):
            return False
        try:
            if self.stage is not Stage.RUNNING:
                self.finish()
        finally:
            self._changing.release()
        return True

    def finish(self) -> None:
        """Give back everything; safe to call more than once, and from any thread."""
        with self._changing:
            if self.stage is Stage.OVER:
                return
            before = self.stage
            self._move(Stage.OVER)
        if self.place is not None:
            self.place.end()
        if self._entry is not None:
            self._entry.close()
        if self.gate.children is not None and self.pid is not None:
            self.gate.children.forget(self.pid, self.nonce)
        self.gate.forget(self)
        if before is Stage.RUNNING:
            self.gate.loop.post(partial(self.gate.tell, "released", self))
        elif before is Stage.JOINING:
            self.gate.loop.post(self.gate.return_slot)
        if not self._awaits_slot:
            # Else they are a circle that only the garbage collector breaks.
            for name in _STATIONS:
                vars(self.request).pop(name, None)

    # What comes between.

    def mind(self, now: float) -> None:
        """Look at what nobody tells: revocation, expiry, and the time."""
        if self.stage in WAITING and self.request.revoked():
            # Celery has announced and acknowledged it.
            self.finish()
        elif self.stage is Stage.PARKED and now - self._arrived > self.gate.max_wait:
            self._give_back()
        elif self.stage is Stage.CALLED and now - self._moved > KEEP_LOCK and self._refusal is None:
            self._yield()
        elif self.stage is Stage.JOINING or (self.stage in WAITING and (self._is_put_off or self.patience == 0)):
            self.step()
        elif self._is_put_off and self.gate.has_slot:
            self.enter()
        elif self.is_kept_waiting and now - self._moved > KEEP_LOCK:
            self._withdraw()

    @property
    def is_kept_waiting(self) -> bool:
        """Whether the lock is held for a task that a pool of this process has not begun yet."""
        return self.stage is Stage.RUNNING and self.gate.board is None and not self._claimed and self._refusal is None

    def _give_back(self) -> None:
        logger.info("event=given_back key=%r task=%s waited=%.0f", self.lock.key, self.request.id, self.gate.max_wait)
        self.finish()
        self.gate.give_back(self.request)

    def _yield(self) -> None:
        with self._changing:
            if self.stage is not Stage.CALLED or self.place is None:
                return
            logger.info("event=no_slot key=%r task=%s consequence=joins_again", self.lock.key, self.request.id)
            self.place.end()
            self._move(Stage.QUEUED)

    def _withdraw(self) -> None:
        with self._changing:
            if not self.is_kept_waiting or self.place is None:
                return
            self._claimed = True
        logger.info("event=no_slot key=%r task=%s consequence=locks_for_itself", self.lock.key, self.request.id)
        self.place.end()
