"""Workers of two brokers, the senders of their tasks, and what can happen to them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from tests.chaos.cluster import Cluster
from tests.chaos.history import FOLDER, write
from tests.chaos.nemesis import Act, Fault, Kind, again
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.worker import Worker
from tests.toolbox.processes.process import StartError
from tests.toolbox.processes.project import PROJECT
from tests.toolbox.timing import scaled

from .plan import BROKERS, RABBITMQ, REDIS, Send, draw, make_queue

ROOT_OF_TESTS = Path(__file__).resolve().parents[3]

SLOTS = 2
WORKERS_A_BROKER = 2
# Tasks a second, beside bursts.
RATE = 6.0
SESSION_TIMEOUT = 4.0
CONNECT_TIMEOUT = 5.0
# Seconds after which Redis delivers an unacknowledged message again, and the interval of a worker's checks for that.
VISIBILITY_TIMEOUT = 20.0
RESTORE_INTERVAL = 2
# Seconds for which the gate may keep a waiting message.
MAX_WAIT = VISIBILITY_TIMEOUT / 2
# A warm shutdown waits for running tasks, and these may wait for ZooKeeper.
FAREWELL = scaled(60)
# Seconds for a worker to write its stack, and the number of useful frames.
STACK_TIMEOUT = scaled(3)
MAX_FRAMES = 15
# Seconds until all tasks have ended, until nothing is left, and for the tasks of a probe.
SETTLE_TIMEOUT = scaled(240)
REMAINS_TIMEOUT = scaled(60)
PROBE_TIMEOUT = scaled(60)
# Interval of the inspections of a worker during the storm, and the limit for its reply, in seconds.
WATCH_INTERVAL, ANSWER_TIMEOUT = 2.0, 12.0
# Celery ends a process of the pool only when it is idle.
RESIZE_TIMEOUT = scaled(60)
# Between two cuts of one fault, and between two kills, in seconds.
CUT_INTERVAL, KILL_INTERVAL = 0.6, 0.3
# Figures that are the same whenever a worker is idle.
_COMPARED = (
    "processes", "free_slots", "slots", "reserved", "active", "scheduled", "requests",
    "jobs", "threads",
)  # fmt: skip
# Celery and redis-py open these when they need them, and keep them: the numbers differ between workers. A connection
# that a broker has reset is in no table of the kernel, and kept until it is used.
_MORE_DESCRIPTORS = {"broker": 8, "socket": 2, "anon_inode": 4}
# billiard keeps the pipes of a process that the pool has given up.
_PIPES_OF_A_PROCESS = 6
# Descriptors that billiard may leave of children that were killed while they started.
_PIPES_OF_THE_KILLED = 2


def names() -> list[str]:
    """Return the names of the workers, which their links to ZooKeeper have too."""
    return [f"{broker} worker {number}" for broker in BROKERS for number in range(WORKERS_A_BROKER)]


class ChaosWorker:
    """One worker, which is started again when it has ended; ``guard`` separates faults of one worker."""

    def __init__(self, name: str, number: int, broker: str, queue: str, environment: dict[str, str]) -> None:
        self.name = name
        self.number = number
        self.broker = broker
        self.own_queue = f"{queue}-{number}"
        self.guard = threading.RLock()
        self.process = Worker(
            app="tests.chaos.workers.app",
            concurrency=SLOTS,
            queues=[queue, self.own_queue],
            environment={**environment, "CHAOS_WORKER": str(number)},
        )
        self.process.stop_timeout = FAREWELL
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
        self.app = Celery(f"sender-{broker}", broker=url, set_as_current=False)
        self.app.conf.update(broker_transport_options=options, task_queues=queues)
        connection = self.app.connection_for_write()
        # The errors of a lost connection, of this broker's library and of Celery.
        self.losses: tuple[type[BaseException], ...] = (
            *connection.connection_errors, *connection.channel_errors, OperationalError, OSError,
        )  # fmt: skip

    def send(self, name: str, args: list[Any], queue: str, **options: Any) -> str:
        """Send a task and return its id; each attempt is noted, because it may have succeeded."""
        task_id = str(uuid.uuid4())
        while True:
            began = time.monotonic()
            write("publish", at=began, id=task_id, retries=0, conflicts=0)
            try:
                self.app.send_task(name, args, task_id=task_id, queue=queue, **options)
            except self.losses as error:
                write("unsent", id=task_id, error=repr(error))
                continue
            write("published", id=task_id, retries=0, conflicts=0)
            return task_id


class Workers:
    """All that belongs to Celery in a season: brokers, workers, senders."""

    def __init__(
        self, cluster: Cluster, *, seed: str, seconds: float, journal: Path, root: str, gate: bool, quorum: bool
    ) -> None:
        self._cluster = cluster
        self._seed = seed
        self._seconds = seconds
        self._journal = journal
        self._root = root
        self._gate = gate
        self._quorum = quorum
        self._stack = contextlib.ExitStack()
        self.name = f"chaos-{uuid.uuid4().hex[:8]}"
        self.all: dict[str, ChaosWorker] = {}
        self._senders: dict[str, Sender] = {}
        self._before: dict[str, dict[str, Any]] = {}
        self._sent: list[str] = []
        self._errors: list[str] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    # The beginning.

    def start(self) -> None:
        """Start all of it, let each worker load and lose once what it needs, and begin to send tasks."""
        self._start_servers()
        self._warm_up()
        write("sends", gate=self._gate, quorum=self._quorum, workers=len(self.all))
        for work, name in ((self._send_all, "sender"), (self._watch, "watcher")):
            thread = threading.Thread(target=self._noting_errors, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _noting_errors(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told at the end
            self._errors.append(f"{threading.current_thread().name}: {error!r}")

    def _start_servers(self) -> None:
        start = self._stack.enter_context
        self._redis, records = start(Redis()), start(Redis())
        self._rabbitmq = start(RabbitMQ())
        self._records_port = records.port
        self._broker = redis.Redis.from_url(self._redis.url, decode_responses=True)
        self._stack.callback(self._broker.close)
        self._results = Celery("results", backend=records.url, set_as_current=False)
        self._stack.callback(self._results.close)
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
        for broker, url in ((REDIS, self._redis.url), (RABBITMQ, self._rabbitmq.url)):
            arguments: dict[str, Any] = {}
            exchange = "direct"
            if broker == RABBITMQ and self._quorum:
                # RabbitMQ delays messages itself, which come by way of a topic exchange. There are no priorities.
                arguments, exchange = {"x-queue-type": "quorum"}, "topic"
            elif broker == RABBITMQ:
                arguments = {"x-max-priority": 10}
            mine = [(number, name) for number, name in enumerate(names()) if name.startswith(broker)]
            queues = [self.name, *(f"{self.name}-{number}" for number, _ in mine)]
            for number, name in mine:
                environment = {
                    "DJANGO_SETTINGS_MODULE": "tests.chaos.workers.settings",
                    "CELERY_BROKER_URL": url,
                    "TESTPROJECT_QUEUE": self.name,
                    FOLDER: str(self._journal),
                    "CHAOS_QUEUES": ",".join(queues),
                    "CHAOS_QUEUE_ARGUMENTS": json.dumps(arguments),
                    "CHAOS_EXCHANGE": exchange,
                    "CHAOS_TRANSPORT": json.dumps(options[broker]),
                    "CHAOS_RECORDS": records.url,
                    "CHAOS_ROOT": self._root,
                    "CHAOS_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
                    "CHAOS_CONNECT_TIMEOUT": str(CONNECT_TIMEOUT),
                    "CHAOS_MAX_WAIT": str(MAX_WAIT),
                    "ZOOKEEPER_HOSTS": self._cluster.hosts(name),
                    "CHAOS_GATE": "1" if self._gate else "0",
                    "PYTHONPATH": os.pathsep.join([str(ROOT_OF_TESTS), str(PROJECT), *filter(None, sys.path)]),
                }
                self.all[name] = ChaosWorker(name, number, broker, self.name, environment)
            listed = [make_queue(name, exchange, arguments) for name in queues]
            self._senders[broker] = Sender(broker, url, options[broker], listed)
            self._stack.callback(self._senders[broker].app.close)
        for worker in self.all.values():
            self._stack.callback(worker.process.close)
            worker.process.launch()
        for worker in self.all.values():
            worker.process.wait_ready()
            worker.last_main = worker.main

    def _warm_up(self) -> None:
        """Let each worker load and connect what it needs and lose its connection once, and store its state then."""
        self._probe()
        for worker in self.all.values():
            # The main process itself stores the expiry.
            self._senders[worker.broker].send("chaos.meet", ["", 0], worker.own_queue, expires=-1.0)
        self._close_connections_to_redis()
        self._rabbitmq.close_connections()
        self._probe()
        deadline = time.monotonic() + PROBE_TIMEOUT
        while any(self._left().values()) and time.monotonic() < deadline:
            # A task has stored its result before its worker counts it as ended.
            time.sleep(0.1)
        for worker in self.all.values():
            # It makes a connection to send its first reply.
            self._ask(worker, "chaos_state")
            self._before[worker.name] = self._ask(worker, "chaos_state")

    # The tasks.

    def _send_all(self) -> None:
        began = time.monotonic()
        sends, revocations = list(draw(self._seed, self._seconds, rate=RATE)), list[tuple[float, str, Send]]()
        while sends or revocations:
            now = time.monotonic() - began
            if revocations and revocations[0][0] <= now:
                _, task, send = revocations.pop(0)
                self._revoke(task, send)
            elif sends and sends[0].at <= now:
                send = sends.pop(0)
                task = self._send(send)
                if send.revoked is not None:
                    revocations.append((now + send.revoked, task, send))
                    revocations.sort(key=lambda each: each[0])
            else:
                time.sleep(0.005)

    def _send(self, send: Send) -> str:
        options = {"countdown": send.countdown, "expires": send.expires, "priority": send.priority}
        task = self._senders[send.broker].send(
            send.task,
            [list(send.keys), send.lasts, send.failures],
            self.name,
            **{name: value for name, value in options.items() if value is not None},
        )
        write("send", id=task, send=asdict(send))
        self._sent.append(task)
        return task

    def _revoke(self, task: str, send: Send) -> None:
        write("terminating" if send.terminate else "revoking", id=task)
        try:
            self._senders[send.broker].app.control.revoke(task, terminate=send.terminate, signal="SIGKILL")
        except Exception as error:  # noqa: BLE001 - a revocation may be lost
            write("not_revoked", id=task, error=repr(error))

    def _watch(self) -> None:
        """Inspect each worker in turn, unless a fault prevents a reply; a silent one writes its stack to the log."""
        for worker in itertools.cycle(self.all.values()):
            if self._over.wait(WATCH_INTERVAL):
                return
            if worker.guard.acquire(blocking=False):
                try:
                    self._supervise(worker)
                    self._ask(worker, "chaos_state", ANSWER_TIMEOUT)
                finally:
                    worker.guard.release()

    def _ask(self, worker: ChaosWorker, command: str, timeout: float = 20.0) -> Any:
        """Return a worker's reply, ``None`` if there is none in time."""
        sender = self._senders[worker.broker]
        deadline = time.monotonic() + scaled(timeout)
        while True:
            with contextlib.suppress(*sender.losses):
                node = worker.process.node_name
                inspect = sender.app.control.inspect(destination=[node], timeout=scaled(3), limit=1)
                answers: Any = inspect._request(command)
                if answers:
                    return answers.get(node)
            # A connection that is cut repeatedly fails at once, and each inspection is an event for the worker.
            time.sleep(0.5)
            if time.monotonic() > deadline:
                write("silent", worker=worker.number, stack=worker.stack())
                return None

    # The processes.

    def _restart(self, worker: ChaosWorker, *, warm: bool) -> None:
        """End a worker by a warm shutdown or at once, and start it again."""
        if worker.process.is_running():
            main = worker.main
            if warm:
                write("stopping", main=main)
                worker.process.signal(signal.SIGTERM)
                if worker.process.wait(FAREWELL) is None:
                    write("farewell_too_long", main=main, worker=worker.number, stack=worker.stack())
            else:
                write("worker_killed", main=main)
            worker.process.kill()
            write("worker_gone", main=main)
        self._start(worker)

    def _supervise(self, worker: ChaosWorker) -> None:
        """Start a worker again that has ended by itself, like a supervisor."""
        if not worker.process.is_running():
            log = worker.process.log_tail(200)
            traceback = log[max(log.rfind("Traceback (most recent call last)"), 0) :]
            write("ended", worker=worker.number, traceback=traceback.splitlines()[:30])
            write("worker_gone", main=worker.last_main)
            self._start(worker)

    def _start(self, worker: ChaosWorker) -> None:
        worker.shrunk = 0
        for _ in range(3):
            with contextlib.suppress(StartError):
                worker.process.start()
                break
        else:
            worker.process.start()
        worker.last_main = worker.main

    # What can happen to them.

    def kinds(self, session: float) -> dict[str, Kind]:
        """Return the faults by name."""
        names_ = list(self.all)

        def of_worker(act: Act, weight: float, longest: float) -> Kind:
            return Kind(act=act, weight=weight, victims=names_, longest=longest)

        return {
            "redis cut": Kind(act=self._cut_redis, weight=4, victims=[REDIS], longest=4.0),
            "rabbitmq cut": Kind(act=self._cut_rabbitmq, weight=2, victims=[RABBITMQ], longest=4.0),
            "main stopped": of_worker(self._stop_main, 4, 2.5 * session),
            "worker stopped": of_worker(self._stop_worker, 2, 2.5 * session),
            "child killed": of_worker(self._kill_child, 6, 4.0),
            "pool grown": of_worker(self._grow, 3, 6.0),
            "warm restart": of_worker(self._restart_warm, 2, 0.0),
            "cold restart": of_worker(self._restart_cold, 2, 0.0),
        }

    def _cut_redis(self, _fault: Fault) -> contextlib.AbstractContextManager[None]:
        return again(lambda _: self._cut(REDIS, self._close_connections_to_redis), CUT_INTERVAL)

    def _cut_rabbitmq(self, _fault: Fault) -> contextlib.AbstractContextManager[None]:
        return again(lambda _: self._cut(RABBITMQ, self._rabbitmq.close_connections), CUT_INTERVAL)

    def _cut(self, broker: str, cut: Callable[[], None]) -> None:
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The program that asks RabbitMQ for it takes long on a busy machine.
            cut()
        write("cut", at=began, broker=broker, until=time.monotonic())

    def _close_connections_to_redis(self) -> None:
        own = self._broker.client_id()
        for client in self._broker.client_list():
            # The sender's connections are cut too.
            if int(client["id"]) != own:
                with contextlib.suppress(ResponseError):  # it has ended meanwhile
                    self._broker.client_kill_filter(_id=client["id"])

    @contextlib.contextmanager
    def _stop_main(self, fault: Fault) -> Iterator[None]:
        worker = self.all[fault.victim]
        with worker.guard:
            worker.process.signal(signal.SIGSTOP)
            yield
            worker.process.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _stop_worker(self, fault: Fault) -> Iterator[None]:
        worker = self.all[fault.victim]
        with worker.guard:
            worker.process.signal(signal.SIGSTOP, group=True)
            yield
            worker.process.resume()

    @contextlib.contextmanager
    def _kill_child(self, fault: Fault) -> Iterator[None]:
        worker, first = self.all[fault.victim], fault.dice.randrange(16)

        def kill(turn: int) -> None:
            children = worker.children() if worker.process.is_running() else []
            if children:
                victim = children[(first + turn) % len(children)]
                write("child_killed", main=worker.main, child=victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)

        with worker.guard, again(kill, KILL_INTERVAL):
            yield

    @contextlib.contextmanager
    def _grow(self, fault: Fault) -> Iterator[None]:
        worker = self.all[fault.victim]
        with worker.guard:
            grown = worker.process.is_running() and self._resize(worker, SLOTS + 1)
            yield
            if grown:
                self._resize(worker, SLOTS)

    def _resize(self, worker: ChaosWorker, slots: int) -> bool:
        """Let the pool of ``worker`` grow or shrink to ``slots``, and return whether it has."""
        sender = self._senders[worker.broker]
        deadline = time.monotonic() + RESIZE_TIMEOUT
        while time.monotonic() < deadline and worker.process.is_running():
            # A reply may be lost with its connection, so the pool is inspected each time.
            state = self._ask(worker, "chaos_state", 5.0)
            if state is not None and state["processes"] == slots:
                return True
            if state is not None:
                command = "pool_grow" if state["processes"] < slots else "pool_shrink"
                answer: Any = None
                with contextlib.suppress(*sender.losses):
                    answer = sender.app.control.broadcast(
                        command,
                        arguments={"n": 1},
                        destination=[worker.process.node_name],
                        reply=True,
                        timeout=scaled(3),
                        limit=1,
                    )
                worker.shrunk += command == "pool_shrink"
                write(command, worker=worker.number, answer=answer)
            time.sleep(0.2)
        return False

    @contextlib.contextmanager
    def _restart_warm(self, fault: Fault) -> Iterator[None]:
        with self.all[fault.victim].guard:
            self._restart(self.all[fault.victim], warm=True)
            yield

    @contextlib.contextmanager
    def _restart_cold(self, fault: Fault) -> Iterator[None]:
        with self.all[fault.victim].guard:
            self._restart(self.all[fault.victim], warm=False)
            yield

    # The end.

    def settle(self) -> list[str]:
        """Wait until the brokers have no messages and the workers are idle, and return what is wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for worker in self.all.values():
            with worker.guard:
                self._supervise(worker)
                if not self._resize(worker, SLOTS):
                    self._errors.append(f"the pool of {worker.name} does not come to {SLOTS} processes")
        deadline, quiet = time.monotonic() + SETTLE_TIMEOUT, 0
        while quiet < 2:
            left = self._left()
            quiet = 0 if any(left.values()) else quiet + 1
            if time.monotonic() > deadline:
                self._errors.append(f"the workers do not settle: {left}")
                self._errors += self._describe(left)
                break
            time.sleep(1.0)
        write("settled")
        # A worker that was restarted last may not have had a lock, and so has fewer threads than before.
        self._probe()
        return self._errors

    def _describe(self, left: Collection[str]) -> Iterator[str]:
        """Say what the pools of these workers know of their jobs, and let their children write their stacks."""
        for worker in self.all.values():
            if worker.name in left:
                yield f"the jobs of {worker.name}: {self._ask(worker, 'chaos_jobs')}"
                for child in worker.children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGUSR2)

    def _left(self) -> dict[str, Any]:
        for worker in self.all.values():
            state = self._ask(worker, "chaos_state")
            if state is None:
                return {worker.name: "does not answer"}
            names_ = ("reserved", "active", "scheduled", "requests", "jobs")
            busy = {name: state[name] for name in names_ if state[name]}
            if busy:
                return {worker.name: busy}
        return self._unfinished_messages()

    def _unfinished_messages(self) -> dict[str, int]:
        """Return how many messages each broker has, delivered ones too."""
        found: dict[str, int] = {}
        keys = [key for key in self._broker.scan_iter(f"{self.name}*") if self._broker.type(key) == "list"]
        found[REDIS] = sum(self._broker.llen(key) for key in keys) + self._broker.hlen("unacked")
        listed = self._rabbitmq.list_messages()
        # Those of RabbitMQ's delays have the messages of all queues.
        mine = (self.name, "celery_delayed")
        found[RABBITMQ] = sum(count for queue, count in listed.items() if queue.startswith(mine))
        return found

    def _probe(self) -> None:
        """Check that each worker runs as many tasks at once as it has slots, with locks and without."""
        for name in ("chaos.meet", "chaos.meet_locked"):
            sent: list[tuple[ChaosWorker, str]] = []
            for worker in self.all.values():
                place = f"meet:{uuid.uuid4()}"
                for _ in range(SLOTS):
                    args = [place, SLOTS] if name == "chaos.meet" else [f"probe-{uuid.uuid4()}", place, SLOTS]
                    sent.append((worker, self._senders[worker.broker].send(name, args, worker.own_queue)))
            deadline = time.monotonic() + PROBE_TIMEOUT
            for worker, task in sent:
                while (meta := self._meta(task))["status"] not in {"SUCCESS", "FAILURE"}:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.02)
                if meta["status"] != "SUCCESS" or meta["result"] is not True:
                    self._errors.append(f"{name} of {worker.name}: {meta}")

    def end(self) -> list[str]:
        """Write down how each task has ended; return the workers that do not have their state from before."""
        deadline = time.monotonic() + REMAINS_TIMEOUT
        while (found := self._remains()) and time.monotonic() < deadline:
            time.sleep(1.0)
        for task in self._sent:
            write("stored", id=task, status=self._meta(task)["status"])
        for name, log in self.logs().items():
            failed = sorted(set(re.findall(rb"event=(?:check|step)_failed.*", log)))
            found += [f"{name} has logged {line.decode()}" for line in failed]
        return found

    def _remains(self) -> list[str]:
        found: list[str] = []
        for worker in self.all.values():
            before, now = self._before[worker.name], self._ask(worker, "chaos_state")
            if now is None:
                found.append(f"{worker.name} does not answer")
                continue
            found += [
                f"{worker.name}: {what} was {before[what]} and is {now[what]}"
                for what in _COMPARED
                if before[what] != now[what]
            ]
            found += [f"{worker.name}: {wrong}" for wrong in _wrong_counts(before, now)]
            allowed = _MORE_DESCRIPTORS | {"pipe": _PIPES_OF_A_PROCESS * worker.shrunk + _PIPES_OF_THE_KILLED}
            had, has = (self._descriptors(worker, state) for state in (before, now))
            if any(count > had[what] + allowed.get(what, 0) for what, count in has.items()):
                found.append(f"{worker.name}: descriptors were {had} and are {has}")
        return found

    def _descriptors(self, worker: ChaosWorker, state: dict[str, Any]) -> Counter[str]:
        """Return how many descriptors of each kind a worker has, by names that are the same for all workers."""
        broker = self._redis if worker.broker == REDIS else self._rabbitmq
        ports = {str(broker.port): "broker", str(self._records_port): "records"}
        ports |= {host.rpartition(":")[2]: "zookeeper" for host in self._cluster.hosts(worker.name).split(",")}
        found: Counter[str] = Counter()
        for what, count in state["descriptors"].items():
            found[ports.get(what.removeprefix("tcp to "), what)] += count
        return found

    def _meta(self, task: str) -> dict[str, Any]:
        meta: dict[str, Any] = self._results.backend.get_task_meta(task, cache=False)
        return meta

    def logs(self) -> dict[str, bytes]:
        """Return what each worker has written."""
        return {worker.name.replace(" ", "-"): worker.process.log.read_bytes() for worker in self.all.values()}

    def close(self) -> None:
        """End all of it."""
        self._stack.close()


def _wrong_counts(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Return what an idle worker has counted wrong."""
    # After a reconnect Celery counts up again from a lower number, and loses countdowns, also without the gate: what it
    # has added for each is cut off at its maximum, and subtracted nevertheless when the countdown is over, down to 1.
    if not 1 <= now["prefetch"] <= before["prefetch"]:
        yield f"the prefetch count was {before['prefetch']} and is {now['prefetch']}"
    gate = now["gate"]
    if gate is not None:
        if gate["prefetch"] != now["prefetch"]:
            yield f"the broker may deliver {gate['prefetch']} messages, and Celery asks for {now['prefetch']}"
        yield from (f"the gate has {gate[what]} {what}" for what in ("waiting", "running", "scoreboard") if gate[what])
