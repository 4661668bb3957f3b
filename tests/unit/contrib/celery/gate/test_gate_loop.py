"""The thread of the gate, while Celery's loop runs and after it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from django_zklock.contrib.celery.gate.gate import Loop


def test_loop__without_the_hub() -> None:
    """When Celery's loop does not run any more, the calls are made all the same, in order, by one thread."""
    loop = Loop(has_hub=True)
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


def test_loop__emptied_meanwhile() -> None:
    """A signal handler detaches the loop while Celery's runs the calls: the other thread takes the last one first."""

    class Emptied(deque[Callable[[], object]]):
        def __len__(self) -> int:
            length = super().__len__()
            self.clear()
            return length

    loop, hub = Loop(has_hub=True), Hub()
    loop._calls = Emptied([lambda: None])
    loop.attach(hub)
    # An error here would end Celery's consumer.
    hub.run()
    loop.timers.stop()


class Hub:
    """The part of kombu's event loop that is used."""

    def add_reader(self, _descriptor: int, run: Callable[[], None]) -> None:
        self.run = run
