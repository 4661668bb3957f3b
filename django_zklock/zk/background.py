"""What runs in the background of a process: its threads, calls that may be slow, log records, and timers.

Log records of threads that must not wait are written in the background. Heartbeats are sent by the thread of a
connection, and replies and timers run under the monitor of its session: a slow log handler there, such as a mail or a
full pipe, would cost locks.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import itertools
import logging
import math
import os
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

from django_zklock.zk.waiting import (
    NO_THREAD,
    RETRY_INTERVAL,
    AutoResetEvent,
    Deadline,
    monotonic,
    serve,
)

logger = logging.getLogger("django_zklock.background")
log_logger = logging.getLogger("django_zklock.logs")

# Seconds after which an idle thread ends.
LINGER = 1.0
# The maximum number of records that wait for a blocked handler. Later ones are counted and dropped.
MAX_RECORDS = 10_000
EXIT_TIMEOUT = 2.0

Call = Callable[[], object]

# Threads that end soon, with their process and what lets them end, and some that have ended.
_ending: dict[threading.Thread, tuple[int, Callable[[], None]]] = {}


def note_end(thread: object, stop: Callable[[], None] | None = None) -> None:
    """Note that ``thread`` ends soon, or soon after ``stop``, for :func:`end_threads`. A greenlet does not count."""
    if isinstance(thread, threading.Thread):
        for each in list(_ending):
            if each.ident is not None and not each.is_alive():
                _ending.pop(each, None)
        _ending[thread] = os.getpid(), stop or _do_nothing


def end_threads(timeout: float = EXIT_TIMEOUT) -> bool:
    """Write all log records, and wait for the threads of pools that were closed; ``False`` if that takes too long.

    An interpreter other than the first must not end before its threads: from Python 3.13 on that aborts the process.
    What a thread has to do it does, and a listener may be slow.
    """
    deadline = Deadline.after(timeout)
    written = flush_log(timeout)
    if type(threading.Lock()).__module__ != "_thread":
        return written  # greenlets, which end with their thread
    # A thread may give another one something to do.
    while running := {
        thread: stop
        for thread, (pid, stop) in list(_ending.items())
        # A server in C may have forked without Python's knowledge, which then takes a thread of the parent for alive.
        if pid == os.getpid() and thread.is_alive() and thread is not threading.current_thread()
    }:
        if deadline.passed:
            return False
        for stop in running.values():
            stop()
        next(iter(running)).join(deadline.remaining())
    return written


class BackgroundCalls:
    """Makes calls in the background, in the order in which they were submitted.

    Any thread may submit one, also under a monitor: :meth:`submit` neither waits nor raises. Calls that block delay the
    others only when all ``threads`` of them block. Threads start when they are needed. If none can be started the calls
    stay queued, and each later :meth:`submit` tries again. So does ``call_later``, if it is given, which calls a
    function after a number of seconds. Only with ``may_wait`` the calls may wait for a lock, or for ZooKeeper.

    Make it in the process that uses it, and not before that process is monkey-patched.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int = 1,
        may_wait: bool = False,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._name = name
        self._threads = threads
        self._main = self._work if may_wait else partial(serve, self._work)
        self._call_later = call_later
        # Written in C, in CPython: an exception that is raised in a thread cannot leave it locked.
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        # Guards the two below. Reentrant, for a signal handler; taken and released in C, see AutoResetEvent.
        self._guard = threading.RLock()
        self._workers: set[threading.Thread] = set()
        self._idle = 0
        # The thread that has the guard looks again whether another thread is needed.
        self._must_check = False
        self._retrying = False
        # The threads that do not stay for later calls.
        self._leaving: set[threading.Thread] = set()

    def submit(self, call: Call) -> None:
        """Make ``call`` soon, in a background thread."""
        self._calls.put(call)
        self._start_what_is_needed()

    @property
    def waiting(self) -> int:
        """How many calls have not begun."""
        return self._calls.qsize()

    def flush(self, timeout: float) -> bool:
        """Wait until one thread has made all queued calls; ``False`` if that takes longer than ``timeout`` seconds.

        If no thread can be started, the calling thread makes them.
        """
        done = AutoResetEvent()
        self.submit(done.set)
        if not self._workers:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._make(self._calls.get_nowait())
        return done.wait(timeout)

    def let_end(self) -> None:
        """Let the threads that run now end as soon as they have nothing to do, and not a while later."""
        for worker in self._workers - self._leaving:
            self._leaving.add(worker)
            # Wakes one that is idle.
            self._calls.put(_do_nothing)

    def _start_what_is_needed(self) -> None:
        """Start one more thread, unless the idle threads are enough; if none can be started, try again later.

        T1 is in here when a finalizer or a signal handler interrupts it and waits for a lock. T2, the thread of the
        connection that has to bring the lock, submits a call. T2 must not wait for T1, so it leaves the rest to T1.
        """
        self._must_check = True
        while self._must_check and self._guard.acquire(blocking=False):
            try:
                self._must_check = False
                if self._calls.qsize() > self._idle and len(self._workers) < self._threads:
                    self._start()
                if not self._workers and not self._calls.empty() and not self._retrying and self._call_later:
                    self._retrying = True
                    self._call_later(RETRY_INTERVAL, self._retry)
            finally:
                self._guard.release()

    def _retry(self) -> None:
        self._retrying = False
        self._start_what_is_needed()

    def _start(self) -> None:
        worker = None
        try:
            worker = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._workers.add(worker)
            note_end(worker, self.let_end)
            worker.start()
        except NO_THREAD:
            pass
        finally:
            if worker is not None and worker.ident is None:
                self._workers.discard(worker)
                _ending.pop(worker, None)

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._guard:
                self._idle += 1
            try:
                call = self._calls.get(timeout=0 if me in self._leaving else LINGER)
            except queue.Empty:
                with self._guard:
                    self._idle -= 1
                    is_over = self._calls.empty()
                    if is_over:
                        self._workers.discard(me)
                        self._leaving.discard(me)
                if is_over:
                    # The caller of a later call may have found the guard taken.
                    self._start_what_is_needed()
                    return
                continue
            with self._guard:
                self._idle -= 1
            # A new call may have counted on this thread, which may be busy for long.
            self._start_what_is_needed()
            self._make(call)
            # Its references must not live until the next call.
            del call

    def _make(self, call: Call) -> None:
        try:
            call()
        except BaseException:  # the calls behind it must be made
            logger.exception("event=call_failed call=%r", call)


