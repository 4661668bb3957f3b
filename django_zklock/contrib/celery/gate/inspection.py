"""``celery inspect zklocks``: which tasks hold locks or wait for them; ``zklock_gate``: whether they wait outside."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery.worker.control import inspect_command

from django_zklock.contrib.celery.gate import takeover
from django_zklock.contrib.celery.gate.waiter import WAITING, Waiter
from django_zklock.zk.alarm import Alarm

# How long ZooKeeper may take to tell how many stand before others, in seconds. The worker stands still meanwhile.
PATIENCE = 0.5


@inspect_command()
def zklocks(state: Any, **_options: Any) -> list[dict[str, Any]]:
    """List the tasks that hold locks or wait for them, in the order of their arrival."""
    del state  # Celery passes it by name
    gate = takeover.gate
    if gate is None:
        return []
    waiters = list(gate.waiters.values())
    ahead = _ahead([waiter for waiter in waiters if waiter.stage in WAITING])
    return [waiter.facts() | {"ahead": ahead.get(waiter.nonce)} for waiter in waiters]


@inspect_command()
def zklock_gate(state: Any, **_options: Any) -> dict[str, Any]:
    """Tell whether there is a gate, and of which kind the pool behind it is."""
    return {"gate": takeover.gate is not None, "pool": type(state.consumer.pool).__module__.rpartition(".")[2]}


def _ahead(waiters: list[Waiter]) -> dict[int, int | None]:
    """Find out how many stand before each; one list serves all of one line."""
    places = {waiter.nonce: waiter.place for waiter in waiters if waiter.place is not None}
    found: dict[int, int | None] = {}
    told = Alarm()

    def tell(nonce: int, count: int | None) -> None:
        found[nonce] = count
        if len(found) == len(places):
            told.ring()

    for nonce, place in places.items():
        place.contender.session.post(partial(place.contender.locate, partial(tell, nonce)))
    if places:
        told.wait(PATIENCE)
    return dict(found)
