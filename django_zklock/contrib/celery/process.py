"""The end of a worker's processes: their sessions end with them, and their locks go at once.

Nothing is done at a process's start. A pool child that takes over four seconds to come up is killed
(``worker_proc_alive_timeout``), so it connects at first use; what it inherited over the fork is forgotten by
the pool itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from billiard import current_process
from celery.signals import worker_process_shutdown, worker_shutdown

from django_zklock import calls
from django_zklock.connections import connections


def install() -> None:
    """Connect to Celery's signals."""
    # A pool child leaves through os._exit, past atexit; solo, threads and gevent live in the main process.
    worker_process_shutdown.connect(_close, dispatch_uid="django_zklock.process", weak=False)
    worker_shutdown.connect(_close, dispatch_uid="django_zklock.worker", weak=False)

    if ender not in calls.enders:
        calls.enders.append(ender)


def ender() -> Callable[[], None] | None:
    """Give what ends this process, if it is a pool's; ``None`` in a main process, which runs more than one task."""
    return _end if current_process().name != "MainProcess" else None


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _close(**_facts: Any) -> None:
    connections.close_all()
