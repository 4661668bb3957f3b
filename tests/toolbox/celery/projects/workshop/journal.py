"""Tasks that write into a journal when they begin, so that a test can count runs and read their order."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Task, current_task, shared_task

from django_zklock import current_lock, zk_lock, zk_locked
from tests.toolbox.celery.projects.workshop.app import app
from tests.toolbox.celery.projects.workshop.tasks import board, facts, stay
from tests.toolbox.timing import scaled


def write(journal: str, number: int, seconds: float = 0.0, *, alone: str = "") -> None:
    """Write an entry, and work for ``seconds``; ``alone`` names a resource that no other task may use meanwhile."""
    held = current_lock()
    together = board().incr(f"{journal}:{alone}:together") if alone else 1
    entry = {
        "number": number,
        "id": current_task.request.id,
        "token": held.token if held else None,
        "lost": held.lost if held else None,
        "together": together,
    }
    board().rpush(journal, json.dumps(entry))
    time.sleep(seconds)
    if alone:
        board().decr(f"{journal}:{alone}:together")


@shared_task
@zk_locked("{key}")
def locked(key: str, journal: str, number: int = 0, seconds: float = 0.0) -> None:
    write(journal, number, seconds, alone=key)


@shared_task
@zk_locked("{key}", mode="read")
def read(key: str, journal: str, number: int = 0, seconds: float = 0.0) -> None:
    write(journal, number, seconds)


@shared_task
@zk_locked("{key}", mode="read")
def read_and_stay(key: str, gate: str) -> None:
    stay(gate)


@shared_task
@zk_locked("{key}", timeout=scaled(3))
def bounded(key: str, journal: str, number: int = 0) -> None:
    write(journal, number)


@shared_task
@zk_locked("{key}", timeout=scaled(8))
def patient(key: str, journal: str, number: int = 0) -> None:
    write(journal, number)


@shared_task
@zk_locked("{key}", timeout=scaled(600))
def very_patient(key: str, journal: str, number: int = 0) -> None:
    write(journal, number)


@shared_task
def unlocked(journal: str, number: int = 0, seconds: float = 0.0) -> None:
    write(journal, number, seconds)


@shared_task
def lock_in_body(key: str, gate: str) -> int:
    """Acquire a lock in the body when the test says so, and return its token."""
    stay(gate)
    with zk_lock(key).acquire(scaled(20)) as held:
        return held.token


class ThreadTask(Task):  # type: ignore[type-arg]
    """A task whose body runs in a thread of its own, as with a time limit by an executor."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(self.run, *args, **options).result()


@app.task(base=ThreadTask)
@zk_locked("{key}")
def in_thread(key: str) -> dict[str, Any]:
    held = current_lock()
    assert held is not None
    return {"key": held.key, "thread": threading.current_thread() is not threading.main_thread()}


class LateThreadTask(ThreadTask):
    """The same, and the thread begins when the test says so."""

    def __call__(self, key: str, gate: str) -> Any:
        stay(gate)
        return super().__call__(key, gate)


@app.task(base=LateThreadTask)
@zk_locked("{key}")
def late_in_thread(key: str, _gate: str) -> str | None:
    held = current_lock()
    return held.key if held is not None else None


@shared_task
@zk_locked("{key}")
def report_loss(key: str, journal: str) -> dict[str, Any]:
    """Write the entry of a task whose lock may be lost before the body begins."""
    write(journal, 0)
    return facts()
