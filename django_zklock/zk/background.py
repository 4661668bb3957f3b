"""Calls that may be slow, made by a few background threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from django_zklock.zk.waiting import AutoResetEvent

logger = logging.getLogger("django_zklock.background")

# Seconds after which an idle thread ends.
LINGER = 1.0
# Seconds to the next attempt where no thread can be started.
RETRY_INTERVAL = 0.5

Call = Callable[[], object]


class BackgroundCalls:
    """Makes calls in the background, in the order in which they were submitted.

    Any thread may submit one, also under a monitor: :meth:`submit` neither waits nor raises. Calls that block delay the
    others only when all ``threads`` of them block. Threads start when they are needed. If none can be started the calls
    stay queued, and each later :meth:`submit` tries again. So does ``call_later``, if it is given, which calls a
    function after a number of seconds.

    Make it in the process that uses it, and not before that process is monkey-patched.
    """

    def __init__(
        self, name: str, *, threads: int = 1, call_later: Callable[[float, Callable[[], None]], object] | None = None
    ) -> None:
        self._name = name
        self._threads = threads
        self._call_later = call_later
        # Written in C, in CPython: an exception that is raised in a thread cannot leave it locked.
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        # Guards the three below. Reentrant, for a signal handler; taken and released in C, see AutoResetEvent.
        self._guard = threading.RLock()
        self._workers: set[threading.Thread] = set()
        self._idle = 0
        self._retrying = False

    def submit(self, call: Call) -> None:
        """Make ``call`` soon, in a background thread."""
        self._calls.put(call)
        self._attend()

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

    def _attend(self) -> None:
        with self._guard:
            self._start_what_is_needed()
            if self._workers or self._calls.empty() or self._retrying or self._call_later is None:
                return
            # If the timer has no thread either, the next submit() tries again.
            with contextlib.suppress(RuntimeError):
                self._call_later(RETRY_INTERVAL, self._retry)
                self._retrying = True

    def _retry(self) -> None:
        self._retrying = False
        self._attend()

    def _start_what_is_needed(self) -> None:
        """Start one more thread, unless the idle threads are enough; under the guard."""
        if self._calls.qsize() <= self._idle or len(self._workers) >= self._threads:
            return
        worker = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._workers.add(worker)
        try:
            worker.start()
        except RuntimeError:  # there are too many threads, or the interpreter is about to exit
            pass
        finally:
            if worker.ident is None:
                self._workers.discard(worker)

    def _work(self) -> None:
        while True:
            with self._guard:
                self._idle += 1
            try:
                call = self._calls.get(timeout=LINGER)
            except queue.Empty:
                with self._guard:
                    self._idle -= 1
                    # Read under the guard: a later call finds one thread less, and starts another.
                    if self._calls.empty():
                        self._workers.discard(threading.current_thread())
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