def _do_nothing() -> None:
    pass


# Log records.


class DeferredLogger(logging.Logger):
    """Makes records at once; the logger of the same name handles them in the background, in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Looked up at import: an exception that is raised in getLogger() leaves logging locked for ever.
        self._target = logging.getLogger(name)
        # Not methods that relay: a connection asks at each answer.
        self.isEnabledFor = self._target.isEnabledFor  # type: ignore[method-assign]
        self.getEffectiveLevel = self._target.getEffectiveLevel  # type: ignore[method-assign]

    def handle(self, record: logging.LogRecord) -> None:
        _writer().put(self._target, record)


class _Writer(BackgroundCalls):
    """Writes the records of one process."""

    _dropped = 0

    def put(self, target: logging.Logger, record: logging.LogRecord) -> None:
        if self.waiting >= MAX_RECORDS:
            self._dropped += 1
            return
        self._log_dropped()
        self.submit(partial(self._write, target, record))

    def flush(self, timeout: float) -> bool:
        self._log_dropped()
        return super().flush(timeout)

    def _log_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            line = "event=records_dropped count=%d reason=handlers_too_slow"
            self.submit(partial(log_logger.warning, line, dropped))

    def _write(self, target: logging.Logger, record: logging.LogRecord) -> None:
        try:
            target.handle(record)
        except Exception:  # noqa: BLE001 - of a filter or a handler; logging it would fail again
            if logging.raiseExceptions:
                traceback.print_exc(file=sys.stderr)


# By process id: inherited records are written by the parent.
_writers: dict[int, _Writer] = {}


def _writer() -> _Writer:
    pid = os.getpid()
    writer = _writers.get(pid)
    # Not made at import: threading may be monkey-patched later.
    return writer if writer is not None else _writers.setdefault(pid, _Writer("zklock-log"))


def flush_log(timeout: float = EXIT_TIMEOUT) -> bool:
    """Wait until all queued records are written; ``False`` if that takes longer than ``timeout`` seconds."""
    writer = _writers.get(os.getpid())
    return writer is None or writer.flush(timeout)


if hasattr(os, "register_at_fork"):
    # A child may have the number of its parent, in another container.
    os.register_at_fork(after_in_child=_writers.clear)
# Registered before the code that closes connections at exit, so it is called after that.
atexit.register(end_threads)


# Timers.


timer_logger = DeferredLogger("django_zklock.timers")


class TimerHandle:
    """A call to come; cancelling it twice or too late does nothing."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class TimerThread:
    """Calls functions later, one after the other, on a daemon thread that the first call starts.

    Any thread may call :meth:`call_later`, which neither waits nor raises; the functions must not block. If the thread
    cannot be started the calls are kept, and the next :meth:`call_later` tries again.
    """

    def __init__(self) -> None:
        # What callers hand over to the thread. The counter keeps equal times in order, so timers are never compared.
        self._incoming: deque[tuple[float, int, TimerHandle]] = deque()
        self._counter = itertools.count()
        self._changed = AutoResetEvent()
        self._stopped = False
        # Until when the thread sleeps (monotonic clock); while it is awake, a time that has passed.
        self._asleep_until = -math.inf
        self._thread: threading.Thread | None = None
        # Guards _thread. Reentrant, for a signal handler that releases a lock; taken and released in C.
        self._starting = threading.RLock()

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        """Call ``call`` after ``delay`` seconds (monotonic clock)."""
        timer, due = TimerHandle(call), monotonic() + delay
        self._incoming.append((due, next(self._counter), timer))
        with contextlib.suppress(*NO_THREAD):
            self.start()
        if due < self._asleep_until:
            self._changed.set()
        return timer

    def start(self) -> None:
        """Start the thread, if there is none; raise one of :data:`~.waiting.NO_THREAD` if it cannot be started."""
        # T1 starts the thread, and is interrupted by a finalizer that waits for a lock. T2, which brings it, must not
        # wait for T1, whose thread will see the calls of T2.
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                self._start()
            finally:
                self._starting.release()

    def stop(self) -> None:
        """Make the calls that are due and drop the others; after that only calls without a delay are made."""
        self._stopped = True
        note_end(self._thread)
        self._changed.set()

    def _start(self) -> None:
        """Do the same under ``_starting``."""
        thread = threading.Thread(target=partial(serve, self._run), name="zklock-timers", daemon=True)
        # Only now: a finalizer may have interrupted this, and started the thread.
        if self._thread is None:
            # First: it may have ended when start() returns.
            self._thread = thread
            try:
                thread.start()
            finally:
                if thread.ident is None:
                    self._thread = None
        if self._stopped:
            note_end(self._thread)

    def _takes_over(self) -> bool:
        """Make this the thread, if there is none."""
        with self._starting:
            self._thread = self._thread or threading.current_thread()
            return self._thread is threading.current_thread()

    def _run(self) -> None:
        # The heap is local: an exception raised in call_later() can start a second thread, which has its own.
        heap: list[tuple[float, int, TimerHandle]] = []
        while True:
            with contextlib.suppress(IndexError):
                while True:
                    heapq.heappush(heap, self._incoming.popleft())
            while heap and heap[0][0] <= monotonic():
                self._call(heapq.heappop(heap)[2])
            while heap and heap[0][2].call is None:
                heapq.heappop(heap)
            if self._stopped:
                # Before the last look: what is added from now on starts another thread.
                self._thread = None
                if not (self._incoming and self._takes_over()):
                    return
                continue
            # Before the last look at what is incoming: a timer that is added after that sees it, and wakes this thread.
            self._asleep_until = heap[0][0] if heap else math.inf
            if not self._incoming:
                self._changed.wait(max(0.0, self._asleep_until - monotonic()) if heap else None)
            self._asleep_until = -math.inf

    def _call(self, timer: TimerHandle) -> None:
        call = timer.call
        if call is not None:
            try:
                call()
            except Exception:
                timer_logger.exception("event=timer_failed call=%r", call)
