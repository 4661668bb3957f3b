"""What a pool takes from the machine: clocks, chance, events, threads and connections.

A pool gets it once, and hands it down. With another one, sessions, contenders, acquisitions and holds run in a world of
another kind: that of ``tests/simulation`` has one thread, and a clock that it moves.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from django_zklock.zk import waiting, wire
from django_zklock.zk.background import BackgroundCalls, TimerThread

if TYPE_CHECKING:
    from django_zklock.zk.wire import ConnectionOptions, WireListener, WirePort


class Event(Protocol):
    """An event that any thread sets and one thread waits for, see :class:`~django_zklock.zk.waiting.AutoResetEvent`."""

    def set(self) -> None:
        """Wake the waiting thread, or the next that waits."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for at most ``timeout`` seconds and reset the event; return ``False`` if it was not set."""


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Do not make the call; twice or too late this does nothing."""


class Timers(Protocol):
    """Calls functions later, see :class:`~django_zklock.zk.background.TimerThread`."""

    def start(self) -> None:
        """Start what makes the calls; raise if the process has no thread or memory for it."""

    def call_later(self, delay: float, call: Callable[[], None], /) -> Timer:
        """Call ``call`` after ``delay`` seconds."""

    def stop(self) -> None:
        """Make the calls that are due and drop the others."""


class Calls(Protocol):
    """Makes calls in the background, see :class:`~django_zklock.zk.background.BackgroundCalls`."""

    def submit(self, call: Callable[[], object], /) -> None:
        """Make ``call`` soon."""


class MakeCalls(Protocol):
    """Makes what makes calls."""

    def __call__(
        self,
        name: str,
        *,
        threads: int,
        may_wait: bool = False,
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> Calls:
        """Return :class:`Calls`, on as many threads as that."""


def _connect(options: ConnectionOptions, listener: WireListener, connect_timeout: float) -> WirePort:
    # The first one imports kazoo.
    return wire.Wire(options, listener, connect_timeout=connect_timeout)


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """Where a pool runs. ``boottime`` is the clock of leases, and times are seconds.

    What has a clock of its own counts on the monotonic one: timers, and the waits for events.
    """

    boottime: Callable[[], float] = waiting.boottime
    monotonic: Callable[[], float] = waiting.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    urandom: Callable[[int], bytes] = os.urandom
    event: Callable[[], Event] = waiting.AutoResetEvent
    timers: Callable[[], Timers] = TimerThread
    calls: MakeCalls = BackgroundCalls
    connect: Callable[[ConnectionOptions, WireListener, float], WirePort] = _connect


MACHINE = System()
"""The machine itself."""
