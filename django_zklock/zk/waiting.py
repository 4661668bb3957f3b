"""Deadlines, the clock of leases, events that no exception can break, and the threads in which nothing may wait.

``threading.Event`` and ``threading.Condition`` take their inner lock in Python code. If a time limit or Ctrl-C is
raised in a thread at that point, the lock stays taken for ever, and the next thread that sets the event hangs; here
that would be the thread of the connection. A plain lock is taken and released in C.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Timeout = float | timedelta | None
"""Seconds, a ``timedelta``, or ``None`` for ever."""


class Unset(Enum):
    """The type of :data:`UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET: Final = Unset.UNSET
"""The argument was not given, which differs from ``None``."""

# Seconds. A signal that arrives just before the main thread begins to wait does not interrupt the wait, nor does one
# that the system delivers to another thread: its handler runs when the main thread wakes up.
# https://docs.python.org/3/library/signal.html#execution-of-python-signal-handlers
SIGNAL_CHECK_INTERVAL = 1.0

# Why a thread cannot be started: there are too many, the interpreter is about to exit, it allows no daemon threads, or
# no memory is left.
NO_THREAD = (RuntimeError, MemoryError)
# Why a connection cannot be started: also, no descriptor is left.
NOT_STARTABLE = (OSError, *NO_THREAD)
# Seconds to the next attempt.
RETRY_INTERVAL = 0.5


def seconds(timeout: Timeout, name: str = "timeout") -> float | None:
    """Return ``timeout`` as plain seconds.

    Raises ``TypeError`` for anything but a real number, a ``timedelta`` or ``None``, and ``ValueError`` for a
    negative one or NaN. Infinity is the same as ``None``.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    # bool is an int in Python, but `timeout=True` is a mistake, not one second.
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        instead = "; 0 tries once" if timeout is False else ""
        raise TypeError(f"{name} must be seconds, a timedelta or None, got {timeout!r}{instead}")
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"{name} must not be negative, got {timeout!r}; None waits for ever, 0 tries once")
    # The platform cannot wait longer than this.
    return None if timeout > threading.TIMEOUT_MAX else float(timeout)


# Both clocks are called all the time, so no code in Python is between them and their callers.

boottime: partial[float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""The time in seconds on the clock of leases: CLOCK_BOOTTIME where the system has it.

It goes on while a machine is suspended, as the session timeout does at the server, and while a test freezes the time.
"""

monotonic: partial[float] = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""The time in seconds on the monotonic clock, in a test that freezes the time too.

freezegun replaces ``time.monotonic``, and a wait would never end. Neither freezegun nor time-machine change
``time.clock_gettime`` for this clock.
"""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock; ``None`` is never. It is made once, at the public door, and handed down."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> Deadline:
        """Return the deadline ``timeout`` seconds from now."""
        return cls(None if timeout is None else monotonic() + timeout)

    def remaining(self) -> float | None:
        """Return the seconds left, never below zero; ``None`` when there is no end."""
        return None if self.at is None else max(0.0, self.at - monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.at is not None and monotonic() >= self.at

    def capped(self, limit: float) -> Deadline:
        """Return the earlier of this deadline and ``limit`` seconds from now."""
        other = monotonic() + limit
        return Deadline(other if self.at is None else min(self.at, other))


class AutoResetEvent:
    """An event that any thread sets and one thread waits for. The wait resets it, also if it was set several times."""

    __slots__ = ("_process", "_unset")

    def __init__(self) -> None:
        # T1 waits soon, and a signal handler of it forks: in the child nothing is left that would set the event.
        self._process = os.getpid(), len(_forks)
        # Taken while the event is not set.
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next that waits. Never blocks, never raises."""
        try:  # noqa: SIM105 - `suppress` is four calls in Python
            self._unset.release()
        except RuntimeError:  # set already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for at most ``timeout`` seconds and reset the event; return ``False`` if it was not set.

        In the main thread the handler of a signal runs within a second, and what it raises ends the wait. If it forks,
        the wait of the child ends too.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._unset.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        end = None if timeout is None else monotonic() + timeout
        left = SIGNAL_CHECK_INTERVAL if timeout is None else timeout
        while not self._unset.acquire(timeout=min(max(left, 0.0), SIGNAL_CHECK_INTERVAL)):
            if end is not None and (left := end - monotonic()) <= 0:
                return False
            if self._process != (os.getpid(), len(_forks)):
                return False
        return True


# One element for each fork from the first process on. A child may have the number of its parent, in another container.
_forks: list[None] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(_forks.append, None))


class AsyncAutoResetEvent:
    """An event that any thread sets and one task waits for, in the loop in which it was made."""

    __slots__ = ("_is_set", "_loop", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> bool:
        """Wake the waiting task, or the next that waits; return ``False`` if the loop is closed, so that none will.

        Never blocks, never raises.
        """
        try:
            self._loop.call_soon_threadsafe(self._set_in_loop)
        except RuntimeError:
            return False
        return True

    def _set_in_loop(self) -> None:
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - its end is no error
        """Wait for at most ``timeout`` seconds and reset the event."""
        # asyncio.wait_for can lose a cancellation that comes together with the event (Python before 3.12).
        # Without a copy of the caller's context: the loop keeps cancelled timers, and jobs would be looked for.
        timer = None if timeout is None else self._loop.call_later(timeout, self._set_in_loop, context=Context())
        try:
            if not self._is_set:
                self._waiting = self._loop.create_future()
                await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()
        self._is_set = False


class Cancellation:
    """Ends waits for locks from outside: ``lock.acquire(cancellation=…)``.

    It is for any number of waits, of any locks, threads and tasks, at once and one after the other, and keeps nothing
    of those that are over. ``cancelled`` says whether :meth:`cancel` was called; it stays true, and a wait that begins
    later ends at once. What is held already is not touched.
    """

    __slots__ = ("_wakes", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        # What wakes each wait. Only single operations change it, so that a signal handler needs no mutex.
        self._wakes: dict[object, Callable[[], object]] = {}

    def __repr__(self) -> str:
        return f"<Cancellation {'cancelled' if self.cancelled else f'of {len(self._wakes)} waits'}>"

    def cancel(self) -> None:
        """Let each wait raise :exc:`~django_zklock.exceptions.LockCancelled`, or return the hold that it has by now.

        From any thread, a signal handler, a finalizer or another event loop. Never blocks, never raises; may be
        repeated.
        """
        # T1 adds itself and then looks at the flag. So T2, here, finds T1, or T1 finds the flag.
        self.cancelled = True
        for wake in list(self._wakes.values()):
            wake()

    def _add(self, wait: object, wake: Callable[[], object]) -> None:
        """Call ``wake``, which neither blocks nor raises, when this is cancelled, until ``wait`` is removed."""
        self._wakes[wait] = wake

    def _remove(self, wait: object) -> None:
        """Forget ``wait``, if it was added."""
        self._wakes.pop(wait, None)


def can_start_threads() -> bool:
    """Whether it makes sense to try again later where a thread could not be started."""
    try:
        threading.Thread(daemon=True)
    except RuntimeError:  # not in this interpreter
        return False
    # The interpreter is about to exit when its main thread has ended.
    return threading.main_thread().is_alive()


class DaemonCall(Generic[T]):
    """A call in a daemon thread, for what blocks and may have no time limit, such as the lookup of a host name.

    It begins at once. A call that does not return is abandoned, and does not keep the interpreter from exiting. If no
    thread can be started the call is not made, and fails with the error that says so.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        # One of the two has one element when the call is over.
        self._outcome: list[T] = []
        self._failure: list[Exception] = []
        # Thread.join raises an error of eventlet's own when it times out.
        self._over = AutoResetEvent()
        try:
            threading.Thread(target=partial(serve, self._run), name="zklock-call", daemon=True).start()
        except NO_THREAD as error:
            self._failure.append(error)
            self._over.set()

    @property
    def over(self) -> bool:
        """Whether the call has returned or raised."""
        return bool(self._outcome or self._failure)

    def result(self, deadline: Deadline) -> T:
        """Wait for what the call returns or raises; raise ``TimeoutError`` if it is not over at ``deadline``."""
        if not self.over:
            self._over.wait(deadline.remaining())
        if self._failure:
            raise self._failure[0]
        if not self._outcome:
            raise TimeoutError("not done in time")
        return self._outcome[0]

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except Exception as error:  # noqa: BLE001 - raised again by result()
            self._failure.append(error)
        self._over.set()


def call_in_thread(call: Callable[[], T]) -> Future[T]:
    """Make a call in a thread of its own, a daemon; raise one of :data:`NO_THREAD` if none can be started.

    The threads of an executor may all be busy for as long as the application's work takes, and end before an event loop
    that runs when the interpreter exits.
    """
    future: Future[T] = Future()
    # From here on it cannot be cancelled: the call would have no place for its outcome.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="zklock-read", daemon=True).start()
    return future


# Threads in which nothing may wait.
#
# T1 is the thread of a connection, and T2 waits for a lock. T1 allocates memory, so Python's garbage collector runs
# there, and with it a finalizer of the application that takes a lock. Only T1 could read the answer. So T1 would stop
# for as long as the timeout of that lock: no heartbeat is sent, and every lock of the process is lost. A weak
# reference's callback, a callback of the collector and a log handler may wait there just so.

# The same one at each use, whatever is monkey-patched later.
get_ident = threading.get_ident

serving_threads: list[int] = []
"""The numbers of the threads in :func:`serve`, once for each call.

They are a hint. Greenlets may share the number of their thread, and a forked child inherits the list. The stack, which
may be long, is looked at only where the number is in the list, and says for certain whether the caller is in one.
"""


def serve(main: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the main function of a thread, or a greenlet, of this package in which nothing may wait."""
    number = get_ident()
    serving_threads.append(number)
    try:
        return main(*args, **kwargs)
    finally:
        serving_threads.remove(number)


def is_serving() -> bool:
    """Whether the calling code runs in a thread of this package in which nothing may wait."""
    if get_ident() not in serving_threads:
        return False
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is serve.__code__:
            return True
        frame = frame.f_back
    return False
