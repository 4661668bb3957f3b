"""A forked process, for tests of forks."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection, Pipe

from tests.toolbox.timing import scaled

TIMEOUT = scaled(10)


class Child:
    """The child; ``receive`` returns what it reports."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def receive(self) -> object:
        """Wait for the next report of the child."""
        assert self._pipe.poll(TIMEOUT), "the child says nothing"
        report: object = self._pipe.recv()
        return report


@contextmanager
def fork(work: Callable[[Callable[[object], None]], None]) -> Iterator[Child]:
    """Run ``work`` in a fork, with a function to report to the parent; the fork lives until the end of the block.

    An exception in the fork is reported too, as text.
    """
    here, there = Pipe()
    child = os.fork()
    if child == 0:
        try:
            here.close()
            work(there.send)
        except BaseException:  # noqa: BLE001 - nothing may come back into the parent's tests
            there.send(traceback.format_exc())
        else:
            there.send("done")
        finally:
            # Until the parent closes its end.
            there.poll(None)
            os._exit(0)
    there.close()
    try:
        with closing(here):
            yield Child(here)
    finally:
        os.waitpid(child, 0)
