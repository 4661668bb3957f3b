"""The project's Celery app, as far as its locks depend on it: tasks, time limits, the broker's limits, workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery import Task
from celery.app import app_or_default
from celery.app.trace import task_has_custom

from django_zklock import operations
from django_zklock.contrib.celery.gate.gate import is_wanted
from django_zklock.contrib.celery.internals.delivery import VISIBILITY_TIMEOUT
from django_zklock.contrib.celery.internals.sending import has_private_result
from django_zklock.contrib.celery.retry import RetryLater
from django_zklock.contrib.celery.tasks import hidden_lock, outermost_lock
from django_zklock.doctor.finding import Examination, Finding
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk.formatting import abbreviate
from django_zklock.zk.waiting import DaemonCall, Deadline

# Seconds that workers have to answer. On a broker without an event loop they look for questions once a second.
ANSWER_TIMEOUT = 2.0
# Seconds for connecting to the broker and for the answers, on a busy machine too.
BROKER_TIMEOUT = 10.0


class LockedTask(NamedTuple):
    """A task of the project with a lock of the examined alias. ``bypass`` says why it does not wait at the gate."""

    task: Any
    call: LockedCall
    bypass: str | None

    @property
    def limit(self) -> float | None:
        """The seconds after which Celery ends the task; ``None`` without a limit."""
        # Early versions of Celery do not copy the app's limits to its tasks.
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
        """Its conflict policy, as text."""
        chosen = self.call.on_conflict
        name = chosen if isinstance(chosen, str) else getattr(chosen, "__qualname__", type(chosen).__name__)
        return name if self.bypass is None else f"{name}, without the gate"

    @property
    def delay(self) -> float:
        """The longest countdown, in seconds, from its policies, its autoretry and beat."""
        policies = (self.call.on_conflict, self.call.on_unavailable)
        delays = [each.max_delay for each in policies if isinstance(each, RetryLater)]
        if getattr(self.task, "autoretry_for", ()):
            kwargs = getattr(self.task, "retry_kwargs", {})
            backoff = getattr(self.task, "retry_backoff_max", 600) if getattr(self.task, "retry_backoff", False) else 0
            delays.append(backoff or kwargs.get("countdown") or self.task.default_retry_delay)
        entries = (self.task.app.conf.beat_schedule or {}).values()
        sent = [entry.get("options") or {} for entry in entries if entry.get("task") == self.task.name]
        delays += [options.get("countdown") or 0 for options in sent]
        return max(delays, default=0)


def examine(alias: str, session_timeout: float) -> Iterator[Finding]:
    """Examine the current app, if the project has one, for the locks of ``alias``, in about 10 seconds at most."""
    app: Any = app_or_default()
    # Celery creates a default app if the project has none.
    if app.main == "default" and not app.set_as_current:
        return
    yield _gate(app)
    try:
        # Like a worker at its start.
        app.loader.import_default_modules()
        tasks = _locked_tasks(app, alias)
        visibility = _visibility_timeout(app)
        limited = _queues_with_limits(app)
    except Exception as error:  # noqa: BLE001 - the project's code runs here
        yield Examination("celery.tasks", app.main or "app").error(
            f"the tasks, or the library of the broker, cannot be imported: {error!r}",
            "Correct this first: a worker would not start either.",
        )
        return
    wait = _wait_at_gate(app, visibility)
    yield _tasks(tasks, alias)
    yield _bypass(tasks)
    yield _time_limits(tasks)
    yield _visibility(tasks, visibility, wait)
    yield _countdowns(tasks, visibility, wait)
    yield _max_wait(app, visibility)
    yield _delivery_limits(limited)
    yield _session_timeout(session_timeout, tasks, visibility)
    unique = [each for each in tasks if each.call.unique_until is not None]
    if unique:
        yield _unique(app, unique)
        yield _sent(alias)
    try:
        replies = DaemonCall(partial(_query_workers, app)).result(Deadline.after(BROKER_TIMEOUT))
    except Exception as error:  # noqa: BLE001 - each transport raises its own errors
        yield _broker(error)
    else:
        yield _broker(None)
        yield from _workers(app, replies, [each.task.name for each in tasks if each.call.on_lost == "terminate"])


def _locked_tasks(app: Any, alias: str) -> list[LockedTask]:
    found = []
    for _name, task in sorted(app.tasks.items()):
        call, _own = outermost_lock(task)
        bypass = None if getattr(task, "zklock_gate", True) else "zklock_gate=False"
        if call is None:
            call, decorator = hidden_lock(task)
            bypass = f"below {decorator}, which may change the arguments"
        if call is not None and (callable(call.using) or call.using == alias):
            found.append(LockedTask(task, call, bypass))
    return found


def _visibility_timeout(app: Any) -> float | None:
    """Return the seconds after which the broker delivers an unacknowledged message again, if there is a limit."""
    chosen = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    transport = app.connection_for_read().get_transport_cls()
    default = VISIBILITY_TIMEOUT if transport.driver_type == "amqp" else None
    timeout = chosen or getattr(getattr(transport, "Channel", None), "visibility_timeout", default)
    return float(timeout) if timeout else None


def _wait_at_gate(app: Any, visibility: float | None) -> float:
    """Return the longest time, in seconds from its delivery, that a message may wait at the gate."""
    if not is_wanted(app):
        return 0.0
    chosen = app.conf.get("zklock_gate_max_wait")
    return float(chosen) if chosen is not None else (visibility or 0.0) / 2


def _queues_with_limits(app: Any) -> list[str]:
    """Return the app's queues that limit deliveries, each with its limit if it is set."""
    if app.connection_for_read().get_transport_cls().driver_type != "amqp":
        return []
    found = []
    for name, queue in sorted(app.amqp.queues.items()):
        arguments = queue.queue_arguments or {}
        limit = arguments.get("x-delivery-limit")
        counts = limit is not None or arguments.get("x-queue-type") == "quorum"
        if counts and limit != -1 and "x-dead-letter-exchange" not in arguments:
            found.append(name if limit is None else f"{name} ({limit})")
    return found


