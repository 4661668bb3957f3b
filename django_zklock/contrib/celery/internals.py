"""The undocumented parts of Celery, kombu and billiard that this package uses. No other module uses one.

``tests/unit/contrib/celery/test_internals.py`` checks each of them in the installed Celery.

========================================================  ==========================================================
What is used                                              Without it
========================================================  ==========================================================
``consumer.on_task_request``                              no gate: tasks wait for their locks in their slots
``controller.semaphore``, ``process_task``                the pool's own queue gives the slots
``LaxBoundedSemaphore._waiting``                          a granted request waits behind those without a lock
``semaphore.release``, ``hub.call_soon``                  an error of a request costs another task its result
``hub.on_tick``; of the pool                              a pool that replaces its children is handed more tasks
``_all_inqueues``, ``_busy_workers``,                     than it has children, and their locks wait with them
``outbound_buffer``, ``_processes``,
``_fileno_to_inq``, ``_on_ready_counters``
``hub.consolidate_callback``, ``Pool._active_writes``     a task is written to its child one turn of the loop later
``Pool._waiting_to_start``                                a lock is released while its child starts
``QoS.callback``, ``QoS.prev``                            waiting requests use up the prefetch window
``perform_pending_operations``; ``QoS.can_consume`` of     a window of tasks in two seconds with gevent and eventlet
a virtual transport
``consumer.initial_prefetch_count``                       a worker keeps granted tasks for which it has no slots
``state.active_requests``, ``task_ready``                 no gate
``Request.__dict__``: ``on_accepted``, ``on_success``,    no gate
``on_failure``, ``on_timeout`` of one request
``Request._apply_result``, ``Pool._cache``                a job that Celery drops keeps its lock until the worker ends
``Request._on_reject``                                    with Redis messages that go back together change their order
``Consumer._active_tags`` of kombu                        a message of a topic exchange is rejected, not published
``QoS.restore_unacked`` of kombu's Redis transport        waiting tasks are delivered in reverse order after a shutdown
``Channel.visibility_timeout`` of a virtual transport     half an hour is assumed
``worker.wait_for_soft_shutdown``                         waiting tasks keep their places during a soft shutdown
``celery._state.get_current_task``, ``_task_stack``       no task and no ticket is found: tasks lock for themselves
``celery._state._get_active_apps``,                       a lock above ``@shared_task`` fails when it is decorated
``connect_on_app_finalize``, ``PromiseProxy.__then__``
``Task._orig_run`` and the closure of autoretry           autoretry retries conflicts; a warning says so
``Scheduler._heap``, ``_do_sync``                         an entry that another beat has sent keeps back the others
``celery.app.base`` around a body (``pydantic=True``)     such a task waits in its slot; the doctor says so
``Request.time_limits``, ``controller.time_limit``        a node does not show the time limit of its task
``pool.forking_enable``, ``is_green``                     the gate does not know the pool
========================================================  ==========================================================
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from celery._state import (  # type: ignore[attr-defined]
    _get_active_apps,
    _task_stack,
    connect_on_app_finalize,
    get_current_task,
)
from celery.app.task import Context
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.pools import connections

from django_zklock.contrib.celery.headers import own
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from celery.worker.request import Request

logger = logging.getLogger("django_zklock.celery")

# Seconds, for a broker without a visibility timeout. RabbitMQ waits 30 minutes for an acknowledgement.
VISIBILITY_TIMEOUT = 1800.0
# Seconds for which a broker may take to confirm a message; Celery's loop stands still meanwhile.
CONFIRM_TIMEOUT = 5.0
# Seconds for which Celery's loop of green pools sleeps until there is a message, and between two looks in its place.
DRAIN_TIMEOUT = 2.0
ROOM_INTERVAL = 0.005
# The largest number that AMQP can encode, in two bytes.
MAX_PREFETCH = 65535

# What Celery writes before the routing key of a message that RabbitMQ is to delay: the seconds, in binary digits.
_DELAY = re.compile(r"^(?:[01]\.){28}")
# Of the pool: what its children do.
_OF_CHILDREN = (
    "_all_inqueues", "_busy_workers", "outbound_buffer", "_processes", "_fileno_to_inq", "_on_ready_counters",
)  # fmt: skip
_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id")


class _OfWorkers:
    """A module that is imported when a worker uses it: a web process does not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


