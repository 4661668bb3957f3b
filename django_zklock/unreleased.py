"""Warnings of locks that a request or a task has acquired and not released, although its thread goes on.

Such a lock stays held until the process ends, and the next request or task of the thread would take it as its own.
The module keeps what each owner held when its request or task began.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from django_zklock.zk import owners
from django_zklock.zk.owners import Owner

# What each owner held when the request or task began that it is at work on.
_before: WeakKeyDictionary[Owner, list[Any]] = WeakKeyDictionary()


def begin(**_facts: Any) -> None:
    """Note what the calling thread or greenlet holds: the receiver of a signal."""
    caller = owners.caller()
    # The holds of an asyncio task are warned of when they are collected, which is soon after the task has ended.
    if not caller.outer:
        _before[caller.owner] = caller.owner.holds[:]


def end(**_facts: Any) -> None:
    """Warn of each lock that was acquired since the last call of ``begin`` and is still held; forget what is lost."""
    owner = owners.caller().owner
    before = _before.pop(owner, None)
    if before is None:
        return
    for held in [held for held in owner.holds if held not in before]:
        # No block of this request or task goes on here.
        held.in_block = False
        if held.lost:
            held._forget()
        else:
            warnings.warn(
                f"lock {held.key!r} was acquired in this request or task and not released: node {held.node} stays "
                f"until this process ends, and what this thread does next takes the lock as its own; use `with`, or "
                f"release the hold",
                ResourceWarning,
                source=held,
                stacklevel=2,
            )