def _gate(app: Any) -> Finding:
    examined = Examination("celery.gate", f"app {app.main}")
    if is_wanted(app):
        return examined.ok("tasks wait for their locks at the gate")
    return examined.info(
        "the gate is switched off: each waiting task occupies a slot of its worker",
        "Remove CELERY_ZKLOCK_GATE = False.",
    )


def _tasks(tasks: Sequence[LockedTask], alias: str) -> Finding:
    policies = abbreviate([f"{each.task.name} ({each.policy})" for each in tasks])
    examined = Examination("celery.tasks", f"{len(tasks)} with a lock")
    return examined.ok(policies or f"no task has a lock of {alias} as its outermost decorator")


def _bypass(tasks: Sequence[LockedTask]) -> Finding:
    reasons = [f"{each.task.name} ({each.bypass})" for each in tasks if each.bypass is not None]
    doubtful = [each.task.name for each in tasks if each.bypass is None and task_has_custom(each.task, "__call__")]
    reasons += [f"{name} (its own __call__, if that changes the arguments or the thread)" for name in doubtful]
    examined = Examination("celery.bypass", f"{len(reasons)} without the gate" if reasons else "tasks")
    if reasons:
        return examined.info(
            f"these acquire their locks in the task and occupy a slot while they wait: {abbreviate(reasons)}",
            "Put @zk_locked above the other decorators of the body.",
        )
    return examined.ok("no task bypasses the gate")


def _time_limits(tasks: Sequence[LockedTask]) -> Finding:
    unlimited = [each.task.name for each in tasks if each.limit is None]
    examined = Examination("celery.time-limits", f"{len(unlimited)} without" if unlimited else "time limits")
    if unlimited:
        return examined.info(
            f"these may hold their locks for ever: {abbreviate(unlimited)}",
            "Set their time_limit, or CELERY_TASK_TIME_LIMIT.",
        )
    return examined.ok("every task with a lock has a time limit")


