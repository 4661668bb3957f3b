"""``celery inspect zklocks`` lists the tasks at the gate, ``celery inspect zklock_gate`` describes the gate."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command


@inspect_command()
def zklocks(state: Any, **_options: Any) -> list[dict[str, Any]]:
    """List the tasks that hold locks or wait for them, in the order of their arrival."""
    gate = getattr(state.consumer, "zklock_gate", None)
    return [request.as_dict() for request in list(gate.requests.values())] if gate is not None else []


@inspect_command()
def zklock_gate(state: Any, **_options: Any) -> dict[str, Any]:
    """Return whether the worker has a gate, the kind of its pool, and how many requests are at the gate."""
    gate = getattr(state.consumer, "zklock_gate", None)
    pool = type(state.consumer.pool).__module__.rpartition(".")[2]
    return {"gate": gate is not None, "pool": pool, **(gate.as_dict() if gate is not None else {})}
