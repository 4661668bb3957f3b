"""Waiting for the reason of a loss: it is read from the lock's node when the loss is known already."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django_zklock.zk import owners
from django_zklock.zk.waiting import AsyncAutoResetEvent, AutoResetEvent

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender

Register = Callable[[Callable[[], None]], Callable[[], None]]
"""Registers what is called when the reason is known, and returns a function that takes that back."""

# Seconds that an error waits for the reason, which takes one round trip.
REASON_TIMEOUT = 1.0


def wait_for_reason(contender: Contender, register: Register) -> bool:
    """Wait for the reason if it is being read, unless that would block an event loop.

    Return ``False`` if it is still not known.
    """
    if contender.loss_reason_pending and owners.running_loop() is None:
        known = AutoResetEvent()
        forget = register(known.set)
        known.wait(REASON_TIMEOUT)
        forget()
    return not contender.loss_reason_pending


async def await_reason(contender: Contender, register: Register) -> None:
    """Wait for the reason if it is being read, in a task."""
    if contender.loss_reason_pending:
        known = AsyncAutoResetEvent()
        forget = register(known.set)
        await known.wait(REASON_TIMEOUT)
        forget()
