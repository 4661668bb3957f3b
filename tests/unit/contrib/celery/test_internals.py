"""The undocumented parts of Celery and kombu that are used, checked with the installed versions.

The records of the pool are checked with real workers, in ``test_gate_broker_cuts.py``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import celery._state
import pytest
from celery.local import PromiseProxy
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.request import Request
from celery.worker.worker import WorkController
from kombu import Connection, Consumer, Exchange, Queue
from kombu import pools as kombu_pools
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.common import QoS
from kombu.transport import redis

from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.gate.run import waiting_behind
from django_zklock.contrib.celery.internals import (
    MAX_PREFETCH,
    PrefetchWindow,
    SemaphoreSlots,
    is_better_published,
    queue_of,
    time_limit,
)
from django_zklock.zk import queue as zk_queue
from django_zklock.zk.queue import Kind
from django_zklock.zk.queue import Queue as LockQueue

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


class Controller:
    """A worker of two slots."""

    def __init__(self) -> None:
        self.semaphore = LaxBoundedSemaphore(2)
        self.max_tasks_per_child = self.max_memory_per_child = None
        self.soon: list[Callable[[], object]] = []
        self.hub = SimpleNamespace(propagate_errors=(ConnectionError,), call_soon=self.soon.append, on_tick=set())


class Window:
    """A consumer of greenlets whose prefetch window is one message of a virtual transport, which it has."""

    hub = None

    def __init__(self, connection: Connection) -> None:
        channel: Any = connection.channel()
        self.task_consumer = SimpleNamespace(channel=channel)
        self.messages: Any = channel.qos
        self.messages.append(SimpleNamespace(delivery_tag=1), 1)
        self.qos = QoS(lambda prefetch_count: channel.basic_qos(0, prefetch_count, apply_global=False), 1)
        self.pending: list[Callable[[], object]] = []

    def perform_pending_operations(self) -> None:
        while self.pending:
            self.pending.pop()()


@pytest.fixture
def window() -> Iterator[Window]:
    with Connection("memory://") as connection:
        yield Window(connection)


def test_room__message_is_acknowledged(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for room in the window ends when a message has been acknowledged, which the loop would do later."""
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        window.pending.append(partial(window.messages.ack, 1))

    monkeypatch.setattr(time, "sleep", nap)
    internals.await_room(window)
    assert len(naps) == 1
    assert window.messages.can_consume()


