"""The servers, workers and senders of the storm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import redis
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from services.process import StartError
from services.project import PROJECT
from services.worker import Worker
from services.zookeeper import ZooKeeper

from tests.support.servers.rabbitmq import RabbitMQ
from tests.support.servers.redis import Redis
from tests.support.tcp_proxy import Proxy

from .journal import ROWS, Row
from .plan import RABBITMQ, REDIS

ROOT_OF_TESTS = Path(__file__).resolve().parents[4]

SLOTS = 2
SESSION_TIMEOUT = 4.0
CONNECT_TIMEOUT = 5.0
# Seconds after which Redis delivers an unacknowledged message again, and the interval of a worker's checks for that.
VISIBILITY_TIMEOUT = 20.0
RESTORE_INTERVAL = 2
# Seconds for which the gate may keep a waiting message.
MAX_WAIT = VISIBILITY_TIMEOUT / 2
# A warm shutdown waits for running tasks, and these may wait for ZooKeeper.
FAREWELL = 60.0
# Seconds for a worker to write its stack, and the number of useful frames.
STACK_TIMEOUT = 3.0
MAX_FRAMES = 15


class StormWorker:
    """One worker, which is started again when it has ended; ``guard`` separates faults of one worker."""

    def __init__(self, number: int, broker: str, queue: str, environment: dict[str, str]) -> None:
        self.number = number
        self.broker = broker
        self.own_queue = f"{queue}-{number}"
        self.guard = threading.RLock()
        self.process = Worker(
            app="tests.integration.celery.storm.app",
            concurrency=SLOTS,
            queues=[queue, self.own_queue],
            environment={**environment, "STORM_WORKER": str(number)},
        )
        self.process.stop_timeout = FAREWELL
        self.hostname = self.process.node_name
        # Its latest main process, even if it has ended.
        self.last_main = 0
        # How many processes its pool has given up since the start.
        self.shrunk = 0

    @property
    def main(self) -> int:
        """The number of its main process."""
        return self.process.pid

    def children(self) -> list[int]:
        """Return the processes of its pool."""
        try:
            listed = Path(f"/proc/{self.main}/task/{self.main}/children").read_text()
        except OSError:
            return []
        return [int(child) for child in listed.split()]

    def stack(self) -> list[str]:
        """Return the stack of the main thread, innermost first, which Celery writes on a signal; empty if it fails."""
        before = self.process.log.stat().st_size
        self.process.signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_TIMEOUT
        while time.monotonic() < deadline:
            with self.process.log.open(errors="replace") as log:
                log.seek(before)
                _, found, rest = log.read().partition("MainThread\n")
            if found and "LOCAL VARIABLES" in rest:
                frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', rest.partition("LOCAL VARIABLES")[0])
                # The last frames are those of the handler.
                return [f"{path}:{line} {name}" for path, line, name in reversed(frames[:-2])][:MAX_FRAMES]
            time.sleep(0.1)
        return []


class Sender:
    """Sends tasks to the workers of one broker, again if the connection is lost."""

    def __init__(self, broker: str, url: str, options: dict[str, Any], queues: list[Queue]) -> None:
        self.broker = broker
        self.app = Celery(f"sender-{broker}", broker=url, set_as_current=False)
        self.app.conf.update(broker_transport_options=options, task_queues=queues)
        connection = self.app.connection_for_write()
        # The errors of a lost connection, of this broker's library and of Celery.
        self.losses: tuple[type[BaseException], ...] = (
            *connection.connection_errors, *connection.channel_errors, OperationalError, OSError,
        )  # fmt: skip

    def send(self, name: str, args: list[Any], queue: str, note: Callable[..., None], **options: Any) -> str:
        """Send a task and return its id; each attempt is noted, because it may have succeeded."""
        task_id = str(uuid.uuid4())
        while True:
            began = time.monotonic()
            note("publish", at=began, id=task_id, retries=0, conflicts=0)
            try:
                self.app.send_task(name, args, task_id=task_id, queue=queue, **options)
            except self.losses as error:
                note("unsent", id=task_id, error=repr(error))
                continue
            note("published", id=task_id, retries=0, conflicts=0)
            return task_id

    def close(self) -> None:
        """Close the connections."""
        self.app.close()


class Scene:
    """Everything that runs, during a ``with`` block. ``note`` adds a row of this program."""

    def __init__(self, *, gate: bool, workers_a_broker: int) -> None:
        self.gate = gate
        self._count = workers_a_broker
        self._stack = contextlib.ExitStack()
        self.rows: list[Row] = []
        self.name = f"storm-{uuid.uuid4().hex[:8]}"
        self.root = f"/{self.name}"
        self.workers: list[StormWorker] = []
        self.senders: dict[str, Sender] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def note(self, what: str, *, at: float | None = None, **facts: Any) -> None:
        """Add a row of this program."""
        self.rows.append({"at": time.monotonic() if at is None else at, "what": what, "pid": os.getpid(), **facts})

    def journal(self) -> list[Row]:
        """Return all rows, this program's and the workers', in the order of time."""
        written = [json.loads(row) for row in self.records.lrange(ROWS, 0, -1)]
        return sorted([*self.rows, *written], key=lambda row: row["at"])

    def _start(self) -> None:
        start = self._stack.enter_context
        self.zookeeper = start(ZooKeeper())
        self.redis, records = start(Redis()), start(Redis())
        self.rabbitmq = start(RabbitMQ())
        self.records_port = records.port
        self.records = redis.Redis.from_url(records.url, decode_responses=True)
        self._stack.callback(self.records.close)
        self.broker = redis.Redis.from_url(self.redis.url, decode_responses=True)
        self._stack.callback(self.broker.close)
        self.results = Celery("results", backend=records.url, set_as_current=False)
        self._stack.callback(self.results.close)
        self.proxy = start(Proxy(self.zookeeper.address))
        self.proxy_port = int(self.proxy.hosts.rpartition(":")[2])
        # Each send is confirmed: a confirmed message is at the broker.
        options: dict[str, dict[str, Any]] = {
            REDIS: {
                "visibility_timeout": VISIBILITY_TIMEOUT,
                "unacked_restore_interval": RESTORE_INTERVAL,
                "unacked_restore_throttle": 1,
                # The worker that restores messages may be stopped meanwhile.
                "unacked_mutex_expire": 5,
                "queue_order_strategy": "priority",
            },
            RABBITMQ: {"confirm_publish": True},
        }
        for broker, url in ((REDIS, self.redis.url), (RABBITMQ, self.rabbitmq.url)):
            arguments = {"x-max-priority": 10} if broker == RABBITMQ else {}
            numbers = range(len(self.workers), len(self.workers) + self._count)
            names = [self.name, *(f"{self.name}-{number}" for number in numbers)]
            environment = {
                "DJANGO_SETTINGS_MODULE": "tests.integration.celery.storm.settings",
                "CELERY_BROKER_URL": url,
                "TESTPROJECT_QUEUE": self.name,
                "STORM_QUEUES": ",".join(names),
                "STORM_QUEUE_ARGUMENTS": json.dumps(arguments),
                "STORM_TRANSPORT": json.dumps(options[broker]),
                "STORM_RECORDS": records.url,
                "STORM_ROOT": self.root,
                "STORM_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
                "STORM_CONNECT_TIMEOUT": str(CONNECT_TIMEOUT),
                "STORM_MAX_WAIT": str(MAX_WAIT),
                "ZOOKEEPER_HOSTS": self.proxy.hosts,
                "STORM_GATE": "1" if self.gate else "0",
                "PYTHONPATH": os.pathsep.join([str(ROOT_OF_TESTS), str(PROJECT), *filter(None, sys.path)]),
            }
            self.workers += [StormWorker(number, broker, self.name, environment) for number in numbers]
            queues = [Queue(name, routing_key=name, queue_arguments=arguments) for name in names]
            self.senders[broker] = Sender(broker, url, options[broker], queues)
            self._stack.callback(self.senders[broker].close)
        for worker in self.workers:
            self._stack.callback(worker.process.close)
            worker.process.launch()
        for worker in self.workers:
            worker.process.wait_ready()
            worker.last_main = worker.main

    # Looking.

    def unfinished_messages(self) -> dict[str, int]:
        """Return how many messages each broker has, delivered ones too."""
        found: dict[str, int] = {}
        keys = [key for key in self.broker.scan_iter(f"{self.name}*") if self.broker.type(key) == "list"]
        found[REDIS] = sum(self.broker.llen(key) for key in keys) + self.broker.hlen("unacked")
        listed = self.rabbitmq.list_messages()
        found[RABBITMQ] = sum(count for queue, count in listed.items() if queue.startswith(self.name))
        return found

    def ask(self, worker: StormWorker, command: str, timeout: float = 20.0) -> Any:
        """Return a worker's reply, ``None`` if there is none in time."""
        sender = self.senders[worker.broker]
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(*sender.losses):
                inspect = sender.app.control.inspect(destination=[worker.hostname], timeout=3.0, limit=1)
                answers: Any = inspect._request(command)
                if answers:
                    return answers.get(worker.hostname)
            # A connection that is cut repeatedly fails at once, and each inspection is an event for the worker.
            time.sleep(0.5)
            if time.monotonic() > deadline:
                self.note("silent", worker=worker.number, stack=worker.stack())
                return None

    def descriptors(self, worker: StormWorker, state: dict[str, Any]) -> Counter[str]:
        """Return how many descriptors of each kind a worker has, by names that are the same for all workers."""
        broker = self.redis if worker.broker == REDIS else self.rabbitmq
        ports = {broker.port: "broker", self.records_port: "records", self.proxy_port: "zookeeper"}
        names = {f"tcp to {port}": name for port, name in ports.items()}
        found: Counter[str] = Counter()
        for what, count in state["descriptors"].items():
            found[names.get(what, what)] += count
        return found

    # The workers.

    def restart(self, worker: StormWorker, *, warm: bool) -> None:
        """End a worker by a warm shutdown or at once, and start it again."""
        if worker.process.is_running():
            main = worker.main
            if warm:
                self.note("stopping", main=main)
                worker.process.signal(signal.SIGTERM)
                if worker.process.wait(FAREWELL) is None:
                    self.note("farewell_too_long", main=main, worker=worker.number, stack=worker.stack())
            else:
                self.note("killed", main=main)
            worker.process.kill()
            self.note("gone", main=main)
        self.start(worker)

    def supervise(self, worker: StormWorker) -> None:
        """Start a worker again that has ended by itself, like a supervisor."""
        if not worker.process.is_running():
            log = worker.process.log_tail(200)
            traceback = log[max(log.rfind("Traceback (most recent call last)"), 0) :]
            self.note("ended", worker=worker.number, traceback=traceback.splitlines()[:60])
            self.note("gone", main=worker.last_main)
            self.start(worker)

    def start(self, worker: StormWorker) -> None:
        """Start a worker that does not run."""
        worker.shrunk = 0
        for _ in range(3):
            with contextlib.suppress(StartError):
                worker.process.start()
                break
        else:
            worker.process.start()
        worker.last_main = worker.main

    def held_nodes(self) -> Iterator[str]:
        """List the nodes of contenders that are in the tree."""
        from kazoo.client import KazooClient
        from kazoo.exceptions import NoNodeError

        client = KazooClient(hosts=self.zookeeper.hosts)
        client.start(20)
        try:
            folders = [self.root]
            while folders:
                path = folders.pop()
                try:
                    children = client.get_children(path)
                    stat = client.exists(path)
                except NoNodeError:
                    continue
                if stat is not None and stat.ephemeralOwner:
                    yield f"{path} {client.get(path)[0][:300]!r}"
                folders += [f"{path}/{child}" for child in children]
        finally:
            client.stop()
            client.close()

    def watches(self) -> list[str]:
        """List the watched paths of the storm's tree."""
        return [line.strip() for line in self.zookeeper.command("wchp").splitlines() if line.startswith(self.root)]
