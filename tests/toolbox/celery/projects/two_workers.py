"""Two workers in one process, as Celery's fixtures for tests start them; prints as JSON what their gates say."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django
from celery import Celery
from celery.contrib.testing.worker import start_worker

from tests.toolbox.timing import scaled

TIMEOUT = scaled(40)


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def waiting_keys(app: Celery) -> list[str]:
    """Return the keys of the tasks that wait at the gate of an app's worker."""
    host = f"{app.main}@here"
    inspect: Any = app.control.inspect(destination=[host], timeout=scaled(2), limit=1)
    replies: dict[str, list[dict[str, str]]] = inspect._request("zklocks") or {}
    return [each["key"] for each in replies.get(host, [])]


def main(key: str) -> None:
    """Let a task wait at each worker, ask the workers, and let the tasks run."""
    django.setup()
    from django_zklock import current_lock, zk_lock, zk_locked

    def held_key() -> str | None:
        held = current_lock()
        return held.key if held else None

    # What is in memory is shared by all apps of the process, but for the queues.
    apps = [Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
            for name in ("first", "second")]  # fmt: skip
    for app in apps:
        app.conf.update(task_default_queue=app.main, zklock_gate=os.environ["WORKSHOP_GATE"] == "1")
        zk_locked(f"{key}:{app.main}")(app.task(name=f"{app.main}.task")(held_key))
    options: dict[str, Any] = {"pool": "threads", "perform_ping_check": False, "shutdown_timeout": 30}
    waiting: dict[str, list[str]] = {}
    with (
        start_worker(apps[0], hostname="first@here", **options),
        start_worker(apps[1], hostname="second@here", **options),
    ):
        with zk_lock(f"{key}:first"), zk_lock(f"{key}:second"):
            results = {app.main: app.tasks[f"{app.main}.task"].delay() for app in apps}
            if os.environ["WORKSHOP_GATE"] == "1":
                waiting = {app.main: wait_until(partial(waiting_keys, app)) for app in apps}
        ran = {name: result.get(timeout=TIMEOUT) for name, result in results.items()}
    left = ""
    if os.environ["WORKSHOP_GATE"] == "1":
        first, task = apps[0], apps[0].tasks["first.task"]
        with zk_lock(f"{key}:first"), start_worker(first, hostname="first@here", **options):
            result = task.delay()
            wait_until(partial(waiting_keys, first))
        # A task that still waited would have had the lock before.
        with zk_lock(f"{key}:first"):
            left = result.state
    sys.stdout.write(json.dumps({"waiting": waiting, "ran": ran, "left": left}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
