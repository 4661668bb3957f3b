"""The thread of the gate: all calls into Celery on behalf of a request are made there, one after the other.

It is the worker's event loop. Where the worker has none (a broker without an event loop, gevent, eventlet) the gate
has a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from django_zklock.zk.background import TimerThread
from django_zklock.zk.waiting import AutoResetEvent

logger = logging.getLogger("django_zklock.celery")


class Loop(ABC):
    """Runs calls one after the other, in order. Any thread may post; posting never blocks."""

    def __init__(self) -> None:
        self.timers = TimerThread()
        self._calls: deque[Callable[[], object]] = deque()

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` soon."""
        self._calls.append(call)
        self._wake()

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        """Run ``call`` after ``delay`` seconds."""
        self.timers.call_later(delay, partial(self.post, call))

    def detach(self) -> None:  # noqa: B027 - a thread of the gate's own goes on
        """Run the calls also when Celery's loop does not run any more."""

    @abstractmethod
    def _wake(self) -> None: ...

    def _run_all(self) -> None:
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                # Not asked before: the thread that continues after detach() may have taken the last call.
                return
            try:
                call()
            except Exception:
                logger.exception("event=gate_failed call=%r", call)


class HubLoop(Loop):
    """The worker's event loop, woken through a pipe of the gate.

    kombu's ``call_soon`` does not keep the order, and before kombu 5.6 it does not wake a loop that waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._is_attached = True
        # Grows before the calls are run. A byte that was sent in this generation wakes the loop.
        self._generation = 0
        self._woken = -1

    def attach(self, hub: Any) -> None:
        """Listen in ``hub``, which removes its readers when the connection to the broker is lost."""
        self._is_attached = True
        hub.add_reader(self._read_end, self._run)
        self._wake()

    def detach(self) -> None:
        # The timer thread makes the calls one after the other, too.
        self._is_attached = False
        self._wake()

    def _wake(self) -> None:
        if not self._is_attached:
            self.timers.call_later(0.0, self._run_all)
            return
        generation = self._generation
        if self._woken != generation:
            with contextlib.suppress(BlockingIOError):  # the pipe is full, so the loop wakes up
                os.write(self._write_end, b".")
            # Not before the byte is sent: this thread may be interrupted, and the next caller sends another one.
            self._woken = generation

    def _run(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)
        # Before the calls are run: a call that is posted from here on wakes the loop again.
        self._generation += 1
        self._run_all()


class ThreadLoop(Loop):
    """A thread or a greenlet of the gate."""

    def __init__(self) -> None:
        super().__init__()
        self._event = AutoResetEvent()
        self._thread = threading.Thread(target=self._run, name="zklock-gate", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        self._event.set()

    def _run(self) -> None:
        while True:
            self._event.wait()
            self._run_all()