state, bootsteps = _OfWorkers("celery.worker.state"), _OfWorkers("celery.bootsteps")
prefork, thread = _OfWorkers("celery.concurrency.prefork"), _OfWorkers("celery.concurrency.thread")


# Tasks.


# Returns the task that runs here, in a worker or not; `None` if there is none. It may be a proxy, see `registered`.
current_task: Callable[[], Any] = get_current_task
# Calls a function with each app when it makes its tasks, also with apps that come later.
on_app_finalize: Callable[[Callable[[Any], object]], object] = connect_on_app_finalize


def keep_headers(facts: dict[str, Any]) -> None:
    """Make the headers that a retry sends, before something is added that no message can contain.

    ``Context`` makes them of all that it does not know, where there are none.
    """
    if facts.get("headers") is None:
        facts["headers"] = Context(facts).headers or {}


def registered(task: Any) -> Any:
    """Return the task of this name in its app, where a worker's main process finds it.

    An agent may let a proxy run in its place, with a body of its own.
    """
    return task.app.tasks.get(task.name, task)


def delivered_task() -> tuple[Any, Any] | None:
    """Return the task that a worker runs here and its request, whatever tasks its body has called or applied."""
    for task in reversed(_task_stack.stack):
        # A task that calls itself has several.
        for request in reversed(task.request_stack.stack):
            if request.id and not (request.called_directly or request.is_eager):
                return registered(task), request
    return None


def finalized_apps() -> list[Any]:
    """Return the apps that have made their tasks."""
    return [app for app in _get_active_apps() if app.finalized]


def when_evaluated(proxy: Any, call: Callable[[], object]) -> None:
    """Call ``call`` when the task that ``proxy`` stands for is made, or now if it is."""
    proxy.__then__(call)


def body_attribute(task: Any) -> str:
    """Return the name of the attribute with the body of ``task``: inside of autoretry's wrapper, if it has one."""
    return "_orig_run" if has_autoretry(task) else "run"


def has_autoretry(task: Any) -> bool:
    """Return whether Celery retries the task when it fails with certain errors."""
    return hasattr(task, "_orig_run")


def wraps_for_pydantic(function: Any) -> bool:
    """Return whether Celery has put ``function`` around a body whose arguments it converts (``pydantic=True``)."""
    return _is_defined_in(function, "celery.app.base")


def autoretry_options(wrappers: Iterable[Any]) -> tuple[Any, dict[str, Any]]:
    """Return autoretry's wrapper of a body, and the cells of its options by name: Celery reads them once."""
    run = next((each for each in wrappers if _is_defined_in(each, "celery.app.autoretry")), None)
    return run, dict(zip(run.__code__.co_freevars, run.__closure__, strict=True)) if run is not None else {}


def _is_defined_in(function: Any, module: str) -> bool:
    """Return whether ``module`` contains the code of ``function``; ``functools.wraps`` changes ``__module__``."""
    return bool(getattr(function, "__globals__", {}).get("__name__") == module)


# Beat.


def plan_again(scheduler: Any) -> None:
    """Let a scheduler make its plan again, at its next tick."""
    scheduler._heap = None  # noqa: SLF001


def store(scheduler: Any) -> None:
    """Let a scheduler store when its entries were sent."""
    scheduler._do_sync()  # noqa: SLF001


# Pools.


def is_prefork(pool: Any) -> bool:
    """Return whether tasks run in child processes of this one."""
    return isinstance(pool, prefork.TaskPool)


