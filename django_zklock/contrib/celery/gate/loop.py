"""The loop of the gate: everything that changes Celery's requests happens in one thread, one call after the other."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from django_zklock.contrib.celery.gate.scoreboard import finalizer_of
from django_zklock.zk.background import TimerThread

logger = logging.getLogger("django_zklock.celery")


class Loop:
    """Runs calls one after the other, in order: in the worker's event loop, or in the timer thread if there is none.

    All calls into Celery on behalf of a request are made there. Any thread may post; posting never blocks. kombu's
    ``call_soon`` does not keep the order, and before kombu 5.6 it does not wake a loop that waits.
    """

    def __init__(self, *, has_hub: bool) -> None:
        self.timers = TimerThread()
        self._calls: deque[Callable[[], object]] = deque()
        self._is_attached = has_hub
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._close = finalizer_of(self, self._read_end, self._write_end)

    def close(self) -> None:
        """End the timer thread when it has made the calls that are due; Celery's loop does not run any more."""
        self.detach()
        self._close()
        self.timers.stop()

    def attach(self, hub: Any) -> None:
        """Listen in ``hub``, which removes its readers when the connection to the broker is lost."""
        self._is_attached = True
        hub.add_reader(self._read_end, self._run)
        self._wake()

    def detach(self) -> None:
        """Run the calls also when Celery's loop does not run any more."""
        self._is_attached = False
        if self._calls:
            self._wake()

    def post(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self._wake()

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        self.timers.call_later(delay, partial(self.post, call))

    def _wake(self) -> None:
        if self._is_attached:
            with contextlib.suppress(BlockingIOError):  # the pipe is full, so the loop wakes up
                os.write(self._write_end, b".")
        else:
            # Not with a read, which waits where eventlet has replaced it.
            self.timers.call_later(0.0, self._run_all)

    def _run(self) -> None:
        # Before the calls are run: a call that is posted from here on wakes the loop again.
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)
        self._run_all()

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
