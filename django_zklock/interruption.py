"""Breaking into a body whose lock is lost, wherever it runs: a thread, a greenlet or an asyncio task.

A thread is interrupted between two instructions of Python code. A call of C code, such as a query or a sleep, ends
first; that is CPython's rule (``PyThreadState_SetAsyncExc``), and no lock can change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from django_zklock.exceptions import LockLost
from django_zklock.zk.held import Held

T = TypeVar("T")


def run(held: Held, body: Callable[[], T]) -> T:
    """Call ``body``; raise ``LockLost`` into it when ``held`` is lost."""
    strike = _Strike(_aim())
    held.when_lost(strike.fall)
    try:
        return body()
    except LockLost as error:
        if strike.fell and error.key is None:
            # Ours: an exception that is thrown into a thread cannot bring its message.
            held.check()
        raise
    finally:
        strike.call_off()


async def arun(held: Held, body: Awaitable[T]) -> T:
    """Await ``body``; cancel it when ``held`` is lost, and then raise ``LockLost``."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    strike = _Strike(lambda _error: loop.call_soon_threadsafe(_cancel, task, strike))
    held.when_lost(strike.fall)
    try:
        return await body
    except asyncio.CancelledError as error:
        # Somebody else may have cancelled the task too, and that counts more.
        if strike.fell and strike.landed and not _still_cancelled(task):
            raise held.loss() from error
        raise
    finally:
        strike.call_off()


class _Strike:
    """One exception for one body: it falls once at most, and not after the body has ended."""

    def __init__(self, throw: Callable[[type[LockLost] | None], object]) -> None:
        self.fell = False
        # The task was cancelled by us.
        self.landed = False
        self._throw = throw
        self._called_off = False
        # Reentrant: the exception may arrive in the thread while it calls off.
        self._lock = threading.RLock()

    def fall(self) -> None:
        with self._lock:
            if not self._called_off:
                self.fell = True
                self._throw(LockLost)

    def call_off(self) -> None:
        with self._lock:
            self._called_off = True
            if self.fell:
                # What has not arrived yet must not meet whatever this thread does next.
                self._throw(None)


def _aim() -> Callable[[type[LockLost] | None], object]:
    """Give what throws an exception into the calling thread or greenlet."""
    gevent_monkey = sys.modules.get("gevent.monkey")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("threading"):
        import gevent

        greenlet = gevent.getcurrent()
        return lambda error: error and gevent.kill(greenlet, error, block=False)
    eventlet_patcher = sys.modules.get("eventlet.patcher")
    if eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("thread"):
        import eventlet

        green = eventlet.getcurrent()
        return lambda error: error and eventlet.spawn_n(green.throw, error)
    thread = ctypes.c_ulong(threading.get_ident())

    def throw(error: type[LockLost] | None) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None if error is None else ctypes.py_object(error))

    return throw


def _cancel(task: asyncio.Task[Any], strike: _Strike) -> None:
    if not task.done():
        strike.landed = task.cancel("its lock was lost")


def _still_cancelled(task: asyncio.Task[Any]) -> bool:
    """Take our own cancellation back, and tell whether there is another; new in Python 3.11."""
    with contextlib.suppress(AttributeError):
        return bool(task.uncancel())
    return False
