"""Workers on a real broker, and what a test asks of them and does to them."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.node_data import Identity
from django_zklock.zk.ops import snapshots
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.projects import PROJECTS
from tests.toolbox.celery.worker import Worker
from tests.toolbox.django.layer import OtherClient
from tests.toolbox.processes.project import PROJECT
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from celery import Celery


TIMEOUT = 40.0


class QuickWorker(Worker):
    """A worker that starts sooner; the demo and the chaos have those of Celery's program."""

    def arguments(self) -> list[str]:
        """Run the same command with the same options, see :mod:`tests.toolbox.celery.projects.celery_command`."""
        python, _m, _celery, _app, *command = super().arguments()
        return [python, "-m", "celery_command", *command]


@dataclass(frozen=True)
class Sent:
    """A task that was sent. Celery's AsyncResult would unsubscribe at a broker that may have ended."""

    id: str
    results: Celery

    @property
    def state(self) -> str:
        return str(self._meta()["status"])

    @property
    def ended(self) -> datetime:
        """Return when the task has ended."""
        return datetime.fromisoformat(self._meta()["date_done"])

    def outcome(self, timeout: float = TIMEOUT) -> Any:
        """Wait for the end, and return the result or the error."""
        return wait_until(lambda: self._meta() if self._ready else None, timeout, f"{self.id} is done")["result"]

    @property
    def _ready(self) -> bool:
        return self.state in {"SUCCESS", "FAILURE"}

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.results.backend.get_task_meta(self.id, cache=False)
        return meta