def test_room__window_is_widened(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends when the window was widened, of which the loop would tell the broker later."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: window.qos.increment_eventually())
    internals.await_room(window)
    assert window.messages.prefetch_count == 2


def test_room__none(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is no longer than that of Celery's loop, and there is none with a broker that sends by itself."""
    monkeypatch.setattr(internals, "DRAIN_TIMEOUT", 0.02)
    internals.await_room(window)
    assert not window.messages.can_consume()
    monkeypatch.setattr(internals, "DRAIN_TIMEOUT", 10_000.0)
    window.task_consumer = SimpleNamespace(channel=SimpleNamespace())
    internals.await_room(window)


def test_slots__next_is_before_all_that_wait() -> None:
    """A request with a granted lock gets the next slot, before earlier requests without a lock."""
    controller = Controller()
    used: list[str] = []
    slots = SemaphoreSlots(controller, lambda: 0)
    for name in ("first", "second", "third", "fourth"):
        slots.acquire(partial(used.append, name))
    slots.acquire_next(lambda: used.append("granted"))
    for _ in range(3):
        slots.release()
    assert used == ["first", "second", "granted", "third", "fourth"]
    assert controller.semaphore.value == 0


def test_slots__thousands_that_are_not_used() -> None:
    """Requests that have ended while they waited return their slots one after the other, not one inside the other."""
    controller = Controller()
    slots = SemaphoreSlots(controller, lambda: 0)
    used: list[str] = []
    for _ in range(2):
        slots.acquire(lambda: None)
    for _ in range(3 * sys.getrecursionlimit()):
        slots.acquire(slots.release)
    slots.acquire(partial(used.append, "last"))
    controller.semaphore.release()
    assert used == ["last"]
    controller.semaphore.release()
    assert controller.semaphore.value == 1


@pytest.mark.parametrize(
    ("of_message", "of_task", "of_worker", "limit"),
    [
        ((60, 30), 90, 120, 60),
        ((None, 30), 90, 120, 90),
        ((None, None), None, 120, 120),
        ((None, None), None, None, None),
    ],
)
def test_time_limit(
    of_message: tuple[int | None, int | None], of_task: int | None, of_worker: int | None, limit: int | None
) -> None:
    """The time limit of the message is before that of the task, and that before the worker's, as in Celery."""
    assert Request.time_limits == (None, None)
    request = SimpleNamespace(time_limits=of_message, task=SimpleNamespace(time_limit=of_task))
    assert time_limit(cast("Request", request), SimpleNamespace(time_limit=of_worker)) == limit


class Received(Request):
    """A request, of which only the id counts."""

    id = "a"

    def __init__(self) -> None:
        """Read no message."""


def test_forget__next_delivery_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is forgotten does not take the next delivery of its task with it."""
    old, new = Received(), Received()
    monkeypatch.setitem(state.requests, "a", old)
    internals.forget(old)
    assert "a" not in state.requests
    monkeypatch.setitem(state.requests, "a", new)
    internals.forget(old)
    assert state.requests["a"] is new


def test_own_prefetch_count() -> None:
    """Celery's consumer says how many messages it wants at most."""
    assert "initial_prefetch_count" in signature(CeleryConsumer.__init__).parameters
    assert internals.own_prefetch_count(SimpleNamespace(initial_prefetch_count=8)) == 8


def test_slots__next_takes_a_free_one() -> None:
    """A free slot is used at once, and counted."""
    controller = Controller()
    used: list[str] = []
    SemaphoreSlots(controller, lambda: 0).acquire_next(lambda: used.append("granted"))
    assert used == ["granted"]
    assert controller.semaphore.value == 1


def test_slots__pool_without_records_of_its_children() -> None:
    """With a Celery that keeps other records, a pool that replaces its children gives its slots as without the gate."""
    controller: Any = Controller()
    controller.max_tasks_per_child = 1
    controller.pool = SimpleNamespace(_pool=object())
    used: list[str] = []
    slots = SemaphoreSlots(controller, lambda: 0)
    for name in ("first", "second", "third"):
        slots.acquire(partial(used.append, name))
    for call in controller.hub.on_tick:
        call()
    assert used == ["first", "second"]
    controller.semaphore.release()
    assert used == ["first", "second", "third"]


def test_submit__is_written_at_once() -> None:
    """A task that the gate hands to the pool is written to an idle child in the same turn of the loop."""
    controller: Any = Controller()
    written: list[list[int]] = []
    pool = SimpleNamespace(_all_inqueues={1, 2, 3}, _busy_workers={1}, _active_writes={2}, outbound_buffer=[])
    controller.pool, controller.hub.consolidate_callback = SimpleNamespace(_pool=pool), written.append
    slots = SemaphoreSlots(controller, lambda: 0)
    slots.submit(lambda: pool.outbound_buffer.append("job"))
    assert written == [[3]]
    # The loop gets the error of a child that has died, as if it had written itself.
    controller.hub.consolidate_callback = lambda _to: next(iter([]))
    slots.submit(lambda: None)
    (tell,) = controller.soon
    with pytest.raises(StopIteration):
        tell()


@pytest.mark.parametrize("tasks_per_child", [None, 50])
def test_slots__next_one_fails(tasks_per_child: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the request that gets a slot is none of the task that had it, whose result is not stored yet."""
    controller: Any = Controller()
    controller.max_tasks_per_child, controller.pool = tasks_per_child, SimpleNamespace(_pool=object())
    slots = SemaphoreSlots(controller, lambda: 0)
    errors = [BrokenPipeError("the broker is gone"), KeyError("job")]

    def fail() -> None:
        raise errors.pop(0)

    for _ in range(2):
        slots.acquire(lambda: None)
    for _ in range(2):
        slots.acquire(fail)
    # As the pool does with a result.
    controller.semaphore.release()
    assert "event=not_begun" not in caplog.text
    controller.semaphore.release()
    assert "event=not_begun" in caplog.text
    # Celery's loop is told of the lost connection afterwards.
    (tell,) = controller.soon
    with pytest.raises(BrokenPipeError):
        tell()


class Channel:
    """A channel that records the prefetch counts."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, prefetch_count: int) -> None:
        self.sent.append(prefetch_count)


def loop_once(qos: Any) -> None:
    """Send the prefetch count like Celery's loop between two messages."""
    if qos.prev != qos.value:
        qos.update()


def test_window__is_celery_s_number_and_ours() -> None:
    """The broker gets the sum; Celery's own number does not change, with countdowns and after a reconnect."""
    channel, waiting = Channel(), list[None]()
    window = PrefetchWindow(lambda: len(waiting))
    qos = QoS(channel.send, 4)
    window.attach(qos)
    loop_once(qos)
    waiting.extend([None] * 5)
    window.refresh()
    loop_once(qos)
    for _ in range(4):
        qos.increment_eventually()
    loop_once(qos)
    waiting.clear()
    window.refresh()
    loop_once(qos)
    loop_once(qos)
    assert channel.sent == [4, 9, 13, 8]
    assert (qos.value, window.size) == (8, 8)
    # A reconnect makes a new counter; waiting requests count again.
    waiting.extend([None] * 2)
    qos = QoS(channel.send, 2)
    window.attach(qos)
    loop_once(qos)
    assert channel.sent[-1] == 4


def test_window__without_limit_and_at_the_limit() -> None:
    """No limit stays no limit, and the number does not exceed the maximum of AMQP."""
    channel, window = Channel(), PrefetchWindow(lambda: MAX_PREFETCH)
    for initial in (0, 10):
        qos = QoS(channel.send, initial)
        window.attach(qos)
        qos.update()
    assert channel.sent == [0, MAX_PREFETCH]


def test_names() -> None:
    """All names that the gate looks up exist."""
    assert {"__dict__", "_on_reject"} <= set(Request.__dict__["__slots__"])
    assert {"on_accepted", "on_success", "on_failure", "on_timeout", "_apply_result"} <= set(dir(Request))
    assert {"_process_task_sem", "process_task", "wait_for_soft_shutdown"} & set(dir(WorkController))
    assert {"reserved_requests", "active_requests", "task_ready"} <= set(dir(state))
    assert {"restore_by_tag", "restore_unacked"} <= set(dir(redis.QoS))
    assert redis.Channel.visibility_timeout == 3600
    assert {"get_current_task", "_get_active_apps", "connect_on_app_finalize"} <= set(dir(celery._state))
    assert hasattr(PromiseProxy, "__then__")
    no_channel: Any = None
    assert hasattr(Consumer(no_channel), "_active_tags")


def queue(*kinds: Kind) -> tuple[list[str], LockQueue]:
    """Return a queue of nodes of these kinds, and their names."""
    names = [f"{zk_queue.name_prefix(zk_queue.new_guid(), kind)}{number:010d}" for number, kind in enumerate(kinds)]
    return names, LockQueue([node for node in map(zk_queue.parse_name, names) if node is not None])


def test_waiting_behind__readers() -> None:
    """Readers hold beside a reader, except readers behind a writer."""
    names, found = queue(Kind.READ, Kind.READ, Kind.WRITE, Kind.READ)
    assert [node.name for node in waiting_behind(names[0], found)] == names[2:]
    assert waiting_behind(names[3], found) == []


def test_waiting_behind__writers_and_leases() -> None:
    """All nodes wait behind a writer; behind a lease those above the limit wait."""
    names, found = queue(Kind.WRITE, Kind.READ, Kind.WRITE)
    assert [node.name for node in waiting_behind(names[0], found)] == names[1:]
    leases = [f"{zk_queue.name_prefix(zk_queue.new_guid(), Kind.LEASE, 2)}{number:010d}" for number in range(3)]
    found = LockQueue([node for node in map(zk_queue.parse_name, leases) if node is not None])
    assert [node.name for node in waiting_behind(leases[0], found)] == leases[2:]


def delivered(*, exchange: str, routing_key: str, tag: str | None = None) -> Any:
    """Return a request whose message has this delivery info."""
    facts = {"exchange": exchange, "routing_key": routing_key, "consumer_tag": tag}
    return SimpleNamespace(message=SimpleNamespace(delivery_info=facts, headers={}))


def consumer_of(*queues: Queue, driver: str = "redis", tags: dict[str, str] | None = None) -> Any:
    """Return a consumer of ``queues``."""
    return SimpleNamespace(
        connection=SimpleNamespace(transport=SimpleNamespace(driver_type=driver)),
        task_consumer=SimpleNamespace(queues=queues, _active_tags=tags or {}),
        app=SimpleNamespace(amqp=SimpleNamespace(queues={queue.name: queue for queue in queues})),
    )


NEWS = Exchange("news", type="topic")
ONE, OTHER = Queue("one", NEWS, routing_key="a"), Queue("other", NEWS, routing_key="b")


def test_queue_of() -> None:
    """The broker or the settings name the queue; otherwise it is unknown."""
    tags = {"one": "1", "other": "2"}
    assert queue_of(consumer_of(ONE, OTHER, tags=tags), delivered(exchange="news", routing_key="a", tag="2")) == "other"
    assert queue_of(consumer_of(ONE, OTHER), delivered(exchange="news", routing_key="b")) == "other"
    assert queue_of(consumer_of(ONE, OTHER), delivered(exchange="news", routing_key="c")) is None
    # Made from its name alone, like the queues of `--queues`.
    plain = Queue("plain", Exchange("plain", type="direct"), routing_key="plain")
    assert queue_of(consumer_of(plain), delivered(exchange="news", routing_key="a")) == "plain"
    assert queue_of(consumer_of(plain), delivered(exchange="", routing_key="plain")) == "plain"


def test_published__what_would_go_to_other_queues() -> None:
    """A virtual transport rejects to all queues of an exchange; RabbitMQ may drop what it has had for long or often."""
    direct = Queue("direct", Exchange("direct", type="direct"), routing_key="direct")
    news, own = delivered(exchange="news", routing_key="a"), delivered(exchange="direct", routing_key="direct")
    assert is_better_published(consumer_of(ONE), news)
    assert is_better_published(consumer_of(direct), news)
    assert not is_better_published(consumer_of(direct), own)
    assert not is_better_published(consumer_of(direct), delivered(exchange="", routing_key="direct"))
    assert is_better_published(consumer_of(direct, driver="amqp"), own)
    assert is_better_published(consumer_of(direct, driver="sqs"), own)


def test_publish_again__headers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that goes back has no header about the way of the one before, and its others and the body are kept."""
    monkeypatch.setattr(internals.state, "task_ready", lambda _request: None)
    acknowledged: list[str] = []
    with Connection("memory://") as connection:
        channel = connection.default_channel
        bound = Queue("back", Exchange("back"), routing_key="back").bind(channel)
        bound.declare()
        message = SimpleNamespace(
            body=b"[1]", content_type="application/json", content_encoding="utf-8", channel=channel,
            properties={"correlation_id": "4711", "priority": 3},
            headers={"id": "4711", "x-death": [{"count": 2}], "x-last-death-queue": "q", "zklock_rest": [1.0, 2.0]},
        )  # fmt: skip
        request: Any = SimpleNamespace(id="4711", message=message, acknowledge=lambda: acknowledged.append("4711"))
        internals.publish_again(request, "back", {"mine": 1}, None)
        sent = cast("Any", bound.get(no_ack=True))
        bound.delete()
    assert (sent.headers, sent.body) == ({"id": "4711", "mine": 1}, b"[1]")
    assert (sent.properties["correlation_id"], acknowledged) == ("4711", ["4711"])


def test_give_back__at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that go back together go in this order: Celery's loop would let them go in any order."""
    monkeypatch.setattr(internals.state, "task_ready", lambda _request: None)
    order: list[object] = []
    for number in range(20):
        message = SimpleNamespace(reject_log_error=lambda *_facts, number=number: order.append(number))
        request = SimpleNamespace(id=str(number), message=message, _on_reject=lambda *_facts: order.append("later"))
        request.reject = lambda request=request, **_options: request._on_reject()
        internals.give_back(cast("Any", request))
    assert order == list(range(20))


def test_confirming__of_its_own() -> None:
    """Confirmations are asked for where RabbitMQ has them, on a connection that no forked child shuts down."""
    consuming = Connection("amqp://", heartbeat=60, transport_options={"client_properties": {"product": "shop"}})
    confirming = internals.confirming_connection(consuming)
    assert confirming is not None
    assert confirming.transport_options is not None
    assert confirming.transport_options["confirm_publish"]
    assert confirming.transport_options["client_properties"] == {"product": "shop"}
    assert confirming.heartbeat == 0
    # A child closes what kombu's pools have, and shuts down the sockets that it shares with the main process.
    assert confirming not in kombu_pools.connections
    assert internals.confirming_connection(Connection("memory://")) is None


def test_private_names__nowhere_else() -> None:
    """No other module uses a private name of Celery: ruff finds those that are not marked."""
    package = Path(internals.__file__).parent
    modules = [path for path in package.rglob("*.py") if path.name != "internals.py"]
    assert len(modules) > 10
    marks = ("SLF001", "celery._", '"_orig_run"')
    assert [path.name for path in modules for mark in marks if mark in path.read_text(encoding="utf-8")] == []


def test_has_lost_job__pool_stopped() -> None:
    """A pool that is stopped has no jobs, also while the one of a request is still referred to."""
    request: Any = SimpleNamespace(_apply_result=lambda: SimpleNamespace(_job=1))
    assert not internals.has_lost_job(SimpleNamespace(_pool=SimpleNamespace(_cache={1: None})), request)
    assert internals.has_lost_job(SimpleNamespace(_pool=None), request)
