"""The workers of a Celery app: whether the broker can be reached, and whether the workers have the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django_zklock.contrib.celery.gate.bootstep import is_wanted
from django_zklock.doctor.finding import Finding, abbreviate
from django_zklock.zk.waiting import DaemonCall, Deadline

# Seconds that workers have to answer.
ANSWER_TIMEOUT = 1.0
# Seconds for connecting to the broker and for the answers.
BROKER_TIMEOUT = 2.0


def examine(app: Any, terminated: Sequence[str]) -> Iterator[Finding]:
    """Examine the broker and each worker of ``app``; ``terminated`` are the tasks with ``on_lost="terminate"``."""
    finding = partial(Finding, id="celery.broker", subject="broker")
    try:
        replies = DaemonCall(partial(_query_workers, app)).result(Deadline.after(BROKER_TIMEOUT))
    except Exception as error:  # noqa: BLE001 - each transport raises its own errors
        yield finding(
            level="warning",
            found=f"the workers could not be queried: {error}",
            advice="Check CELERY_BROKER_URL, and whether the broker runs.",
        )
        return
    yield finding(level="ok", found="reachable")
    if not replies:
        yield _no_worker()
    for name, answer in sorted(replies.items()):
        yield _worker(app, name, answer, terminated)


def _query_workers(app: Any) -> dict[str, Any]:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)
        replies = app.control.broadcast("zklock_gate", reply=True, timeout=ANSWER_TIMEOUT, connection=connection)
    return {name: answer for reply in replies or () for name, answer in reply.items()}


def _no_worker() -> Finding:
    return Finding(
        id="celery.workers",
        level="info",
        subject="no worker",
        found=f"no worker answered within {ANSWER_TIMEOUT:g} s",
        advice="Start a worker. A worker with the solo pool cannot answer while a task runs.",
    )


def _worker(app: Any, name: str, answer: Any, terminated: Sequence[str]) -> Finding:
    finding = partial(Finding, id="celery.workers", subject=name)
    if not isinstance(answer, dict) or "gate" not in answer:
        return finding(
            level="warning",
            found="does not know of the gate: its tasks wait for locks in their slots",
            advice="Add django_zklock to INSTALLED_APPS of its project, or update it there, and restart the worker.",
        )
    pool = answer.get("pool")
    if not answer["gate"] and is_wanted(app) and pool != "solo":
        return finding(
            level="warning",
            found=f"has no gate in its {pool} pool: its tasks wait for locks in their slots",
            advice="Add django_zklock to INSTALLED_APPS of its project, and use the prefork pool with forked children, "
            "or threads, gevent or eventlet.",
        )
    if terminated and pool != "prefork":
        return finding(
            level="info",
            found=f"in its {pool} pool no task has its own process, so on_lost='terminate' works like 'interrupt': "
            f"{abbreviate(terminated)}",
            advice="Use the prefork pool for tasks that must not outlive their lock.",
        )
    if answer["gate"]:
        gate = "the gate"
    elif pool == "solo":
        gate = "no gate, because the solo pool runs tasks in the only thread"
    else:
        gate = "no gate, as configured"
    return finding(level="ok", found=f"has {gate}, and a {pool} pool")
