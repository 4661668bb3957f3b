"""The faults of the plan: how each begins and ends in the scene."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from .plan import Fault
from .scene import SLOTS, Scene, StormWorker

# Celery ends a process of the pool only when it is idle.
RESIZE_TIMEOUT = 60.0
# Between two cuts of one fault, in seconds.
CUT_INTERVAL = 0.6
# Between two kills of one fault, in seconds.
KILL_INTERVAL = 0.3


class Faults:
    """Runs each fault in a thread of its own; ``calm`` waits for the end of all faults."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def strike(self, fault: Fault) -> None:
        """Begin ``fault``, without waiting for its end."""
        thread = threading.Thread(target=self._run, args=(fault,), name=f"fault-{fault.what}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def cut_connections(self) -> None:
        """Cut the connections of both brokers once."""
        for what in ("redis_cut", "rabbitmq_cut"):
            self._run(Fault(at=0.0, what=what, lasts=0.0, worker=0, child=0))

    def calm(self) -> None:
        """Wait for the end of all faults, then restore the number of slots of each worker."""
        for thread in self._threads:
            thread.join()
        for worker in self._scene.workers:
            with worker.guard:
                self._scene.supervise(worker)
                if not self._resize(worker, SLOTS):
                    self.errors.append(f"the pool of worker {worker.number} does not come to {SLOTS} processes")

    def _run(self, fault: Fault) -> None:
        worker = self._scene.workers[fault.worker]
        acts: dict[str, Callable[[Fault, StormWorker], None]] = {
            "redis_cut": self._cut_redis,
            "rabbitmq_cut": self._cut_rabbitmq,
            "zookeeper_partitioned": self._partition,
            "zookeeper_frozen": self._freeze,
            "zookeeper_silent": self._silence,
            "main_stopped": self._stop_main,
            "worker_stopped": self._stop_worker,
            "child_killed": self._kill_child,
            "pool_grown": self._grow,
            "warm_restart": self._restart,
            "cold_restart": self._restart,
        }
        began = time.monotonic()
        self._scene.note("fault", at=began, fault=fault.what, lasts=fault.lasts, worker=fault.worker)
        try:
            acts[fault.what](fault, worker)
        except Exception as error:  # noqa: BLE001 - a thread's error is told at the end
            self.errors.append(f"{fault}: {error!r}")
        self._scene.note("mended", began=began, fault=fault.what, worker=fault.worker)

    def _cut_redis(self, fault: Fault, _worker: StormWorker) -> None:
        self._cut("redis", fault.lasts, self._close_connections_to_redis)

    def _cut_rabbitmq(self, fault: Fault, _worker: StormWorker) -> None:
        self._cut("rabbitmq", fault.lasts, self._scene.rabbitmq.close_connections)

    def _cut(self, broker: str, lasts: float, cut: Callable[[], None]) -> None:
        deadline = time.monotonic() + lasts
        while True:
            began = time.monotonic()
            cut()
            self._scene.note("cut", at=began, broker=broker, until=time.monotonic())
            if time.monotonic() > deadline:
                return
            time.sleep(CUT_INTERVAL)

    def _close_connections_to_redis(self) -> None:
        broker = self._scene.broker
        own = broker.client_id()
        for client in broker.client_list():
            # The sender's connections are cut too.
            if int(client["id"]) != own:
                with contextlib.suppress(ResponseError):  # it has ended meanwhile
                    broker.client_kill_filter(_id=client["id"])

    def _partition(self, fault: Fault, _worker: StormWorker) -> None:
        proxy = self._scene.proxy
        proxy.refusing = True
        proxy.cut()
        time.sleep(fault.lasts)
        proxy.refusing = False

    def _freeze(self, fault: Fault, _worker: StormWorker) -> None:
        self._scene.zookeeper.pause()
        time.sleep(fault.lasts)
        self._scene.zookeeper.resume()

    def _silence(self, fault: Fault, _worker: StormWorker) -> None:
        self._scene.proxy.pause("up", "down")
        time.sleep(fault.lasts)
        self._scene.proxy.resume()

    def _stop_main(self, fault: Fault, worker: StormWorker) -> None:
        with worker.guard:
            if not worker.process.is_running():
                return
            worker.process.signal(signal.SIGSTOP)
            time.sleep(fault.lasts)
            worker.process.signal(signal.SIGCONT)

    def _stop_worker(self, fault: Fault, worker: StormWorker) -> None:
        with worker.guard:
            if not worker.process.is_running():
                return
            worker.process.signal(signal.SIGSTOP, group=True)
            time.sleep(fault.lasts)
            worker.process.resume()

    def _kill_child(self, fault: Fault, worker: StormWorker) -> None:
        deadline = time.monotonic() + fault.lasts
        with worker.guard:
            for turn in itertools.count(fault.child):
                children = worker.children() if worker.process.is_running() else []
                if children:
                    victim = children[turn % len(children)]
                    self._scene.note("child_killed", main=worker.main, child=victim)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                if time.monotonic() > deadline:
                    return
                time.sleep(KILL_INTERVAL)

    def _grow(self, fault: Fault, worker: StormWorker) -> None:
        with worker.guard:
            if worker.process.is_running() and self._resize(worker, SLOTS + 1):
                time.sleep(fault.lasts)
                self._resize(worker, SLOTS)

    def _resize(self, worker: StormWorker, slots: int) -> bool:
        """Let the pool of ``worker`` grow or shrink to ``slots``, and return whether it has."""
        sender = self._scene.senders[worker.broker]
        deadline = time.monotonic() + RESIZE_TIMEOUT
        while time.monotonic() < deadline and worker.process.is_running():
            # A reply may be lost with its connection, so the pool is inspected each time.
            state = self._scene.ask(worker, "storm_state", 5.0)
            if state is not None and state["processes"] == slots:
                return True
            if state is not None:
                command = "pool_grow" if state["processes"] < slots else "pool_shrink"
                answer: Any = None
                with contextlib.suppress(*sender.losses):
                    answer = sender.app.control.broadcast(
                        command, arguments={"n": 1}, destination=[worker.hostname], reply=True, timeout=3.0, limit=1
                    )
                worker.shrunk += command == "pool_shrink"
                self._scene.note(command, worker=worker.number, answer=answer)
            time.sleep(0.2)
        return False

    def _restart(self, fault: Fault, worker: StormWorker) -> None:
        with worker.guard:
            self._scene.restart(worker, warm=fault.what == "warm_restart")