def _visibility(tasks: Sequence[LockedTask], visibility: float | None, wait: float) -> Finding:
    examined = Examination("celery.visibility-timeout", "none" if visibility is None else f"{visibility:g} s")
    if visibility is None:
        return examined.ok("the broker has no visibility timeout")
    # Without the gate the whole timeout is available to the task.
    late = [
        each.task.name
        for each in tasks
        if each.task.acks_late and (each.limit or 0) > visibility - (0.0 if each.bypass else wait)
    ]
    if late:
        return examined.warning(
            f"with acks_late these may run longer than the rest of it after {wait:g} s at the gate, and are then "
            f"delivered again while they run: {abbreviate(late)}",
            "Set a shorter time_limit, a longer visibility timeout of the broker (RabbitMQ: consumer_timeout), "
            "or a smaller CELERY_ZKLOCK_GATE_MAX_WAIT.",
        )
    return examined.ok("no task with acks_late has a longer time limit")


def _countdowns(tasks: Sequence[LockedTask], visibility: float | None, wait: float) -> Finding:
    left = None if visibility is None else max(0.0, visibility - wait)
    examined = Examination("celery.countdowns", "none" if left is None else f"{left:g} s")
    if left is None:
        return examined.ok("the broker has no visibility timeout")
    late = [f"{each.task.name} ({each.delay:g} s)" for each in tasks if each.delay > left]
    if late:
        return examined.warning(
            f"the countdown of these is longer than the rest of the visibility timeout after {wait:g} s at the gate: "
            f"{abbreviate(late)}",
            "Set a shorter countdown, retry_backoff_max or RetryLater(max_delay=...), or a longer visibility timeout "
            "of the broker (RabbitMQ: consumer_timeout).",
        )
    return examined.ok("no known countdown is longer")


def _max_wait(app: Any, visibility: float | None) -> Finding:
    setting = "CELERY_ZKLOCK_GATE_MAX_WAIT"
    chosen = app.conf.get("zklock_gate_max_wait")
    examined = Examination("celery.max-wait", setting if chosen is None else f"{setting} {float(chosen):g} s")
    if chosen is None:
        return examined.ok("is not set: tasks wait at the gate for at most half of the visibility timeout")
    if visibility is not None and float(chosen) > visibility / 2:
        return examined.warning(
            f"more than half of the visibility timeout of {visibility:g} s: the rest after the wait may be too short "
            "for a countdown or for a task with acks_late, which is then delivered again",
            "Set at most half of the visibility timeout, or remove the setting.",
        )
    return examined.ok("at least the same time remains for the task itself")


def _delivery_limits(limited: Sequence[str]) -> Finding:
    examined = Examination("celery.delivery-limits", "queues")
    if limited:
        return examined.info(
            "these discard a message after too many deliveries without an acknowledgement, since RabbitMQ 4.0 by "
            f"default after 20: {abbreviate(limited)}; each shutdown and each lost connection counts as a delivery "
            "for all waiting tasks",
            "Set their x-dead-letter-exchange, or an x-delivery-limit of -1 (RabbitMQ 4).",
        )
    return examined.ok("no known queue limits deliveries")


def _session_timeout(session_timeout: float, tasks: Sequence[LockedTask], visibility: float | None) -> Finding:
    examined = Examination("celery.session-timeout", f"session timeout {session_timeout:g} s")
    if visibility is not None and session_timeout >= visibility:
        return examined.warning(
            f"the broker delivers a task again after {visibility:g} s, when the lock of a dead worker may still be "
            "held",
            "Set a shorter SESSION_TIMEOUT, or a longer visibility timeout.",
        )
    shorter = [each.task.name for each in tasks if each.limit is not None and each.limit < session_timeout]
    if shorter:
        return examined.info(
            f"when a host fails, the locks of these stay longer than the tasks may run: {abbreviate(shorter)}",
            "Set a shorter SESSION_TIMEOUT if waiters cannot wait that long.",
        )
    return examined.ok("no task has a shorter time limit")


def _unique(app: Any, unique: Sequence[LockedTask]) -> Finding:
    examined = Examination("celery.unique", f"{len(unique)} with unique_until")
    always = [
        each.task.name
        for each in unique
        if type(each.task).apply_async is not Task.apply_async
        or each.task.expires is not None
        or outermost_lock(each.task)[0] is not each.call
        or has_private_result(each.task)
    ]
    if always:
        return examined.warning(
            "each call of these is sent, because of an apply_async() of their own, a decorator above the lock, or a "
            f"result that only its sender can read (rpc://), or because they expire: {abbreviate(always)}",
            "Remove that, or unique_until.",
        )
    options = app.conf.broker_transport_options or {}
    if app.connection_for_write().transport.driver_type == "amqp" and not options.get("confirm_publish"):
        return examined.warning(
            "a message that RabbitMQ refuses, or loses on the way, keeps calls from being sent until "
            "CELERY_ZKLOCK_UNIQUE_MAX_AGE is over",
            'Set CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}.',
        )
    return examined.ok(abbreviate([each.task.name for each in unique]))


