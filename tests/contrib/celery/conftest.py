"""Real workers on a real broker, and somebody outside who looks and disturbs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from services.project import PROJECT
from services.rabbitmq import RabbitMQ
from services.redis import Redis
from services.worker import Worker
from services.zookeeper import ZooKeeper

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.identity import Identity
from django_zklock.zk.inspection import survey
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.bystanders import Stranger
from tests.zk.onlooker import Onlooker, wait_until

if TYPE_CHECKING:
    from celery import Celery

# Without Celery there is nothing to be seen here.
if importlib.util.find_spec("celery") is None:
    collect_ignore_glob = ["test_*.py"]

HERE = Path(__file__).resolve().parent
PATIENCE = 40.0


# Before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have tests that share a worker run in one process, also where tests run at once: to start one takes seconds."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents and "workshop" in item.fixturenames:
            which = item.callspec.indices.get("workshop", 0) if hasattr(item, "callspec") else 0
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{which}"))


@dataclass(frozen=True)
class Sent:
    """A task that is on its way. Not Celery's own AsyncResult, which says goodbye to a broker that may be gone."""

    id: str
    results: Celery

    @property
    def state(self) -> str:
        return str(self._meta()["status"])

    def outcome(self, timeout: float = PATIENCE) -> Any:
        """Wait for the end, and give the result or the error."""
        return wait_until(lambda: self._meta() if self._ready else None, timeout, f"{self.id} is done")["result"]

    @property
    def _ready(self) -> bool:
        return self.state in {"SUCCESS", "FAILURE"}

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.results.backend.get_task_meta(self.id, cache=False)
        return meta


class Workshop:
    """A worker and what surrounds it: its queue, its tree, its notes."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        broker: Redis,
        onlooker: Onlooker,
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
        # The onlooker is at the real one in any case.
        hosts = (server or zookeeper).hosts
        self.session_timeout = session_timeout
        self.root = f"/workshop-{uuid.uuid4().hex[:8]}"
        self.queue = self.root[1:]
        self._onlooker = onlooker
        # Results and notes are in Redis in any case.
        messages = (rabbitmq or broker).url
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "workshop.settings",
            # A folder is a broker that no event loop can listen to.
            "CELERY_BROKER_URL": "filesystem://" if folder else messages,
            "TESTPROJECT_BROKER_DIR": str(folder),
            "WORKSHOP_BOARD": broker.url,
            "ZOOKEEPER_HOSTS": hosts,
            "TESTPROJECT_QUEUE": self.queue,
            "WORKSHOP_ROOT": self.root,
            "WORKSHOP_SESSION_TIMEOUT": str(session_timeout),
            # Switched off, each process of the pool waits for its locks by itself.
            "ZKLOCK_GATE": "1" if gate else "0",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(PROJECT), *filter(None, sys.path)]),
        }
        self.sender: Celery = Celery("sender", broker=messages, set_as_current=False)
        if messages == broker.url:
            # Apps with the same broker and options share their connections; and a test may have the broker close them.
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
        self.results: Celery = Celery("results", backend=broker.url, set_as_current=False)
        self.board = redis.Redis.from_url(broker.url, decode_responses=True, socket_timeout=None)
        self.pool = Pool(
            "outside",
            PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=20.0), root=self.root),
        )
        self.stranger = Stranger(self.pool)
        self.worker: Worker | None = None
        self._workers: list[Worker] = []

    def start(self, **options: Any) -> Worker:
        """Start the worker."""
        self._environment |= options.pop("environment", {})
        self.worker = self.start_another(**options)
        return self.worker

    def start_another(self, **options: Any) -> Worker:
        """Start one more worker, in the same surroundings."""
        worker = Worker(app="workshop", queues=[self.queue], environment=self._environment, **options)
        self._workers.append(worker)
        return worker.start()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self.pool.close(2.0)
        self.board.close()
        self.sender.close()
        self.results.close()

    # Tasks and their results.

    def send(self, name: str, *args: Any, **options: Any) -> Sent:
        full = name if "." in name else f"workshop.tasks.{name}"
        return Sent(self.sender.send_task(full, args, queue=self.queue, **options).id, self.results)

    def outcome(self, sent: Sent) -> Any:
        """Give a task's result, or its error."""
        try:
            return sent.outcome()
        except AssertionError as error:
            log = self.worker.log_tail(60) if self.worker else ""
            raise AssertionError(f"{error}; state {sent.state}\n{log}") from error

    def result(self, sent: Sent) -> Any:
        """Give a task's result, or raise its error."""
        outcome = self.outcome(sent)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @property
    def control(self) -> Any:
        """What talks to the worker itself."""
        return self.sender.control

    def inspect(self) -> Any:
        """What asks this worker: others may be at the same broker."""
        assert self.worker is not None
        name = re.search(r"MainProcess\] (\S+) ready\.", self.worker.log.read_text())
        assert name is not None
        return self.control.inspect(destination=[name[1]], timeout=5, limit=1)

    # Notes.

    def notes(self, run: str) -> list[dict[str, Any]]:
        """Give what the tasks of a run have left, in their order."""
        return [json.loads(note) for note in self.board.lrange(run, 0, -1)]

    def entered(self, gate: str) -> dict[str, Any]:
        """Wait until a task has come to its gate, and give what it says."""
        note = self.board.blpop([f"{gate}:in"], timeout=PATIENCE)
        assert note is not None, f"no task has come to {gate}; {self.worker and self.worker.log_tail(40)}"
        found: dict[str, Any] = json.loads(note[1])
        return found

    def let_go(self, gate: str) -> None:
        self.board.rpush(f"{gate}:out", "go")

    # The tree.

    def nodes(self, key: str) -> list[str]:
        return self._onlooker.children(self.pool.path(key))

    def holders(self, key: str) -> list[Identity]:
        """Give who holds, as their nodes say."""
        places = survey.line(self.pool, key, timeout=10).places
        return [place.identity for place in places if place.held and place.identity is not None]

    def wait_count(self, key: str, count: int, timeout: float = 20.0) -> list[str]:
        try:
            return self._onlooker.wait_count(self.pool.path(key), count, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.worker and self.worker.log_tail(60)}") from error

    def wait_empty(self, key: str, timeout: float = 20.0) -> None:
        self._onlooker.wait_empty(self.pool.path(key), timeout)

    def delete(self, node: str) -> None:
        """Delete a node, as an operator does who breaks a lock."""
        self._onlooker.client.delete(node)

    def sessions_begun(self) -> int:
        """Give how many sessions the processes of the worker have begun."""
        assert self.worker is not None
        return self.worker.log.read_text().count("event=connected session=")

    def wait_log(self, words: str, timeout: float = 20.0) -> None:
        """Wait until the worker has written ``words`` to its log."""
        assert self.worker is not None
        log = self.worker.log
        wait_until(lambda: words in log.read_text(), timeout, f"{words!r} in the log")

    def wait_session_gone(self, session: int, timeout: float) -> None:
        """Wait until the server knows nothing of a session any more."""
        wait_until(
            lambda: f"0x{session:x}" not in self.zookeeper.command("dump"), timeout, f"session 0x{session:x} gone"
        )


