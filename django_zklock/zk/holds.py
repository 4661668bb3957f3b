"""What each execution context holds: a thread, a greenlet or an asyncio task, and never its children.

A context variable would not do: a new asyncio task inherits its creator's context, and with it locks that it
does not own. Under gevent and eventlet a thread-local is local to the greenlet.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from django_zklock.zk.held import Held
    from django_zklock.zk.lock import Lock


class _ThreadHolds(threading.local):
    def __init__(self) -> None:
        self.stack: list[Held] = []


_threads = _ThreadHolds()
_tasks: WeakKeyDictionary[asyncio.Task[Any], list[Held]] = WeakKeyDictionary()


def stack() -> list[Held]:
    """Give the holds of the calling execution context, innermost last; the caller may change the list."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running event loop in this thread
        task = None
    return _threads.stack if task is None else _tasks.setdefault(task, [])


def unwind(depth: int, lock: Lock) -> None:
    """Release what this context has acquired through the object ``lock`` since it held ``depth`` locks.

    A time limit or Ctrl-C can be thrown into a thread between the return of an acquiring call and the moment
    its caller keeps the hold. The caller's ``except BaseException`` calls this. It is no context manager: leaving
    one runs Python code, and so opens the gap again.
    """
    for held in reversed(stack()[depth:]):
        if held.lock is lock:
            held.release()


def current(key: str | None = None) -> Held | None:
    """Give the innermost hold of the calling execution context, of ``key`` if one is given, or ``None``."""
    mine = (held for held in reversed(stack()) if held.covers(held.lock))  # not what came over a fork
    return next((held for held in mine if key is None or key in held.keys), None)
