"""What of a project's Celery concerns its locks: tasks and their time limits, the broker, the workers.

For the doctor. Nothing is changed, and no worker is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery.app import app_or_default

from django_zklock.calls import LockedCall
from django_zklock.contrib.celery.gate.gate import VISIBILITY_TIMEOUT
from django_zklock.contrib.celery.gate.step import is_wanted
from django_zklock.contrib.celery.task import outermost_lock
from django_zklock.findings import Finding
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.errand import Errand

# How long workers have to answer, and how long all that may take with a broker that is away, in seconds.
ANSWER = 1.0
PATIENCE = 2.0
# So many names are told, and how many more there are.
NAMED = 10


class LockedTask(NamedTuple):
    """A task of the project that takes a lock of the alias in question."""

    task: Any
    call: LockedCall

    @property
    def limit(self) -> float | None:
        """After how many seconds the task is ended, or asked to end."""
        # Early versions of Celery do not hand the app's limits on to its tasks.
        conf = self.task.app.conf
        return (
            self.task.time_limit
            or self.task.soft_time_limit
            or conf.task_time_limit
            or conf.task_soft_time_limit
            or None
        )

    @property
    def policy(self) -> str:
        """What it does on a conflict."""
        chosen = self.call.on_conflict
        name = chosen if isinstance(chosen, str) else getattr(chosen, "__qualname__", type(chosen).__name__)
        return name if getattr(self.task, "zklock_gate", True) else f"{name}, without the gate"


def examine(alias: str, session_timeout: float) -> Iterator[Finding]:
    """Judge the current app, if the project has one, for the locks of ``alias``; takes some 2 seconds at most."""
    app: Any = app_or_default()
    # Celery makes one up where there is none.
    if app.main == "default" and not app.set_as_current:
        return
    yield _gate(app)
    try:
        # As a worker does when it starts.
        app.loader.import_default_modules()
        tasks = _locked_tasks(app, alias)
        visibility = _visibility_timeout(app)
    except Exception as error:  # noqa: BLE001 - it is the project's code that runs here
        yield Finding(
            id="celery.tasks",
            level="error",
            subject=app.main or "app",
            found=f"the tasks cannot be imported, or the broker's library: {error!r}",
            advice="A worker would not start either: correct that first.",
        )
        return
    yield _tasks(tasks, alias)
    yield _time_limits(tasks)
    yield _visibility(tasks, visibility)
    yield _max_wait(app, visibility)
    yield _session_timeout(session_timeout, tasks, visibility)
    yield from _workers(app, tasks)


def _locked_tasks(app: Any, alias: str) -> list[LockedTask]:
    found = ((task, outermost_lock(task)[0]) for _name, task in sorted(app.tasks.items()))
    return [LockedTask(task, call) for task, call in found if call is not None and call.using == alias]


def _visibility_timeout(app: Any) -> float | None:
    """Give the seconds after which the broker takes back a message that was not acknowledged, if there are any."""
    chosen = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    transport = app.connection_for_read().get_transport_cls()
    default = VISIBILITY_TIMEOUT if transport.driver_type == "amqp" else None
    timeout = chosen or getattr(getattr(transport, "Channel", None), "visibility_timeout", default)
    return float(timeout) if timeout else None


def _gate(app: Any) -> Finding:
    finding = partial(Finding, id="celery.gate", subject=f"app {app.main}")
    if is_wanted(app):
        return finding(level="ok", found="tasks wait for their locks at the gate")
    return finding(
        level="info",
        found="the gate is switched off: each task that waits takes a slot of its worker",
        advice="Leave out CELERY_ZKLOCK_GATE = False, and ZKLOCK_GATE=0 in the environment.",
    )


def _tasks(tasks: Sequence[LockedTask], alias: str) -> Finding:
    policies = _listing([f"{each.task.name} ({each.policy})" for each in tasks])
    return Finding(
        id="celery.tasks",
        level="ok",
        subject=f"{len(tasks)} with a lock",
        found=policies or f"no task takes a lock of {alias} as the first thing it does",
    )


def _time_limits(tasks: Sequence[LockedTask]) -> Finding:
    finding = partial(Finding, id="celery.time-limits")
    unlimited = [each.task.name for each in tasks if each.limit is None]
    if unlimited:
        return finding(
            level="info",
            subject=f"{len(unlimited)} without",
            found=f"may hold their locks for ever: {_listing(unlimited)}",
            advice="Give them a time_limit, or set CELERY_TASK_TIME_LIMIT.",
        )
    return finding(level="ok", subject="time limits", found="no task holds its lock without a limit")


def _visibility(tasks: Sequence[LockedTask], visibility: float | None) -> Finding:
    finding = partial(Finding, id="celery.visibility-timeout")
    if visibility is None:
        return finding(level="ok", subject="none", found="the broker takes no message back by time")
    subject = f"{visibility:g} s"
    late = [each.task.name for each in tasks if each.task.acks_late and (each.limit or 0) > visibility]
    if late:
        return finding(
            level="warning",
            subject=subject,
            found=f"with acks_late these may run longer, and are delivered again while they run: {_listing(late)}",
            advice="Give them a shorter time_limit, or the broker a longer visibility timeout (RabbitMQ: "
            "consumer_timeout).",
        )
    return finding(level="ok", subject=subject, found="no task with acks_late has a time limit that is longer")


def _max_wait(app: Any, visibility: float | None) -> Finding:
    finding = partial(Finding, id="celery.max-wait")
    chosen = app.conf.get("zklock_gate_max_wait")
    if chosen is None:
        return finding(
            level="ok",
            subject="CELERY_ZKLOCK_GATE_MAX_WAIT",
            found="is not set: tasks wait at the gate for half of the visibility timeout",
        )
    subject = f"CELERY_ZKLOCK_GATE_MAX_WAIT {float(chosen):g} s"
    if visibility is not None and chosen >= visibility:
        return finding(
            level="warning",
            subject=subject,
            found=f"a task that waits is delivered again after {visibility:g} s, and then waits twice",
            advice="Choose half of the visibility timeout, or leave it out.",
        )
    return finding(level="ok", subject=subject, found="the broker waits longer")


def _session_timeout(session_timeout: float, tasks: Sequence[LockedTask], visibility: float | None) -> Finding:
    finding = partial(Finding, id="celery.session-timeout", subject=f"session timeout {session_timeout:g} s")
    if visibility is not None and session_timeout >= visibility:
        return finding(
            level="warning",
            found=f"the broker delivers a task again after {visibility:g} s, when the lock of a worker that has died "
            "may not be free yet",
            advice="Choose a shorter SESSION_TIMEOUT, or a longer visibility timeout.",
        )
    shorter = [each.task.name for each in tasks if each.limit is not None and each.limit < session_timeout]
    if shorter:
        return finding(
            level="info",
            found=f"when a host dies, the locks of these stay longer than the tasks may run: {_listing(shorter)}",
            advice="Choose a shorter SESSION_TIMEOUT if others cannot wait that long.",
        )
    return finding(level="ok", found="no time limit of a task is shorter")


def _workers(app: Any, tasks: Sequence[LockedTask]) -> Iterator[Finding]:
    finding = partial(Finding, id="celery.broker", subject="broker")
    try:
        replies = Errand(partial(_ask_workers, app)).result(Deadline.after(PATIENCE))
    except Exception as error:  # noqa: BLE001 - each transport has errors of its own
        yield finding(
            level="warning",
            found=f"no worker could be asked: {error}",
            advice="Look at CELERY_BROKER_URL, and whether the broker runs.",
        )
        return
    yield finding(level="ok", found="can be reached")
    if not replies:
        yield _nobody()
    for name, facts in sorted(replies.items()):
        yield _worker(app, name, facts, tasks)


def _nobody() -> Finding:
    return Finding(
        id="celery.workers",
        level="info",
        subject="no worker",
        found=f"none has answered within {ANSWER:g} s",
        advice="Start one; one with the solo pool cannot answer while a task runs.",
    )


def _ask_workers(app: Any) -> dict[str, Any]:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)
        replies = app.control.broadcast("zklock_gate", reply=True, timeout=ANSWER, connection=connection)
    return {name: facts for reply in replies or () for name, facts in reply.items()}


def _worker(app: Any, name: str, facts: Any, tasks: Sequence[LockedTask]) -> Finding:
    finding = partial(Finding, id="celery.workers", subject=name)
    if not isinstance(facts, dict) or "gate" not in facts:
        return finding(
            level="warning",
            found="does not know of the gate: its tasks wait for locks in their slots",
            advice="Put django_zklock into INSTALLED_APPS of its project, or update it there, and restart the worker.",
        )
    pool = facts.get("pool")
    if not facts["gate"] and is_wanted(app):
        return finding(
            level="warning",
            found=f"has no gate in its {pool} pool: its tasks wait for locks in their slots",
            advice="Put django_zklock into INSTALLED_APPS of its project, leave out ZKLOCK_GATE=0, and use prefork "
            "where children are forked, threads, gevent, eventlet or solo.",
        )
    terminated = [each.task.name for each in tasks if each.call.on_lost == "terminate"]
    if terminated and pool != "prefork":
        return finding(
            level="info",
            found=f"no task has a process of its own in its {pool} pool, so that on_lost='terminate' does as "
            f"'interrupt': {_listing(terminated)}",
            advice="Use the prefork pool for tasks that must not outlive their lock.",
        )
    gate = "the gate" if facts["gate"] else "no gate, as the app wants it"
    return finding(level="ok", found=f"has {gate}, and a {pool} pool")


def _listing(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
