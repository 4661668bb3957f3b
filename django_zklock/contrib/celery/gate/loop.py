"""Where the gate meets Celery: everything that Celery does for a request is done in one thread.

That is the worker's own loop, where it has one. Where it has none (a broker without an event loop, gevent, eventlet)
a thread of ours takes its place, one for the gate.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from django_zklock.zk.alarm import Alarm

logger = logging.getLogger("django_zklock.celery")


class Loop(Protocol):
    """Runs calls, one after the other and in order."""

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call`` run soon. From any thread; never blocks."""


class HubLoop:
    """The worker's event loop.

    Woken through a pipe of our own: kombu's ``call_soon`` neither keeps the order nor, before kombu 5.6, wakes a loop
    that waits.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._ear, self._bell = os.pipe()
        for end in (self._ear, self._bell):
            os.set_blocking(end, False)
        # A ring is under way that the loop has not heard yet.
        self._rung = False

    def attach(self, hub: Any) -> None:
        """Listen in ``hub``, which forgets everybody when its connection to the broker is lost."""
        hub.add_reader(self._ear, self._answer)
        self._ring()

    def post(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._rung:
            self._ring()

    def _ring(self) -> None:
        self._rung = True
        with contextlib.suppress(BlockingIOError):  # it rings all the time
            os.write(self._bell, b".")

    def _answer(self) -> None:
        try:
            os.read(self._ear, 4096)
        except BlockingIOError:
            return
        # Before the calls are looked at: whoever posts from here on rings again.
        self._rung = False
        _run_all(self._calls)


class ThreadLoop:
    """A thread, or a greenlet, of the gate's own."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._alarm = Alarm()
        self._thread = threading.Thread(target=self._run, name="zklock-gate", daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self._alarm.ring()

    def _run(self) -> None:
        while True:
            self._alarm.wait()
            _run_all(self._calls)


class WorkerLoop:
    """The worker's thread, where it waits for messages and does other things in between, at least every two seconds."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def post(self, call: Callable[[], object]) -> None:
        self._consumer.call_soon(call)


def _run_all(calls: deque[Callable[[], object]]) -> None:
    while calls:
        call = calls.popleft()
        try:
            call()
        except Exception:
            logger.exception("event=gate_failed call=%r", call)