def can_have_gate(pool: Any) -> bool:
    """Return whether tasks in ``pool`` can use a lock that this process holds.

    A solo pool has no gate: its only thread runs the tasks. A consumer without a pool runs none.
    """
    if pool is None:
        return False
    if is_prefork(pool):
        # A child that was not forked has no scoreboard.
        return bool(pool.forking_enable)
    return bool(pool.is_green) or isinstance(pool, thread.TaskPool)


def has_lost_job(pool: Any, request: Request) -> bool:
    """Return whether the prefork ``pool`` was given the job of ``request`` and has it no more, begun or not."""
    if "_apply_result" not in vars(request):
        return False
    # A weak reference: only billiard's cache keeps the job alive. There is none if the pool has refused the job.
    reference: Any = vars(request)["_apply_result"]
    job = reference() if reference is not None else None
    # A pool that is stopped has none.
    jobs = getattr(pool._pool, "_cache", ())  # noqa: SLF001 - the pool drops jobs without a callback
    return job is None or job._job not in jobs  # noqa: SLF001


def forget(request: Request) -> None:
    """Let Celery count ``request`` as one that has ended; the next delivery of its task may be here already."""
    known = state.requests.get(request.id)
    state.task_ready(request)
    if known is not None and known is not request:
        state.requests[request.id] = known


def is_active(request: Request) -> bool:
    """Return whether the task runs, according to Celery."""
    return request in state.active_requests


def is_forgotten(request: Request) -> bool:
    """Return whether the worker's remote control does not know the task any more, which may run nevertheless.

    Celery forgets it with the first ``terminate``, and when the broker was lost before the task began.
    """
    return state.requests.get(request.id) is not request


def time_limit(request: Request, controller: Any) -> float | None:
    """Return the seconds after which the pool kills the child that runs ``request``; ``None`` without a limit."""
    limit, _soft = request.time_limits
    return limit or request.task.time_limit or controller.time_limit or None


def take_callbacks(request: Request, ours: Any) -> dict[str, Callable[..., Any]]:
    """Let the pool report to ``ours`` instead of ``request``; return what it reported to."""
    theirs = {name: getattr(request, name) for name in _CALLBACKS}
    vars(request).update({name: getattr(ours, name) for name in _CALLBACKS})
    return theirs


def drop_callbacks(request: Request) -> None:
    """Let the pool report to ``request`` again."""
    for name in _CALLBACKS:
        vars(request).pop(name, None)


@contextmanager
def current_request(request: Request) -> Iterator[None]:
    """Let the task's own `request` be what it is in a slot: the key may be made from it."""
    stack = request.task.request_stack
    stack.push(Context(request.request_dict, args=request.args, called_directly=False, kwargs=request.kwargs))
    try:
        yield
    finally:
        stack.pop()


# The worker.


def put_into(consumer: Any, *, on_request: Callable[[Request], None], stop_soon: Callable[[], object]) -> None:
    """Let ``consumer`` call the two, before Celery's strategies copy the first."""
    consumer.on_task_request = on_request
    # Since Celery 5.5 the worker sleeps in a signal handler during a soft shutdown, and its loop does not run.
    if (sleep := getattr(consumer.controller, "wait_for_soft_shutdown", None)) is not None:

        def leave_and_sleep() -> None:
            stop_soon()
            sleep()

        consumer.controller.wait_for_soft_shutdown = leave_and_sleep


def is_ending(controller: Any) -> bool:
    """Return whether the worker ends, and does not only connect to its broker again."""
    return controller.blueprint.state in {bootsteps.CLOSE, bootsteps.TERMINATE}


def send_event(events: Any, kind: str, /, **facts: Any) -> None:
    """Send an event of a group that remote control does not know: it is sent if those of tasks are."""
    if events.groups:
        # Remote control enables the groups that Celery knows.
        (events.groups.add if "task" in events.groups else events.groups.discard)("zklock")
    events.send(kind, **facts)


