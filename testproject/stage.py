"""Everything that the demo runs on: ZooKeeper, a database, a broker, a Celery worker and Django's server."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from choice import VARIABLE, choose

from tests.toolbox.celery.worker import Worker
from tests.toolbox.django.webserver import WebServer
from tests.toolbox.processes.folder import make_folder, remove_folder
from tests.toolbox.processes.process import Process, StartError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from choice import Wish

P = TypeVar("P", bound=Process)

PROCESSES = 4
LOGIN = PASSWORD = "demo"
# Seconds in which servers that were given must answer.
TIMEOUT = 10
# Seconds that the worker may take to end. Without an event loop, as on a folder, Celery needs about six, which is
# worth waiting for only if sessions would be left behind in a ZooKeeper that stays.
FAREWELL = 15.0
SHORT_FAREWELL = 1.0


class Stage:
    """Starts what was not given, says so, and ends it in reverse order.

    ``ZOOKEEPER_HOSTS`` and ``CELERY_BROKER_URL`` give a ZooKeeper and a broker; a wish for a kind of ZooKeeper
    comes first. Django can be used in this process from the start to the end.
    """

    def __init__(self, zookeeper: Wish | None = None) -> None:
        """Nothing runs yet."""
        self._wish = zookeeper
        self._stack = ExitStack()
        self._processes: list[Process] = []
        self.url = ""

    def __enter__(self) -> Self:
        """Start everything, or raise NotInstalledError or StartError."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End everything."""
        self._stack.close()

    def check(self) -> None:
        """Raise StartError if a process has ended that should be running."""
        for process in self._processes:
            if not process.is_running():
                message = f"{process.name} has ended in the middle of the demo"
                raise StartError(message, process.log_tail())

    def worker_log(self) -> str:
        """Return the end of what the worker wrote."""
        return next(process.log_tail() for process in self._processes if isinstance(process, Worker))

    def _start(self) -> None:
        folder = make_folder("zklock-demo")
        self._stack.callback(remove_folder, folder)
        broker_given = bool(os.environ.get("CELERY_BROKER_URL"))
        # A broker that was given may have other workers, which must not take the demo's tasks.
        queue = f"zklock-demo-{os.getpid()}"
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        os.environ["TESTPROJECT_DATABASE"] = str(folder / "demo.sqlite3")
        os.environ["TESTPROJECT_BROKER_DIR"] = str(folder / "broker")
        os.environ["TESTPROJECT_QUEUE"] = queue
        zookeeper = choose(self._wish, self._stack)
        os.environ[VARIABLE] = zookeeper.hosts
        if zookeeper.process is not None:
            self._processes.append(zookeeper.process)
        self._set_up_django()
        if zookeeper.process is None:
            self._try_lock()
        _say("ZooKeeper", zookeeper.hosts, *zookeeper.words.splitlines())
        if broker_given:
            self._try_broker(queue)
        worker = Worker(concurrency=PROCESSES, queues=[queue])
        worker.stop_timeout = FAREWELL if zookeeper.process is None else SHORT_FAREWELL
        self._run(worker)
        _say("Celery worker", f"{PROCESSES} processes, broker: {'as given' if broker_given else 'a folder'}")
        self.url = self._run(WebServer()).url
        _say("Django", self.url)

    def _run(self, process: P) -> P:
        self._stack.enter_context(process)
        self._processes.append(process)
        return process

    def _set_up_django(self) -> None:
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        self._stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)

        # A model can be imported once Django is set up.
        from django.contrib.auth.models import User

        User.objects.create_superuser(LOGIN, password=PASSWORD)

    def _try_lock(self) -> None:
        """See that the ZooKeeper that was given can be used, in the way in which it will be."""
        from django_zklock import ZkLockError, zk_lock
        from django_zklock.connections import connections

        self._stack.callback(connections.close_all)
        # What is logged about the connection is in the error's message too.
        logging.getLogger("django_zklock").addHandler(logging.NullHandler())
        try:
            zk_lock("demo").acquire(timeout=TIMEOUT).release(wait=True)
        except ZkLockError as error:
            message = f"ZooKeeper, as given in ZOOKEEPER_HOSTS, cannot be used: {error}"
            raise StartError(message) from error

    def _try_broker(self, queue: str) -> None:
        """See that the broker that was given answers, and have the demo's queue removed from it in the end."""
        from config.celery import app

        try:
            connection = self._stack.enter_context(app.connection_for_write())
            connection.ensure_connection(timeout=TIMEOUT, max_retries=2, interval_max=1)
        # Each broker has errors of its own, and so has a library for it that is not installed.
        except Exception as error:
            message = f"the broker, as given in CELERY_BROKER_URL, cannot be used: {error}"
            raise StartError(message) from error

        def remove() -> None:
            bound = app.amqp.queues[queue].bind(connection.default_channel)
            # Redis: a channel removes only what it has declared.
            bound.declare()
            bound.delete()
            bound.exchange.delete()

        self._stack.callback(remove)


def _say(what: str, *lines: str) -> None:
    for name, line in zip_longest([what], lines, fillvalue=""):
        print(f"  {name:<16} {line}", flush=True)
