"""The thread of the gate, while Celery's loop runs and after it."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable

from django_zklock.contrib.celery.gate.loop import Loop
from tests.toolbox.processes.status import identity, open_files
from tests.toolbox.timing import wait_until


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


def test_loop__closed() -> None:
    """A loop that is closed makes the calls that are due, has no descriptor, and its thread ends."""
    loop = Loop(has_hub=True)
    pipe = identity(os.fstat(loop._write_end))
    assert pipe in open_files()
    made: list[int] = []
    loop.attach(Hub())
    loop.post(lambda: made.append(1))
    loop.timers.call_later(0.0, lambda: made.append(2))
    loop.close()
    loop.post(lambda: made.append(3))
    wait_until(lambda: sorted(made) == [1, 2, 3], 20, "the calls are made")
    wait_until(lambda: loop.timers._thread is None, 20, "the thread has ended")
    assert pipe not in open_files()


def test_loop__dropped() -> None:
    """A loop to which nothing refers has no descriptor either: of a consumer that was never started."""
    loop = Loop(has_hub=True)
    pipe = identity(os.fstat(loop._write_end))
    assert pipe in open_files()
    del loop
    gc.collect()
    assert pipe not in open_files()
