"""The journal of a worker about its messages and connection, and its reply to an inspection."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import logging
import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.signals import (
    task_failure,
    task_postrun,
    task_received,
    task_revoked,
    worker_init,
    worker_process_init,
)
from celery.worker import state
from celery.worker.control import inspect_command
from kombu import Producer
from kombu.message import Message

from django_zklock.signals import acquired
from tests.chaos.history import write

from .app import app
from .tasks import message

# Interval in seconds at which a worker's event loop writes that it runs.
BEAT_INTERVAL = 1.0

# The worker's main process, also in the children.
_main: list[int] = []


def of_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the message of these headers, like :func:`message`."""
    return {
        "id": headers["id"],
        "retries": headers.get("retries") or 0,
        "conflicts": headers.get("zklock_conflicts") or 0,
    }


class Witness(bootsteps.StartStopStep):
    """Writes when the worker gets and loses its connection for tasks."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, _consumer: Any) -> None:
        """Called at each connection."""
        write("connected", main=os.getpid())

    def stop(self, _consumer: Any) -> None:
        """Called when a connection is lost, and when the worker ends."""
        write("disconnected", main=os.getpid())

    def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
        """Called at each connection; Celery ends the timer with the connection."""
        hub.call_repeatedly(BEAT_INTERVAL, partial(write, "beat", main=os.getpid()))


app.steps["consumer"].add(Witness)


@worker_init.connect
def begin_main(**_: Any) -> None:
    _main[:] = [os.getpid()]
    write("main", main=os.getpid(), worker=int(os.environ["CHAOS_WORKER"]))
    _witness_acknowledgements()
    _witness_publications()
    _witness_jobs()
    logging.getLogger("django_zklock.celery").addFilter(note_returns)


def note_returns(record: logging.LogRecord) -> bool:
    """Write which messages the gate returns for want of a slot."""
    if record.msg.startswith("event=given_back") and isinstance(record.args, tuple) and "no_slot" in record.args:
        write("no_slot", id=record.args[1], main=os.getpid())
    return True


def _witness_jobs() -> None:
    apply = BasePool.apply_async

    def apply_noted(self: BasePool, *args: Any, **kwargs: Any) -> Any:
        # From here on a request belongs to the pool, which may keep it in its own queue.
        write("handed_over", id=kwargs.get("correlation_id"), main=os.getpid())
        return apply(self, *args, **kwargs)

    patched: Any = BasePool
    patched.apply_async = apply_noted


def _witness_acknowledgements() -> None:
    acknowledge, reject = Message.ack, Message.reject

    def ack(self: Message, multiple: bool = False) -> None:
        acknowledge(self, multiple)
        if "id" in self.headers:
            write("ack", main=os.getpid(), **of_headers(self.headers))

    def reject_noted(self: Message, requeue: bool = False) -> None:
        if "id" in self.headers:
            write("reject", main=os.getpid(), requeue=requeue, **of_headers(self.headers))
        reject(self, requeue)

    Message.ack, Message.reject = ack, reject_noted  # type: ignore[method-assign]


def _witness_publications() -> None:
    publish = Producer._publish
    signature = inspect.signature(publish)

    def publish_noted(self: Producer, *args: Any, **kwargs: Any) -> Any:
        # Each attempt may succeed.
        headers = signature.bind(self, *args, **kwargs).arguments["headers"]
        if headers and "id" in headers:
            write("attempt", **of_headers(headers))
        return publish(self, *args, **kwargs)

    patched: Any = Producer
    patched._publish = publish_noted


@worker_process_init.connect
def begin_child(**_: Any) -> None:
    write("child", main=_main[0])
    # Celery's own signal for the main process is SIGUSR1.
    faulthandler.register(signal.SIGUSR2, all_threads=True)


@task_received.connect
def note_received(request: Any = None, **_: Any) -> None:
    headers = request.request_dict
    write("received", main=os.getpid(), redelivered=request.delivery_info["redelivered"], **of_headers(headers))


@task_revoked.connect
def note_revoked(request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
    write("revoked", id=request.id, terminated=terminated, expired=expired)


@task_failure.connect
def note_failure(task_id: str = "", exception: BaseException | None = None, **_: Any) -> None:
    if os.getpid() == _main[0]:
        write("failed", id=task_id, error=type(exception).__name__, text=str(exception))


@task_postrun.connect
def note_done(task_id: str = "", state: str = "", retval: Any = None, **_: Any) -> None:
    error = isinstance(retval, BaseException)
    write(
        "finished", state=state, error=type(retval).__name__ if error else None, main=_main[0],
        text=str(retval) if error else "", result=None if error else retval, **message(),
    )  # fmt: skip


def note_acquired(held: Any = None, key: str = "", **_: Any) -> None:
    # Right after the last check of the lock before the body.
    write("acquired", key=key, lost=held.lost, node=held.node)


acquired.connect(note_acquired, weak=False)


@inspect_command()
def chaos_state(state: Any, **_: Any) -> dict[str, Any]:
    """Return figures of this worker that must be the same before the faults and after them."""
    # Cycles that Celery and billiard leave are not leaks.
    gc.collect()
    consumer = state.consumer
    semaphore = consumer.controller.semaphore
    gate = getattr(consumer, "zklock_gate", None)
    return {
        "gate": gate.as_dict() if gate is not None else None,
        "prefetch": consumer.qos.value,
        "initial_prefetch": consumer.initial_prefetch_count,
        "processes": consumer.pool.num_processes,
        "free_slots": semaphore.value if semaphore is not None else None,
        "slots": semaphore.initial_value if semaphore is not None else None,
        "reserved": _count("reserved_requests"),
        "active": _count("active_requests"),
        "scheduled": _count("scheduled_requests"),
        "requests": _count("requests"),
        "jobs": len(consumer.pool._pool._cache),
        "descriptors": dict(_descriptors()),
        # The thread of the log ends when there is nothing to write.
        "threads": sorted(thread.name for thread in threading.enumerate() if thread.name != "zklock-log"),
    }


@inspect_command()
def chaos_jobs(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Return what the pool of processes knows of each job that it has, and whether the loop reads that process."""
    consumer = state.consumer
    pool = consumer.pool._pool
    found = []
    for job in list(pool._cache.values()):
        process = job._write_to or job._scheduled_for
        found.append({
            "job": job._job, "task": job.correlation_id, "accepted": job._accepted, "pid": job._worker_pid,
            "written_to": process and process.pid,
            "is_alive": bool(process and process._is_alive()),
            "is_busy": bool(process and process.inqW_fd in pool._busy_workers),
            "is_known": bool(process and pool._fileno_to_outq.get(process.outqR_fd) is process),
            "reader": str(process and consumer.hub.readers.get(process.outqR_fd)),
        })  # fmt: skip
    return found


def _count(name: str) -> int | None:
    known = getattr(state, name, None)
    return None if known is None else len(known)


def _descriptors() -> Counter[str]:
    """Count the descriptors of this process by kind, connections by the port at the other end."""
    peers: dict[str, str] = {}
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, _, peer, _, _, _, _, _, _, inode, *_ = line.split()
        peers[f"socket:[{inode}]"] = f"tcp to {int(peer.rpartition(':')[2], 16)}"
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:  # the folder's own
            continue
        if target.startswith("/"):
            # The names of files differ from start to start.
            target = "file"
        found[peers.get(target, target.partition(":[")[0])] += 1
    return found
