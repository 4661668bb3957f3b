"""Raising ``LockLost`` in a running body whose lock is lost: in a thread, a greenlet or an asyncio task.

A thread is interrupted between two instructions of Python code. A running call of C code, such as a query or a sleep,
ends first; this is a rule of CPython (``PyThreadState_SetAsyncExc``). Greenlets and tasks are interrupted where they
wait.
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
    """Call ``body``, and raise ``LockLost`` in it when ``held`` is lost."""
    interrupter = _interrupter_for(held)
    forget = held._when_lost(interrupter.fire)
    try:
        try:
            interrupter.arm()
            return body()
        finally:
            interrupter.disarm()
            forget()
    except LockLost as error:
        # It may have interrupted the first disarm().
        interrupter.disarm()
        forget()
        if isinstance(error, interrupter.error):
            raise held._loss_error().with_traceback(error.__traceback__) from None
        raise


async def arun(held: Held, body: Awaitable[T]) -> T:
    """Await ``body``, cancel it when ``held`` is lost, and then raise ``LockLost``."""
    interrupter = _TaskInterrupter(held)
    forget = held._when_lost(interrupter.fire)
    try:
        try:
            interrupter.arm()
            return await body
        finally:
            interrupter.disarm()
            forget()
    except asyncio.CancelledError as error:
        # If another cancellation of the task came too, that one is raised.
        if interrupter.delivered and not interrupter.cancelled_by_others:
            raise held._loss_error() from error
        raise


class _Injected(LockLost):
    """An error without arguments, because CPython raises only a class, not an object, in another thread."""

    held: ClassVar[Held]

    def __init__(self) -> None:
        loss = self.held._loss_error()
        super().__init__(str(loss), key=loss.key)

    def __reduce__(self) -> tuple[object, ...]:
        return self.held._loss_error().__reduce__()


class _Interrupter:
    """Raises one exception in one body, at most once, and not after the body has ended.

    ``fire`` is called by a background thread; all other methods are called where the body runs.
    """

    def __init__(self, held: Held) -> None:
        # The class of the exception, created by `fire`; empty before.
        self.error: type[_Injected] | tuple[()] = ()
        self._held = held
        self._armed = False
        self._over = False
        # Reentrant: the exception may be raised in the thread that is disarming.
        self._lock = threading.RLock()

    def fire(self) -> None:
        """Raise the exception, at once or when the body begins, unless the body has ended."""
        with self._lock:
            if not self._over and not self.error:
                facts = {"held": self._held, "__module__": LockLost.__module__, "__qualname__": LockLost.__qualname__}
                self.error = type(LockLost.__name__, (_Injected,), facts)
                if self._armed:
                    self._inject()

    def arm(self) -> None:
        """Allow the exception from now on."""
        with self._lock:
            self._armed = True
            if self.error:
                self._inject()

    def disarm(self) -> None:
        """Prevent the exception from now on; can be called again."""
        with self._lock:
            self._over = True
            if self.error:
                # An exception that is still pending must not be raised in the code after the body.
                self._retract()

    def _inject(self) -> None:
        raise NotImplementedError

    def _retract(self) -> None:
        """Do nothing: subclasses that check `_over` on delivery have nothing to retract."""


class _ThreadInterrupter(_Interrupter):
    def __init__(self, held: Held) -> None:
        super().__init__(held)
        self._thread = ctypes.c_ulong(threading.get_ident())

    def _inject(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(self.error))

    def _retract(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class _GreenletInterrupter(_Interrupter):
    def __init__(self, held: Held, greenlet: Any, in_hub: Callable[[Callable[[], None]], object]) -> None:
        super().__init__(held)
        self._greenlet = greenlet
        self._in_hub = in_hub

    def _inject(self) -> None:
        self._in_hub(self._deliver)

    def _deliver(self) -> None:
        # In the hub: the greenlet waits for something, or is about to continue.
        if not self._over:
            self._greenlet.throw(self.error)


class _TaskInterrupter(_Interrupter):
    def __init__(self, held: Held) -> None:
        super().__init__(held)
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        # The task was cancelled by this object, and by others.
        self.delivered = False
        self.cancelled_by_others = False

    def _inject(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and runs nothing
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # In the loop: the task waits, and the cancellation is raised where it waits.
        if not self._over:
            self.delivered = self._task.cancel("its lock was lost")

    def _retract(self) -> None:
        if self.delivered:
            # A caller that counts cancellations must not count ours.
            self.cancelled_by_others = bool(self._task.uncancel())


def _interrupter_for(held: Held) -> _Interrupter:
    """Return the interrupter of the calling thread or greenlet.

    Without patches too a greenlet is interrupted as one: the exception for a thread would strike the greenlet that runs
    in it at that moment.
    """
    gevent_monkey, gevent = sys.modules.get("gevent.monkey"), sys.modules.get("gevent")
    if gevent is not None and (
        (gevent_monkey is not None and gevent_monkey.is_module_patched("threading"))
        or isinstance(gevent.getcurrent(), gevent.Greenlet)
    ):
        return _GreenletInterrupter(held, gevent.getcurrent(), gevent.get_hub().loop.run_callback_threadsafe)
    eventlet_patcher, eventlet = sys.modules.get("eventlet.patcher"), sys.modules.get("eventlet")
    if eventlet is not None and (
        (eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("thread"))
        or isinstance(eventlet.getcurrent(), eventlet.greenthread.GreenThread)
    ):
        hub = eventlet.hubs.get_hub()
        return _GreenletInterrupter(held, eventlet.getcurrent(), lambda deliver: hub.schedule_call_global(0, deliver))
    return _ThreadInterrupter(held)
