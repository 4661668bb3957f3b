"""The gate: tasks wait for their locks in the worker's main process, which holds them while the tasks run.

A task that waits takes no slot, and one that dies frees its lock at once, because what holds it is not what died.

``step`` puts a ``Gate`` into the worker; each request of a locked task becomes a ``Waiter`` with a ``Place`` in
ZooKeeper's line; when it runs, ``header`` and ``Board`` tell the task of its lock, and ``takeover`` makes a hold of
that.
"""

from __future__ import annotations

from django_zklock.contrib.celery.gate import inspection
from django_zklock.contrib.celery.gate.step import install

__all__ = ["inspection", "install"]
