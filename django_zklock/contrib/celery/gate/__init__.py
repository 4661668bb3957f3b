"""The gate: tasks wait for their locks in the worker's main process, which holds the locks while the tasks run.

A worker has a ``Gate``. Each request of a locked task becomes a ``GateRequest``, which acquires the lock and waits for
one of the ``Slots``. When the task runs, :mod:`.child` makes its hold from its ``Ticket`` and the ``Scoreboard``.

To read it, begin with the table in :mod:`.states`. :mod:`.request` makes its steps, :mod:`.attempt` is the way to a
decision about the lock, :mod:`.run` that from there to the end, and :mod:`.gate` carries out what a step leaves to do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from celery.signals import worker_init

__all__ = ["install"]


def install() -> None:
    """Put a gate into every worker of this process; calling it again changes nothing."""
    worker_init.connect(_install, dispatch_uid="django_zklock.gate.install", weak=False)
    if "celery.worker.control" in sys.modules:
        # `celery inspect` has no worker, and must know the commands.
        import_module("django_zklock.contrib.celery.inspect")


def _install(sender: Any, **_facts: Any) -> None:
    # Celery's pools and kazoo are imported when a worker starts: a web process does not need them.
    from django_zklock.contrib.celery.gate import gate

    import_module("django_zklock.contrib.celery.inspect")
    # Before the pool forks, so that its children share the memory.
    import_module("django_zklock.zk.wire.client")
    gate.install(sender.app)