def _sent(alias: str) -> Finding:
    examined = Examination("celery.sent", "sent and not begun")
    try:
        calls = operations.sent_calls(using=alias)
    except ZkLockError as error:
        return examined.warning(f"these calls could not be read: {error}", "Correct what the other findings say.")
    stale = [f"{call.key} ({call.task})" for call in calls if call.state == "stale"]
    if stale:
        return examined.warning(
            f"{len(stale)} of {len(calls)} calls have waited for too long and may be lost: {abbreviate(stale)}",
            "Check that a worker reads their queues. The next call of each is sent.",
        )
    return examined.ok(f"{len(calls)} calls")


def _query_workers(app: Any) -> dict[str, Any]:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)
        replies = app.control.broadcast("zklock_gate", reply=True, timeout=ANSWER_TIMEOUT, connection=connection)
    return {name: answer for reply in replies or () for name, answer in reply.items()}


def _broker(error: Exception | None) -> Finding:
    examined = Examination("celery.broker", "broker")
    if error is None:
        return examined.ok("reachable")
    if isinstance(error, TimeoutError):
        found = f"the broker has not taken the question to the workers within {BROKER_TIMEOUT:g} s"
    else:
        found = f"the workers could not be queried: {error}"
    return examined.warning(found, "Check CELERY_BROKER_URL, and whether the broker runs.")


def _workers(app: Any, replies: dict[str, Any], terminated: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each worker; ``terminated`` are the tasks with ``on_lost="terminate"``."""
    for name, answer in sorted(replies.items()):
        yield _worker(app, name, answer, terminated)
    if not replies:
        yield Examination("celery.workers", "no worker").info(
            f"no worker answered within {ANSWER_TIMEOUT:g} s",
            "Start a worker. A worker with the solo pool cannot answer while a task runs.",
        )


def _finalizes_with_network(app: Any) -> bool:
    """Return whether each greenlet has a connection for results of its own, which a finalizer has to open again."""
    backend = str(app.conf.result_backend or "").partition(":")[0]
    return backend.startswith(("redis", "sentinel", "valkey")) and not app.conf.get("result_backend_thread_safe")


def _worker(app: Any, name: str, answer: Any, terminated: Sequence[str]) -> Finding:
    examined = Examination("celery.workers", name)
    if not isinstance(answer, dict) or "gate" not in answer:
        return examined.warning(
            "does not know of the gate: its tasks wait for locks in their slots",
            "Add django_zklock to INSTALLED_APPS of its project, or update it there, and restart the worker.",
        )
    pool = answer.get("pool")
    if not answer["gate"] and is_wanted(app) and pool != "solo":
        return examined.warning(
            f"has no gate in its {pool} pool: its tasks wait for locks in their slots",
            "Add django_zklock to INSTALLED_APPS of its project, and use the prefork pool with forked children, "
            "or threads, gevent or eventlet.",
        )
    if pool in {"gevent", "eventlet"} and _finalizes_with_network(app):
        return examined.warning(
            f"in its {pool} pool the garbage collector may use the network for a result of Celery in Redis, and that "
            "can stop the worker for good",
            "Set CELERY_RESULT_BACKEND_THREAD_SAFE = True.",
        )
    if terminated and pool != "prefork":
        return examined.info(
            f"in its {pool} pool no task has its own process, so on_lost='terminate' works like 'interrupt': "
            f"{abbreviate(terminated)}",
            "Use the prefork pool for tasks that must not outlive their lock.",
        )
    if answer["gate"]:
        gate = "the gate"
    elif pool == "solo":
        gate = "no gate, because the solo pool runs tasks in the only thread"
    else:
        gate = "no gate, as configured"
    return examined.ok(f"has {gate}, and a {pool} pool")
