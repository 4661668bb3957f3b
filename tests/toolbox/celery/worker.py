"""A Celery worker in a process of its own."""

from __future__ import annotations

import itertools
import os
import select
import socket
import sys
from typing import TYPE_CHECKING, ClassVar

from tests.toolbox.processes.process import POLL_INTERVAL
from tests.toolbox.processes.project import ProjectProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The same as in tests.toolbox.celery.readiness, which is not imported here because it needs Celery.
READY_DESCRIPTOR = "WORKER_READY_DESCRIPTOR"

_numbers = itertools.count(1)


class Worker(ProjectProcess):
    """``celery worker`` for the project's app, or another one.

    ``environment`` comes on top of this program's own. ``stop`` is Celery's warm shutdown: running tasks
    may end. ``kill`` ends the main process and the pool at once, as when the host dies; for the main
    process alone, send it a signal.
    """

    name: ClassVar[str] = "Celery worker"
    start_timeout = 60.0

    def __init__(
        self,
        *,
        app: str = "config",
        pool: str = "prefork",
        concurrency: int = 4,
        queues: Sequence[str] = ("celery",),
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        log_level: str = "INFO",
        heartbeat: bool = False,
    ) -> None:
        """Take the worker's options; nothing runs yet."""
        super().__init__()
        # Its name in Celery, for remote control.
        self.node_name = f"{os.getpid()}-{next(_numbers)}@{socket.gethostname()}"
        self._app = app
        self._pool = pool
        self._concurrency = concurrency
        self._queues = tuple(queues)
        self._environment = dict(environment or {})
        self._options = tuple(options)
        self._log_level = log_level
        self._heartbeat = heartbeat
        self._ready = False
        # The two ends of a pipe, open from the start until the worker says that it is ready.
        self._reader: int | None = None
        self._writer: int | None = None

    def arguments(self) -> list[str]:
        """Run the worker without what serves only to find other workers, unless ``heartbeat`` asks for a part of it."""
        return [
            *(sys.executable, "-m", "celery", "-A", self._app, "worker"),
            *("--pool", self._pool),
            *("--concurrency", str(self._concurrency)),
            *("--queues", ",".join(self._queues)),
            *("--hostname", self.node_name),
            *("--loglevel", self._log_level),
            *("--include", "tests.toolbox.celery.readiness"),
            *("--without-gossip", "--without-mingle"),
            *(() if self._heartbeat else ("--without-heartbeat",)),
            *self._options,
        ]

    def environment(self) -> dict[str, str]:
        """Add what was given, and the end of the pipe for the word that the worker is ready."""
        environment = {**super().environment(), **self._environment}
        if self._writer is not None:
            environment[READY_DESCRIPTOR] = str(self._writer)
        return environment

    def descriptors(self) -> tuple[int, ...]:
        """Pass the end of the pipe into which the worker says that it is ready."""
        return () if self._writer is None else (self._writer,)

    def launch(self) -> None:
        """Start the worker and do not wait."""
        self._ready = False
        self._reader, self._writer = os.pipe()
        try:
            super().launch()
        finally:
            # The worker alone may hold this end, so that its death shows as the end of the pipe.
            os.close(self._writer)
            self._writer = None

    def is_ready(self) -> bool:
        """Tell whether the worker has said that it takes tasks, waiting for the word a little."""
        if self._reader is not None:
            readable, _, _ = select.select([self._reader], [], [], POLL_INTERVAL)
            if readable:
                # Nothing to read is the end of the pipe: the worker is gone, as wait_ready finds out.
                self._ready = os.read(self._reader, 1) != b""
                self._close_reader()
        return self._ready

    def kill(self) -> None:
        """End the whole group at once, as if its host had died."""
        super().kill()
        self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None
