"""Threads of a test: started together, joined with a deadline, their outcome kept."""

from __future__ import annotations

import _thread
import ctypes
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_zklock.zk.lock import Lock
from tests.toolbox.timing import scaled, wait_until


class Runner:
    """Run ``call`` in a thread and keep its result or exception."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:  # noqa: BLE001 - kept for the test
            self.error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def throw(self, error: type[BaseException]) -> None:
        """Raise ``error`` in the thread, as time limits of thread pools do."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(error))

    def outcome(self, timeout: float = 30.0) -> BaseException | None:
        """Wait for the end, so many seconds of a quiet machine, and give the exception, if one ended it."""
        self._thread.join(scaled(timeout))
        assert not self._thread.is_alive(), "the thread has not come to its end"
        return self.error

    def result(self, timeout: float = 30.0) -> Any:
        """Wait for the end and give the result; raise what the thread raised."""
        error = self.outcome(timeout)
        if error is not None:
            raise error
        return self.value


def run_foreign(call: Callable[[], Any]) -> tuple[Any, int]:
    """Call ``call`` in a thread that ``threading`` does not start; return the result and the thread's ident at its end.

    The system may give the ident to the next thread.
    """
    outcome: queue.SimpleQueue[tuple[Any, BaseException | None, int, int]] = queue.SimpleQueue()

    def run() -> None:
        value = error = None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001 - raised below
            error = raised
        outcome.put((value, error, threading.get_ident(), threading.get_native_id()))

    _thread.start_new_thread(run, ())
    value, error, ident, number = outcome.get(timeout=60)
    if Path("/proc/self/task").exists():
        wait_until(lambda: not Path(f"/proc/self/task/{number}").exists())
    if error is not None:
        raise error
    return value, ident


def waiting_in(lock: Lock) -> Runner:
    """Wait for the lock in a thread that keeps the hold."""
    return Runner(lambda: lock.acquire(timeout=scaled(30)))