class Workshop:
    """A worker with its queue at the broker, its tree in ZooKeeper, and the notes of its tasks.

    Notes and results are on a server of their own: a test that cuts the connections to the broker cuts no others.
    Times are those of a quiet machine.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        broker: Redis,
        notes: Redis,
        observer: Observer,
        *,
        session_timeout: float,
        gate: bool,
        server: ZooKeeperServer | None = None,
        folder: Path | None = None,
        rabbitmq: RabbitMQ | None = None,
    ) -> None:
        import redis
        from celery import Celery

        self.zookeeper = zookeeper
        self.has_gate = gate
        # The observer always uses the real server.
        hosts = (server or zookeeper).hosts
        self.session_timeout = scaled(session_timeout)
        self.root = f"/workshop-{uuid.uuid4().hex[:8]}"
        self.queue = self.root[1:]
        self._observer = observer
        messages = (rabbitmq or broker).url
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "workshop.settings",
            # A folder is a broker without an event loop.
            "CELERY_BROKER_URL": "filesystem://" if folder else messages,
            "TESTPROJECT_BROKER_DIR": str(folder),
            "WORKSHOP_BOARD": notes.url,
            "ZOOKEEPER_HOSTS": hosts,
            "TESTPROJECT_QUEUE": self.queue,
            "WORKSHOP_ROOT": self.root,
            "WORKSHOP_SESSION_TIMEOUT": str(self.session_timeout),
            "WORKSHOP_CONNECT_TIMEOUT": str(scaled(5)),
            # A test counts nodes of tasks that wait. Ours wait in their slots where the gate has no answer in a second.
            "WORKSHOP_MAX_JOINING": str(scaled(20)),
            # Without the gate each process of the pool waits for its locks by itself.
            "WORKSHOP_GATE": "1" if gate else "0",
            "PYTHONPATH": os.pathsep.join([str(PROJECTS), str(PROJECT), *filter(None, sys.path)]),
        }
        self.sender: Celery = Celery("sender", broker=messages, set_as_current=False)
        if messages == broker.url:
            # Apps with the same broker and options share their connections, and a test may let the broker close them.
            self.sender.conf.broker_transport_options = {"workshop": self.queue}
        if folder is not None:
            self.sender.conf.update(
                broker_url="filesystem://",
                broker_transport="config.broker:Transport",
                broker_transport_options={
                    "data_folder_in": str(folder / "messages"),
                    "data_folder_out": str(folder / "messages"),
                    "control_folder": str(folder / "control"),
                },
            )
        self.results: Celery = Celery("results", backend=notes.url, set_as_current=False)
        self.board = redis.Redis.from_url(notes.url, decode_responses=True, socket_timeout=None)
        self.pool = Pool(
            "outside",
            PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(20)), root=self.root),
        )
        self.other_client = OtherClient(self.pool)
        self.worker: Worker | None = None
        self.workers: list[Worker] = []

    def start(self, **options: Any) -> Worker:
        """Start the worker."""
        self._environment |= options.pop("environment", {})
        self.worker = self.start_another(**options)
        return self.worker

    def start_another(self, **options: Any) -> Worker:
        """Start one more worker, in the same environment."""
        worker = QuickWorker(app="workshop", queues=[self.queue], environment=self._environment, **options)
        self.workers.append(worker)
        return worker.start()

    def close(self) -> None:
        """Kill the workers: a warm shutdown takes seconds, and the tests about it end their workers themselves."""
        unexpected = []
        for worker in self.workers:
            worker.kill()
            unexpected += [line for line in worker.log_tail(100_000).splitlines() if "event=unexpected_step" in line]
            worker.close()
        self.pool.close(2.0)
        self.board.close()
        self.sender.close()
        self.results.close()
        # The gate makes no step that its table does not have.
        assert unexpected == []

    # Tasks and their results.

    def send(self, name: str, *args: Any, **options: Any) -> Sent:
        full = name if "." in name else f"workshop.tasks.{name}"
        return Sent(self.sender.send_task(full, args, queue=self.queue, **options).id, self.results)

    def outcome(self, sent: Sent) -> Any:
        """Return a task's result, or its error."""
        try:
            return sent.outcome()
        except AssertionError as error:
            log = self.worker.log_tail(60) if self.worker else ""
            raise AssertionError(f"{error}; state {sent.state}\n{log}") from error

    def result(self, sent: Sent) -> Any:
        """Return a task's result, or raise its error."""
        outcome = self.outcome(sent)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @property
    def control(self) -> Any:
        """The remote control of the worker."""
        return self.sender.control

    def inspect(self) -> Any:
        """The inspection of this worker: other workers may be at the same broker."""
        assert self.worker is not None
        return self.control.inspect(destination=[self.worker.node_name], timeout=scaled(5), limit=1)

    # Notes.

    def notes(self, run: str) -> list[dict[str, Any]]:
        """Return the notes of a run, in their order."""
        return [json.loads(note) for note in self.board.lrange(run, 0, -1)]

    def entered(self, gate: str) -> dict[str, Any]:
        """Wait until a task waits at its gate, and return its note."""
        note = self.board.blpop([f"{gate}:in"], timeout=scaled(TIMEOUT))
        assert note is not None, f"no task has come to {gate}; {self.worker and self.worker.log_tail(40)}"
        found: dict[str, Any] = json.loads(note[1])
        return found

    def let_go(self, gate: str) -> None:
        self.board.rpush(f"{gate}:out", "go")

    # The tree.

    def nodes(self, key: str) -> list[str]:
        return self.nodes_at(self.pool.path(key))

    def nodes_at(self, path: str) -> list[str]:
        return self._observer.children(path)

    def holders(self, key: str) -> list[Identity]:
        """Return the identities of the holders."""
        places = snapshots.one_lock(self.pool, key, timeout=scaled(10)).entries
        return [place.identity for place in places if place.held and place.identity is not None]

    def wait_count(self, key: str, count: int, timeout: float = 20.0) -> list[str]:
        try:
            return self._observer.wait_count(self.pool.path(key), count, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.worker and self.worker.log_tail(60)}") from error

    def wait_empty(self, key: str, timeout: float = 20.0) -> None:
        self._observer.wait_empty(self.pool.path(key), timeout)

    def delete(self, node: str) -> None:
        """Delete a node, like an operator that breaks a lock."""
        self._observer.client.delete(node)

    def sessions_begun(self) -> int:
        """Return how many sessions the processes of the worker have begun."""
        assert self.worker is not None
        return self.worker.log.read_text().count("event=connected session=")

    def wait_log(self, words: str, timeout: float = 20.0) -> None:
        """Wait until the worker has written ``words`` to its log."""
        assert self.worker is not None
        log = self.worker.log
        wait_until(lambda: words in log.read_text(), timeout, f"{words!r} in the log")

    def wait_session_gone(self, session: int, timeout: float) -> None:
        """Wait until the server has ended a session."""
        wait_until(
            lambda: f"0x{session:x}" not in self.zookeeper.command("dump"), timeout, f"session 0x{session:x} gone"
        )


OpenWorkshop = Callable[..., AbstractContextManager[Workshop]]