# Slots.


class SemaphoreSlots:
    """The slots of a prefork pool in a worker with an event loop, which Celery's semaphore counts.

    A pool that replaces its children after some tasks returns a slot twice: with the last result of a child, and when
    the child has ended. Celery would hand over more tasks than there are children, and the lock of such a task would be
    held while the task waits for the body of another one. So the semaphore counts the children there. One that has yet
    to start counts too: meanwhile the task asks for its lock. One that has done the last task of its limit does not
    count, and gets no other one.

    The pool returns a slot before it stores the result of the task that had it, and the request that gets the slot goes
    into the pool meanwhile. An error of that request would lose the result, its slot and all later results of the
    child: without a trace if it is an ``OSError`` or a ``KeyError``, which the pool takes for its own.

    Used in the gate's loop. ``count_in_hand`` returns how many slots the gate has.
    """

    def __init__(self, controller: Any, count_in_hand: Callable[[], int]) -> None:
        self._controller = controller
        self._count_in_hand = count_in_hand
        # Slots that were returned while one is being returned.
        self._unused = 0
        self._returns = False
        self._replaces_children = bool(controller.max_tasks_per_child or controller.max_memory_per_child)
        self._release = controller.semaphore.release
        controller.semaphore.release = self._hand_on
        if self._replaces_children:
            # A slot is not always returned when a child has no task any more, but the loop turns.
            controller.hub.on_tick.add(self._on_tick)

    @property
    def size(self) -> int:
        """How many requests may ask ahead of their turn: one for each slot, unless a slot may have to start a child."""
        return 0 if self._replaces_children else int(self._controller.semaphore.initial_value)

    def first(self, count: int) -> list[Callable[[], object]]:
        """Return the next calls that wait for a slot, at most ``count``."""
        return [call for call, *_arguments in islice(getattr(self._controller.semaphore, "_waiting", ()), count)]

    def acquire(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a slot is free, after all requests that wait for one."""
        self._controller.semaphore.acquire(call)

    def acquire_next(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a slot is free, before all other requests that wait for one."""
        semaphore = self._controller.semaphore
        waiting = getattr(semaphore, "_waiting", None)
        if semaphore.value > 0 or waiting is None:
            semaphore.acquire(call)
        else:
            waiting.appendleft((call, (), {}))

    def release(self) -> None:
        """Return a slot that was not used.

        The semaphore calls the next one that waits for it, which returns it in this call if its request has ended. Of
        many that were revoked together each call would be inside the one before, so a loop returns such slots.
        """
        self._unused += 1
        if self._returns:
            return
        self._returns = True
        try:
            while self._unused:
                self._unused -= 1
                self._controller.semaphore.release()
        finally:
            self._returns = False

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``, which hands a task to the pool, and let a child have the task at once.

        The pool itself would write it at the next turn of the loop, and a turn costs as much as the gate's part in a
        task. Only where the loop runs: in the main thread.
        """
        call()
        hub, pool = self._controller.hub, self._controller.pool._pool  # noqa: SLF001
        try:
            write = hub.consolidate_callback
            idle = list(pool._all_inqueues - pool._busy_workers - pool._active_writes)  # noqa: SLF001
            to = idle[: len(pool.outbound_buffer)]
        except AttributeError:
            return
        if to and threading.current_thread() is threading.main_thread():
            try:
                write(to)
            except Exception as error:  # noqa: BLE001 - the loop's, which would have called it
                hub.call_soon(partial(_raise, error))

    @property
    def _knows_children(self) -> bool:
        pool = self._controller.pool._pool  # noqa: SLF001 - no other record of what a child does
        return pool is None or all(hasattr(pool, name) for name in _OF_CHILDREN)

    def _on_tick(self) -> None:
        if self._controller.semaphore._waiting and self._knows_children:  # noqa: SLF001
            self._adjust()

    def _hand_on(self) -> None:
        """Hand a slot that was returned on to the next request, whose errors are not those of the task before."""
        hub = self._controller.hub
        try:
            if self._replaces_children:
                self._adjust()
            else:
                self._release()
        except hub.propagate_errors as error:
            # The loop connects to the broker again when the result is stored.
            hub.call_soon(partial(_raise, error))
        except Exception:
            logger.exception("event=not_begun consequence=slot_lost")

    def _adjust(self) -> None:
        """Let the semaphore have a slot for each child without a task."""
        semaphore = self._controller.semaphore
        if not self._knows_children:
            self._release()
            return
        self._mark_ending()
        while semaphore._waiting and self._count_children() > 0:  # noqa: SLF001
            self._release()
        semaphore.value = self._count_children()

    def _mark_ending(self) -> None:
        """Let Celery write no task to a child that has done its last one and has not ended yet.

        A child that has used too much memory looks at that after its result; the worker cannot know it before.
        """
        pool, limit = self._controller.pool._pool, self._controller.max_tasks_per_child  # noqa: SLF001
        if pool is None or not limit:
            return
        for fd in pool._all_inqueues - pool._busy_workers:  # noqa: SLF001
            process = pool._fileno_to_inq.get(fd)  # noqa: SLF001
            counter = pool._on_ready_counters.get(process.pid) if process is not None else None  # noqa: SLF001
            if counter is not None and counter.value >= limit:
                pool._busy_workers.add(fd)  # noqa: SLF001

    def _count_children(self) -> int:
        """Return how many children have no task, or will have none when they have started."""
        pool = self._controller.pool._pool  # noqa: SLF001
        if pool is None:  # it has stopped
            return 0
        free = pool._processes - len(pool._busy_workers) - len(pool.outbound_buffer)  # noqa: SLF001
        return max(0, free - self._count_in_hand()) if free > 0 else 0


class UncountedSlots:
    """The slots of a pool that does not report free ones, as if there always were one: it has a queue, or it blocks."""

    # No request may ask ahead of its turn.
    size = 0

    def __init__(self, *, blocks: bool) -> None:
        self._blocks = blocks

    def first(self, _count: int) -> list[Callable[[], object]]:
        return []

    def acquire(self, call: Callable[[], object]) -> None:
        call()

    acquire_next = acquire

    def release(self) -> None: ...

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if that blocks while the pool is full."""
        if self._blocks:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()


def _raise(error: Exception) -> None:
    raise error


def starts_children(pool: Any) -> bool:
    """Return whether a child of the prefork ``pool`` cannot take a task yet; Celery kills one that never starts."""
    return bool(getattr(pool._pool, "_waiting_to_start", None))  # noqa: SLF001 - no other record


def slots_of(controller: Any, count_in_hand: Callable[[], int]) -> SemaphoreSlots | UncountedSlots:
    """Return the slots of the pool: those that Celery's semaphore counts, if it does."""
    counts = getattr(controller, "_process_task_sem", None)
    if counts is not None and controller.process_task == counts:
        return SemaphoreSlots(controller, count_in_hand)
    if is_prefork(controller.pool):
        return UncountedSlots(blocks=not controller.use_eventloop and bool(controller.pool_putlocks))
    return UncountedSlots(blocks=bool(controller.pool.is_green))


# The prefetch window.


class PrefetchWindow:
    """The maximum of unacknowledged messages in this worker: Celery's number plus what ``count`` returns.

    Only Celery changes its own number, by countdowns, reconnects and remote control. The other one is added when the
    number is sent, so the two cannot drift apart.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._qos: Any = None

    def attach(self, qos: Any) -> None:
        """Use the counter of a new connection to the broker."""
        send = qos.callback
        qos.callback = lambda prefetch_count: send(prefetch_count=self._widened(prefetch_count))
        self._qos = qos
        self.refresh()

    def refresh(self) -> None:
        """Let Celery's loop send its number: it does as soon as that differs from the number in `prev`."""
        if self._qos is not None:
            self._qos.prev = None

    @property
    def size(self) -> int:
        """The number of messages that the broker may deliver; 0 means no limit."""
        return self._widened(self._qos.value) if self._qos is not None else 0

    def _widened(self, count: int) -> int:
        return min(count + self._count(), MAX_PREFETCH) if count else 0


def await_room(consumer: Any) -> None:
    """Wait until Celery's loop would ask the broker for another message, for at most :data:`DRAIN_TIMEOUT` seconds.

    For the thread of that loop alone, where there is no event loop, as with gevent and eventlet. It asks a virtual
    transport for messages, and sleeps so long if the window is full at that moment, whatever becomes of its messages
    meanwhile. Without the gate the pool would take the message at once, or keep the loop waiting for a greenlet.
    """
    can_consume = getattr(getattr(consumer.task_consumer.channel, "qos", None), "can_consume", None)
    end = monotonic() + DRAIN_TIMEOUT
    while can_consume is not None:
        # What the loop does before it asks.
        if consumer.qos.prev != consumer.qos.value:
            consumer.qos.update()
        consumer.perform_pending_operations()
        if can_consume() or monotonic() >= end:
            return
        time.sleep(ROOM_INTERVAL)


def own_prefetch_count(consumer: Any) -> int:
    """Return how many messages Celery itself would let this worker keep, without countdowns; 0 means no limit."""
    return int(getattr(consumer, "initial_prefetch_count", 0))


# Messages.


def visibility_timeout(consumer: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = consumer.app.conf.broker_transport_options or {}
    channel = getattr(consumer.task_consumer, "channel", None)
    timeout = options.get("visibility_timeout") or getattr(channel, "visibility_timeout", None)
    return float(timeout or VISIBILITY_TIMEOUT)


def is_better_published(consumer: Any, request: Request) -> bool:
    """Return whether to publish the message of ``request`` again, instead of rejecting it.

    RabbitMQ drops a rejected message whose time to live is over, counted from the first time in the queue; a policy may
    set it, which no consumer sees. Its quorum queues also drop what was rejected too often (20 times by default since
    4.0), and queues of SQS with a redrive policy move it to another queue. A virtual transport sends a rejected message
    to all queues that are bound to its exchange.
    """
    driver = consumer.connection.transport.driver_type if consumer.connection else None
    if driver in {"amqp", "sqs"}:
        return True
    exchange = (request.message.delivery_info or {}).get("exchange")
    bound = _bound(consumer, exchange)
    return bool(exchange) and (not bound or any(queue.exchange.type != "direct" for queue in bound))


def _has_quorum_queue(app: Any) -> bool:
    queues = app.amqp.queues
    return any((queues[name].queue_arguments or {}).get("x-queue-type") == "quorum" for name in queues)


def queue_of(consumer: Any, request: Request) -> str | None:
    """Return the name of the queue of the message of ``request``, if it can be found out."""
    facts = request.message.delivery_info or {}
    if not facts.get("exchange"):
        name: str | None = facts.get("routing_key")
        return name
    tag, active = facts.get("consumer_tag"), getattr(consumer.task_consumer, "_active_tags", {})
    found = [name for name, each in active.items() if each == tag]
    if not found:
        # A virtual transport does not report it.
        queues = _bound(consumer, facts["exchange"]) or list(consumer.task_consumer.queues)
        if len(queues) > 1:
            queues = [queue for queue in queues if queue.routing_key == facts.get("routing_key")]
        found = [queue.name for queue in queues]
    return found[0] if len(found) == 1 else None


def _bound(consumer: Any, exchange: str | None) -> list[Any]:
    """Return the queues of this worker that are bound to ``exchange``, according to the settings."""
    queues = consumer.task_consumer.queues
    return [queue for queue in queues if queue.exchange is not None and queue.exchange.name == exchange]


def shortest_delay(app: Any) -> float:
    """Return the seconds that the delay of a message must have at least.

    RabbitMQ delays the messages of an app with a quorum queue itself, since Celery 5.5, and counts whole seconds; less
    than one is an error. Elsewhere a worker has the message during its delay.
    """
    driver = app.connection_for_write().transport.driver_type
    return 1.0 if driver == "amqp" and _has_quorum_queue(app) else 0.0


def signature_again(task: Any, request: Any, *, countdown: float, headers: dict[str, Any]) -> Any:
    """Return the signature that sends ``request`` of ``task`` to its queue again, with these ``headers`` alone."""
    again = task.signature_from_request(request, countdown=countdown, retries=request.retries, headers=headers)
    options, app = again.options, task.app
    is_delayed = bool(shortest_delay(app))
    queue = _queue_of_options(app, options, is_delayed=is_delayed)
    if queue is None:
        return again
    if is_delayed and queue.exchange.type != "direct":
        # Celery lets RabbitMQ delay a message on its way to a queue, and takes the default one if none is named.
        options["queue"] = queue.name
    else:
        # Each queue that is bound to the exchange has had a message of its own. A queue has its name as key in the
        # default exchange, which cannot be declared.
        default = Exchange("", type="direct", delivery_mode=queue.exchange.delivery_mode)
        to = Queue(queue.name, default, routing_key=queue.name)
        options.update(queue=to, exchange="", routing_key=queue.name, declare=())
    return again


def _queue_of_options(app: Any, options: dict[str, Any], *, is_delayed: bool) -> Any:
    """Return the queue of a worker that the message with the exchange and key of ``options`` came from, or ``None``.

    If it came from one of several with matching keys, it is the first of them.
    """
    if (name := options.get("queue")) is not None:
        # It was sent to the queue itself.
        return app.amqp.queues.get(name)
    consumed = [queue for queue in app.amqp.queues.consume_from.values() if queue.exchange is not None]
    # What RabbitMQ has delayed before has that delay in its routing key, and another exchange.
    exchange, key = options.get("exchange"), _DELAY.sub("", options.get("routing_key") or "", count=1)
    found = [queue for queue in consumed if queue.exchange.name == exchange]
    if is_delayed:
        found = found or consumed
    elif app.connection_for_write().transport.driver_type != "amqp":
        # A fanout of Redis does not come from a list that a worker reads.
        found = [queue for queue in found if queue.exchange.type != "fanout"]
    exact = (queue for queue in found if queue.routing_key == key)
    matching = (queue for queue in found if _is_for(queue, key) or (is_delayed and len(consumed) == 1))
    return next(exact, None) or next(matching, None)


def _is_for(queue: Any, key: str) -> bool:
    """Return whether the exchange of ``queue`` gives it messages with this ``key``."""
    kind = queue.exchange.type
    if kind != "topic":
        return bool(kind == "fanout" or queue.routing_key == key)
    # `*` is one word, and `#` any number of them.
    words = [
        {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}.get(word, re.escape(f".{word}"))
        for word in (queue.routing_key or "").split(".")
    ]
    return re.fullmatch("".join(words), f".{key}") is not None


def give_back(request: Request) -> None:
    """Let the broker deliver the message of ``request`` again."""
    state.task_ready(request)
    if threading.current_thread() is threading.main_thread():
        # Celery leaves it to the next turn of its loop, which makes such calls in any order, and with Redis that is the
        # order in which the messages come back.
        cast("Any", request)._on_reject = request.message.reject_log_error  # noqa: SLF001
    request.reject(requeue=True)


def publish_again(request: Request, queue: str, headers: dict[str, Any], confirming: Connection | None) -> None:
    """Send the message of ``request`` to its ``queue`` again, with more ``headers``, and then acknowledge it.

    It is not sent to its exchange, from which other queues may have got the message too. Raises if the broker has not
    confirmed the new message, and acknowledges nothing then. If the worker dies between the two, the broker has both.
    """
    message = request.message
    properties = {name: message.properties[name] for name in _PROPERTIES if message.properties.get(name) is not None}
    if message.properties.get("expiration"):
        # Milliseconds in a message, seconds in publish().
        properties["expiration"] = float(message.properties["expiration"]) / 1000
    with _no_late_confirmation(confirming):
        Producer(confirming or message.channel, auto_declare=False).publish(
            message.body,
            exchange="",
            routing_key=queue,
            headers={**own(message.headers, request.id), **headers},
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            timeout=CONFIRM_TIMEOUT,
            **properties,
        )
    state.task_ready(request)
    request.acknowledge()


def confirming_connection(connection: Connection) -> Connection | None:
    """Return a connection like ``connection`` on which the broker confirms each message, or raises.

    RabbitMQ discards what a full queue refuses (``x-overflow: reject-publish``), and tells only a client that asks for
    confirmations. On the connection that consumes, a wait for one would begin the tasks that are delivered meanwhile.
    Other brokers answer each message anyway: ``None``.
    """
    if connection.transport.driver_type != "amqp":
        return None
    options = {**(connection.transport_options or {}), "confirm_publish": True, "max_retries": 1}
    # It may be idle for long, and nothing reads it then.
    return connection.clone(transport_options=options, heartbeat=0)


class ConfirmingProducer(Producer):
    """A producer that waits for a confirmation no longer than ``CONFIRM_TIMEOUT``, and does not publish again then.

    kombu takes the end of that time for a lost connection, and would publish one more message. RabbitMQ stops reading
    from producers in an alarm, and takes what they have sent when that is over.
    """

    def publish(  # type: ignore[override]  # Celery names all but the body
        self, body: Any, *, retry: bool = False, retry_policy: Any = None, **options: Any
    ) -> Any:
        publish, connection = super().publish, cast("Connection", self.connection)

        def publish_once() -> Any:
            # A connection that cannot be made has sent nothing, and is tried again.
            _ = self.channel
            try:
                return publish(body, **{**options, "timeout": CONFIRM_TIMEOUT})
            except TimeoutError as error:
                text = (
                    f"the broker has not confirmed the message with which the task comes back in "
                    f"{CONFIRM_TIMEOUT:.0f} s; it may take it later, and the task runs then"
                )
                raise OperationalError(text) from error

        if retry:
            return connection.ensure(self, publish_once, **(retry_policy or {}))()
        return publish_once()


@contextmanager
def confirming_producer(app: Any) -> Iterator[Producer | None]:
    """Yield a producer of such a connection, from kombu's pools; ``None`` where the app's own will do.

    The main process must not use it: a child that is forked shuts down the connections of inherited pools.
    """
    like = confirming_connection(app.connection_for_write())
    if like is None:
        yield None
        return
    with connections[like].acquire(block=True) as connection, _no_late_confirmation(connection):
        yield ConfirmingProducer(connection)


@contextmanager
def _no_late_confirmation(connection: Connection | None) -> Iterator[None]:
    """Close ``connection`` after an error: a confirmation that is late must not count for the next message."""
    try:
        yield
    except Exception:
        if connection is not None:
            connection.collect()
        raise


def restore_in_order(consumer: Any) -> None:
    """Restore the unacknowledged messages of a closed Redis channel in their order.

    kombu puts one message after the other at the head of the queue, the oldest first, which reverses them.
    """
    channel: Any = getattr(consumer.task_consumer, "channel", None)
    qos: Any = getattr(channel, "qos", None)
    restore, delivered = getattr(qos, "restore_by_tag", None), getattr(qos, "_delivered", None)
    if restore is None or delivered is None:
        return

    def restore_unacked(client: Any = None) -> None:
        with channel.conn_or_acquire(client) as connection:
            for tag in reversed(list(delivered)):
                restore(tag, client=connection)
        delivered.clear()

    qos.restore_unacked = restore_unacked
