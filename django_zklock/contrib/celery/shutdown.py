"""The end of a worker's processes: their sessions are closed, and their locks are free at once.

Nothing is done when a process starts. Celery kills a pool child that takes over four seconds to start
(``worker_proc_alive_timeout``), so it connects at its first lock. The pool itself abandons sessions that came over the
fork.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.signals import worker_process_shutdown, worker_shutdown

from django_zklock.connections import connections
from django_zklock.locked_call import terminate_hooks


def install() -> None:
    """Connect to Celery's signals; calling it again changes nothing."""
    # A pool child ends by os._exit, which skips atexit. Solo, threads and gevent run in the main process.
    worker_process_shutdown.connect(_end_child, dispatch_uid="django_zklock.process", weak=False)
    worker_shutdown.connect(_close, dispatch_uid="django_zklock.worker", weak=False)
    if terminator not in terminate_hooks:
        terminate_hooks.append(terminator)


def terminator() -> Callable[[], None] | None:
    """Return what ends this process if it is a pool child; ``None`` in a main process, which runs several tasks."""
    from billiard import current_process

    is_child = current_process().name != "MainProcess"
    return partial(os.kill, os.getpid(), signal.SIGKILL) if is_child else None


def _close(**_facts: Any) -> None:
    # Celery's test fixtures run workers in threads of one process, and its sessions do not belong to one worker.
    if threading.current_thread() is threading.main_thread():
        connections.close_all()


def _end_child(**_facts: Any) -> None:
    _close()
    # Next the child reports its end, under a lock that all children share if the pool has no event loop, and the main
    # process answers with SIGTERM. billiard blocks that for as long as it holds the lock, but for the main thread only.
    # Where another thread lives, its arrival there ended the child under the lock, and the worker stood still for ever.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end_unless_blocked)


def _end_unless_blocked(_signum: int, _frame: object) -> None:
    if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
