"""A call in a thread of its own, whose end nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from django_zklock.zk.alarm import Alarm

if TYPE_CHECKING:
    from django_zklock.zk.deadline import Deadline

T = TypeVar("T")


class Errand(Generic[T]):
    """Something that blocks and may have no limit of its own, such as looking up the name of a host.

    It begins at once. One that does not end is left behind, and keeps no interpreter from exiting.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        # One element when the call is over, in one of the two.
        self._outcome: list[T] = []
        self._failure: list[Exception] = []
        # Not the thread's own end: eventlet raises an error of its own where that is waited for in vain.
        self._over = Alarm()
        threading.Thread(target=self._run, name="zklock-errand", daemon=True).start()

    def result(self, deadline: Deadline) -> T:
        """Wait, once, for what the call returns or raises; ``TimeoutError`` if it is not over at ``deadline``."""
        self._over.wait(deadline.remaining())
        if self._failure:
            raise self._failure[0]
        if not self._outcome:
            raise TimeoutError("not done in time")
        return self._outcome[0]

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result hears of it
            self._failure.append(error)
        self._over.ring()