@pytest.fixture(scope="session")
def broker() -> Iterator[Redis]:
    """Give one broker for all workers."""
    with Redis() as redis:
        yield redis


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """Give a broker that holds back what a worker has not acknowledged, and takes it back with the connection."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def workshop_onlooker(zookeeper: ZooKeeper) -> Iterator[Onlooker]:
    onlooker = Onlooker(zookeeper.hosts)
    yield onlooker
    onlooker.close()


OpenWorkshop = Callable[..., AbstractContextManager[Workshop]]


@pytest.fixture(scope="session")
def open_workshop(zookeeper: ZooKeeper, broker: Redis, workshop_onlooker: Onlooker) -> OpenWorkshop:
    """Give a context manager that starts a worker."""

    @contextmanager
    def open_one(
        *,
        session_timeout: float = 4.0,
        gate: bool = True,
        server: ZooKeeperServer | None = None,
        folder: Path | None = None,
        rabbitmq: RabbitMQ | None = None,
        **options: Any,
    ) -> Iterator[Workshop]:
        workshop = Workshop(
            zookeeper,
            broker,
            workshop_onlooker,
            session_timeout=session_timeout,
            gate=gate,
            server=server,
            folder=folder,
            rabbitmq=rabbitmq,
        )
        try:
            workshop.start(**options)
            yield workshop
        finally:
            workshop.close()

    return open_one


@pytest.fixture
def key(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give a key that no other test uses; what a failed test has left held is let go, for the tasks of the others."""
    workshop = request.getfixturevalue("workshop") if "workshop" in request.fixturenames else None
    yield f"key-{uuid.uuid4().hex[:8]}"
    if workshop is not None:
        workshop.stranger.release_all()
