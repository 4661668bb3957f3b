"""``celery inspect zklocks``: which tasks of a worker hold locks, and which wait for them."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command

from django_zklock.contrib.celery.gate import claim


@inspect_command()
def zklocks(state: Any, **_options: Any) -> list[dict[str, Any]]:
    """List the tasks that hold locks or wait for them, in the order of their arrival."""
    del state  # Celery passes it by name
    gate = claim.gate
    return [waiter.facts() for waiter in list(gate.waiters.values())] if gate is not None else []
