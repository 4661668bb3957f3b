"""Breaking into a body whose lock is lost, wherever it runs: a thread, a greenlet or an asyncio task.

A thread is interrupted between two instructions of Python code. A call of C code, such as a query or a sleep, ends
first; that is CPython's rule (``PyThreadState_SetAsyncExc``), and no lock can change it. Greenlets and tasks are
interrupted where they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

from django_zklock.exceptions import LockLost
from django_zklock.zk.held import Held

T = TypeVar("T")


def run(held: Held, body: Callable[[], T]) -> T:
    """Call ``body``; raise ``LockLost`` into it when ``held`` is lost."""
    strike = _aim(held)
    forget = held.when_lost(strike.fall)
    try:
        try:
            strike.ready()
            return body()
        finally:
            strike.call_off()
            forget()
    except LockLost as error:
        # It may have come into the calling off.
        strike.call_off()
        forget()
        if isinstance(error, strike.error):
            raise held.loss().with_traceback(error.__traceback__) from None
        raise


async def arun(held: Held, body: Awaitable[T]) -> T:
    """Await ``body``; cancel it when ``held`` is lost, and then raise ``LockLost``."""
    strike = _TaskStrike(held)
    forget = held.when_lost(strike.fall)
    strike.ready()
    try:
        return await body
    except asyncio.CancelledError as error:
        strike.call_off()
        # Somebody else may have cancelled the task too, and that counts more.
        if strike.landed and not strike.cancelled_by_others:
            raise held.loss() from error
        raise
    finally:
        strike.call_off()
        forget()


class _Thrown(LockLost):
    """An error that knows by itself what it says: a thread can be thrown a class only, not an object."""

    held: ClassVar[Held]

    def __init__(self) -> None:
        loss = self.held.loss()
        super().__init__(str(loss), key=loss.key)

    def __reduce__(self) -> tuple[object, ...]:
        return self.held.loss().__reduce__()


class _Strike:
    """One exception for one body: it falls once at most, and not after the body has ended.

    It falls in a thread of its own; everything else is done where the body runs.
    """

    def __init__(self, held: Held) -> None:
        self.fell = False
        # What is thrown; made when it falls.
        self.error: type[_Thrown] | tuple[()] = ()
        self._held = held
        self._ready = False
        self._over = False
        # Reentrant: the exception may arrive in the thread while it calls off.
        self._lock = threading.RLock()

    def fall(self) -> None:
        """Throw, unless the body has ended; if it has not begun, when it does."""
        with self._lock:
            if not self._over and not self.fell:
                facts = {"held": self._held, "__module__": LockLost.__module__, "__qualname__": LockLost.__qualname__}
                self.error = type(LockLost.__name__, (_Thrown,), facts)
                self.fell = True
                if self._ready:
                    self.throw()

    def ready(self) -> None:
        """Let it come from now on."""
        with self._lock:
            self._ready = True
            if self.fell:
                self.throw()

    def call_off(self) -> None:
        """Let it come no more; may be done again."""
        with self._lock:
            self._over = True
            if self.fell:
                # What has not arrived yet must not meet whatever is done next.
                self.take_back()

    def throw(self) -> None:
        raise NotImplementedError

    def take_back(self) -> None:
        """Nothing to do for those who look, when they arrive, whether it is over."""


class _ThreadStrike(_Strike):
    def __init__(self, held: Held) -> None:
        super().__init__(held)
        self._thread = ctypes.c_ulong(threading.get_ident())

    def throw(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(self.error))

    def take_back(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class _GreenletStrike(_Strike):
    def __init__(self, held: Held, greenlet: Any, in_hub: Callable[[Callable[[], None]], object]) -> None:
        super().__init__(held)
        self._greenlet = greenlet
        self._in_hub = in_hub

    def throw(self) -> None:
        self._in_hub(self._land)

    def _land(self) -> None:
        # In the hub: the greenlet waits for something, or is about to go on.
        if not self._over:
            self._greenlet.throw(self.error)


class _TaskStrike(_Strike):
    def __init__(self, held: Held) -> None:
        super().__init__(held)
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        # The task was cancelled by us, and by others besides.
        self.landed = False
        self.cancelled_by_others = False
        self._taken_back = False

    def throw(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs there any more
            self._loop.call_soon_threadsafe(self._land)

    def _land(self) -> None:
        # In the loop: the task waits, and hears of it where it does.
        if not self._over:
            self.landed = self._task.cancel("its lock was lost")

    def take_back(self) -> None:
        if self.landed and not self._taken_back:
            self._taken_back = True
            # Whoever counts cancellations must not count ours. Python 3.10 does not count.
            with contextlib.suppress(AttributeError):
                self.cancelled_by_others = bool(self._task.uncancel())


def _aim(held: Held) -> _Strike:
    """Give the strike for the calling thread or greenlet."""
    gevent_monkey = sys.modules.get("gevent.monkey")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("threading"):
        import gevent

        return _GreenletStrike(held, gevent.getcurrent(), gevent.get_hub().loop.run_callback_threadsafe)
    eventlet_patcher = sys.modules.get("eventlet.patcher")
    if eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("thread"):
        import eventlet

        hub = eventlet.hubs.get_hub()
        return _GreenletStrike(held, eventlet.getcurrent(), lambda land: hub.schedule_call_global(0, land))
    return _ThreadStrike(held)
