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
    worker_process_shutdown.connect(_close, dispatch_uid="django_zklock.process", weak=False)
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
