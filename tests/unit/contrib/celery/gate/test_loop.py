"""The thread of the gate, while Celery's loop runs and after it."""

from __future__ import annotations

import threading

from django_zklock.contrib.celery.gate.loop import HubLoop


def test_loop__without_the_hub() -> None:
    """When Celery's loop does not run any more, the calls are made all the same, in order, by one thread."""
    loop = HubLoop()
    made: list[tuple[int, int]] = []
    done = threading.Event()
    for number in range(50):
        loop.post(lambda number=number: made.append((number, threading.get_ident())))  # type: ignore[misc]
    assert made == []
    loop.detach()
    for number in range(50, 100):
        loop.post(lambda number=number: made.append((number, threading.get_ident())))  # type: ignore[misc]
    loop.post(done.set)
    assert done.wait(10)
    assert [number for number, _thread in made] == list(range(100))
    assert len({thread for _number, thread in made}) == 1
    loop.timers.stop()
