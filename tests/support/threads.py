"""Threads of a test: started together, joined with a deadline, their outcome kept."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from django_zklock.zk.lock import Lock


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
        """Wait for the end and give the exception, if one ended it."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the thread has not come to its end"
        return self.error

    def result(self, timeout: float = 30.0) -> Any:
        """Wait for the end and give the result; raise what the thread raised."""
        error = self.outcome(timeout)
        if error is not None:
            raise error
        return self.value


def waiting_in(lock: Lock) -> Runner:
    """Wait for the lock in a thread that keeps the hold."""
    return Runner(lambda: lock.acquire(timeout=30))
