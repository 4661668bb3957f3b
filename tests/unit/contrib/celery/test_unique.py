"""``unique_until="start"``: what is sent and what is not, and the ends of marks in the process of a body."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import celery._state
import pytest
from asgiref.sync import sync_to_async
from celery import Celery, Task, chain, group
from celery.app.trace import build_tracer
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, Reject
from celery.signals import task_failure, task_received, task_rejected, task_revoked, task_unknown
from django.core.management.base import BaseCommand
from django.db import transaction
from kombu import Connection, Queue

from django_zklock import LockConflict, ZooKeeperUnavailable, signals, zk_locked
from django_zklock.contrib.celery import RetryLater, install, unique
from django_zklock.contrib.celery.unique import HEADER
from django_zklock.zk.ops import sent
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.timing import scaled, wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]
pytestmark = [pytest.mark.celery, pytest.mark.oldest]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the integration like Django's app; remove the tasks that Celery would share; have no slow answers."""
    install()
    monkeypatch.setattr("django_zklock.contrib.celery.tasks._decorators", [])
    monkeypatch.setattr("celery._state._on_app_finalizers", set(celery._state._on_app_finalizers))  # type: ignore[attr-defined]
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))
    monkeypatch.setattr(unique, "_told", set())


class Broker:
    """What was sent, by a producer that sends nothing."""

    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[dict[str, Any]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(app.amqp, "send_task_message", self._send, raising=False)

    def _send(self, _producer: Any, name: str, message: Any, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        headers = {**message.headers, **(options.get("headers") or {})}
        self.messages.append({"name": name, "args": message.body[0], **headers})

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.messages]

    @property
    def marked(self) -> list[bool]:
        return [HEADER in message for message in self.messages]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("unique", broker="memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def broker(app: Celery, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(app, monkeypatch)


@pytest.fixture
def runs() -> list[Any]:
    """Return what bodies add to."""
    return []


@pytest.fixture
def task(app: Celery, runs: list[Any]) -> Any:
    @app.task(name="t", base=DjangoTask)
    @zk_locked("{number}", unique_until="start")
    def work(number: Any) -> str:
        runs.append(number)
        return "done"

    app.finalize()
    return work


def run(task: Any, message: dict[str, Any], **request: Any) -> Any:
    """Let the task of a message run as in a worker, and return its result or error."""
    tracer: Any = build_tracer(task.name, task, app=task.app, eager=False)
    facts = {**message, "is_eager": False, "hostname": "celery@web1", "correlation_id": message["id"], **request}
    result = tracer(message["id"], tuple(message["args"]), {}, request=facts).retval
    return getattr(result, "exception", result)


def marks(ensemble: Ensemble) -> list[str]:
    """Return the ids of the messages that have a mark."""
    return [call.id for call in sent.find(ensemble.pool, timeout=scaled(20))]


# What is sent.


def test_send__one_message(task: Any, broker: Broker) -> None:
    """Calls in every form that will run the same are one message, whose result they get."""
    first = task.delay(1)
    results = [
        task.delay(1), task.apply_async((1,)), task.apply_async(kwargs={"number": 1}), task.s(1).delay(),
        task.s(1).apply_async(), task.si(1).apply_async(retry=True, queue=None, link=[], headers={}),
        # What beat sends, and django-celery-beat.
        task.apply_async([1], {}, producer=None, headers={"celery_beat_task": True}),
        task.apply_async([1], {}, periodic_task_name="every night", expires=None, priority=None),
    ]  # fmt: skip
    assert {result.id for result in results} == {first.id}
    assert type(results[0]) is type(first)
    assert (broker.ids, broker.marked) == ([first.id], [True])


def test_send__other_messages(task: Any, broker: Broker) -> None:
    """Another key and another queue are another message, each with a mark."""
    sends: list[Callable[[], Any]] = [
        lambda: task.delay(1), lambda: task.delay(2), lambda: task.apply_async((1,), queue="slow"),
        lambda: task.apply_async((1,), queue=Queue("fast")), lambda: task.apply_async((1,), priority=9),
        lambda: task.apply_async((1,), priority=0),
    ]  # fmt: skip
    ids = [send().id for send in sends]
    assert len(set(ids)) == len(ids)
    assert [send().id for send in sends] == ids
    assert broker.marked == [True] * len(sends)


def test_send__always(task: Any, broker: Broker) -> None:
    """A call that asks for a message of its own is sent, and keeps no other call from being sent."""
    task.delay(1)
    again = task.signature_from_request(task.request, (1,), {}, task_id="4711", retries=1)
    sends: list[Callable[[], Any]] = [
        lambda: task.apply_async((1,), countdown=5), lambda: task.apply_async((1,), expires=5),
        lambda: task.apply_async((1,), task_id="mine"), lambda: task.apply_async((1,), link=task.s(2)),
        lambda: task.apply_async((1,), None, "mine"), lambda: task.apply_async((1,), headers={"tenant": 7}),
        lambda: task.apply_async((1,), ignore_result=True), lambda: task.apply_async((1,), time_limit=5),
        lambda: task.apply_async((1,), reply_to="q"), lambda: task.apply_async((1,), countdown=0, shadow="u"),
        lambda: group([task.si(1), task.si(1)]).apply_async(), lambda: chain(task.si(1), task.si(1)).apply_async(),
        again.apply_async,
    ]  # fmt: skip
    for send in sends:
        send()
    assert broker.marked == [True] + [False] * (len(broker.messages) - 1)
    assert len(broker.messages) == len(sends) + 2


def test_send__task_that_expires(app: Celery, broker: Broker) -> None:
    """No call counts on a message that may expire."""

    @app.task(name="expiring", expires=60)
    @zk_locked("{number}", unique_until="start")
    def work(number: int) -> None: ...

    app.finalize()
    assert work.delay(1).id != work.delay(1).id
    assert broker.marked == [False, False]


def test_send__same_function_in_other_tasks(app: Celery, broker: Broker) -> None:
    """Tasks of another name, key or mode run something else."""

    def work(number: int) -> None: ...

    make: Any = app.task
    locked = [zk_locked("{number}", unique_until="start") for _ in range(2)]
    locked += [zk_locked("x:{number}", unique_until="start"), zk_locked("{number}", unique_until="start", mode="read")]
    tasks = [make(decorate(work), name=f"t{number}") for number, decorate in enumerate(locked)]
    app.finalize()
    assert len({each.delay(1).id for each in [*tasks, *tasks]}) == 4


def test_send__eager(app: Celery, task: Any, broker: Broker, runs: list[Any], ensemble: Ensemble) -> None:
    """In eager mode each call runs, and so does a direct one."""
    app.conf.task_always_eager = True
    assert [task.delay(1).get(), task.delay(1).get(), task(1), task.apply((1,)).get()] == ["done"] * 4
    assert (len(runs), broker.messages, marks(ensemble)) == (4, [], [])


@pytest.mark.usefixtures("transactional_db")
def test_send__at_the_commit(task: Any, broker: Broker, ensemble: Ensemble) -> None:
    """A rollback leaves neither a message nor a mark."""
    with transaction.atomic():
        task.delay_on_commit(1)
        transaction.set_rollback(True)
    assert (broker.ids, marks(ensemble)) == ([], [])
    with transaction.atomic():
        task.delay_on_commit(1)
        task.delay_on_commit(1)
        assert marks(ensemble) == []
    assert (len(broker.ids), marks(ensemble)) == (1, broker.ids)


def test_send__broker_refuses(task: Any, broker: Broker, ensemble: Ensemble) -> None:
    """The error of the broker is raised, and the next call is sent."""
    broker.error = OSError("no broker")
    with pytest.raises(OSError, match="no broker"):
        task.delay(1)
    wait_until(lambda: marks(ensemble) == [], 20, "the mark is gone")
    broker.error = None
    assert task.delay(1).id == task.delay(1).id


def test_send__without_zookeeper(app: Celery, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is sent, and its message names the mark that may exist."""
    monkeypatch.setattr(sent, "MAX_ASK", 0.1)

    @app.task(name="t")
    @zk_locked("{number}", unique_until="start", using="absent")
    def work(number: int) -> None: ...

    app.finalize()
    assert work.delay(1).id != work.delay(1).id
    assert broker.marked == [True, True]


def test_send__key_that_cannot_be_made(app: Celery, broker: Broker) -> None:
    """A call is sent whose key is an error of the task."""

    @app.task(name="t")
    @zk_locked(lambda number: {}[number], unique_until="start")
    def work(number: int) -> None: ...

    app.finalize()
    assert work.delay(1).id != work.delay(1).id
    assert broker.marked == [False, False]


def test_send__own_apply_async(app: Celery, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A class with an apply_async() of its own sends each call, and the log says so."""

    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **options)

    @app.task(name="t", base=Own)
    @zk_locked("{number}", unique_until="start")
    def work(number: int) -> None: ...

    app.finalize()
    assert work.delay(1).id != work.delay(1).id
    assert "event=not_unique task=t" in caplog.text


def test_send__in_an_event_loop(task: Any, broker: Broker) -> None:
    """No loop waits for ZooKeeper: each call is sent there, and a thread of its own asks."""

    async def send() -> list[str]:
        sends = [task.delay(1).id, task.delay(1).id]
        return sends + [(await sync_to_async(task.delay)(1)).id for _ in range(2)]

    *there, first, second = asyncio.run(send())
    assert broker.ids == [*there, first]
    assert (second, broker.marked) == (first, [False, False, True])


def test_send__signal(task: Any, broker: Broker) -> None:
    """A call that is not sent is told."""
    seen: list[dict[str, Any]] = []

    def note(**facts: Any) -> None:
        seen.append(facts)

    signals.not_sent.connect(note)
    try:
        first = task.delay(1)
        task.delay(1)
    finally:
        signals.not_sent.disconnect(note)
    assert [(facts["key"], facts["task"], facts["id"]) for facts in seen] == [("1", "t", first.id)]


def test_max_age(app: Celery, task: Any, broker: Broker) -> None:
    """After the age of the setting a message is taken for lost."""
    app.conf.zklock_unique_max_age = timedelta(milliseconds=1)
    first = task.delay(1).id
    time.sleep(0.05)
    assert task.delay(1).id != first
    # A wrong setting costs no call.
    app.conf.zklock_unique_max_age = "an hour"
    assert task.delay(2).id != task.delay(2).id


@pytest.mark.parametrize("caught", [(), Exception])
def test_send__key_of_the_request(app: Celery, broker: Broker, caplog: pytest.LogCaptureFixture, caught: Any) -> None:
    """There is no request yet that a key could be made of, and that of another message is none: each call is sent."""

    def key(task: Any, number: int) -> str:
        try:
            return f"{getattr(task.request, 'tenant', None)}:{number}"
        except caught:
            return str(number)

    @app.task(name="t", bind=True)
    @zk_locked(key, unique_until="start")
    def work(self: Any, number: int) -> None: ...

    app.finalize()
    assert len({work.delay(1).id for _ in range(2)}) == 2
    assert broker.marked == [False, False]
    assert caplog.text.count("event=not_unique task=t") == 1
    assert work.request_stack.top is None


def test_send__other_ways(app: Celery, task: Any, broker: Broker) -> None:
    """Calls to other queues, of whatever makes them, are other ones; the name of the default queue is no other way."""
    first = task.delay(1).id
    assert task.apply_async((1,), queue="celery").id == first
    with Connection("memory://elsewhere") as elsewhere:
        assert task.apply_async((1,), connection=elsewhere).id != first
    app.conf.broker_transport_options = {"global_keyprefix": "staging"}
    assert task.delay(1).id != first
    app.conf.broker_transport_options = {}
    app.conf.task_routes = {"t": {"queue": "moved"}}
    amqp: Any = app.amqp
    amqp.flush_routes()
    amqp.router = amqp.Router()
    assert task.delay(1).id != first
    assert len(broker.ids) == 4


def test_send__result_of_the_sender_alone(app: Celery, task: Any, broker: Broker) -> None:
    """Another process could not read the result that it would get."""
    app.conf.update(result_backend="celery.backends.rpc:RPCBackend")
    assert len({task.delay(1).id for _ in range(2)}) == 2
    task.ignore_result = True
    assert len({task.delay(1).id for _ in range(2)}) == 1


@pytest.mark.parametrize("is_locked", [True, False])
def test_begin__other_code(app: Celery, task: Any, broker: Broker, ensemble: Ensemble, is_locked: bool) -> None:
    """A worker whose task has no such option, as before a release, lets calls be sent again before the body begins."""
    task.delay(1)
    worker, seen = Celery("worker", broker="memory://", set_as_current=False), []

    def work(number: int) -> None:
        seen.append(marks(ensemble))

    make: Any = worker.task(name="t", shared=False, lazy=False)
    old = make(zk_locked("{number}")(work) if is_locked else work)
    assert run(old, broker.messages[0]) is None
    assert seen == [[]]
    worker.close()


# The ends, where the body runs.


def test_begin(app: Celery, broker: Broker, runs: list[Any], ensemble: Ensemble) -> None:
    """The mark is gone when the body begins, and a call from the body is sent."""

    @app.task(name="t")
    @zk_locked("{number}", unique_until="start")
    def work(number: int) -> None:
        runs.append((marks(ensemble), work.delay(number).id))

    app.finalize()
    work.delay(1)
    run(work, broker.messages[0])
    assert runs == [([], broker.ids[1])]
    # It is delivered once more.
    run(work, broker.messages[0])
    assert runs[1] == ([broker.ids[1]], broker.ids[1])


def policy_task(app: Celery, **options: Any) -> Any:
    lock: Any = zk_locked("{number}", unique_until="start", **options)

    @app.task(name="t")
    @lock  # type: ignore[untyped-decorator]
    def work(number: Any) -> str:
        return "done"

    app.finalize()
    return work


@pytest.mark.parametrize("policy", ["skip", "raise", "wait", lambda _conflict: "decided"])
def test_refused(
    app: Celery, broker: Broker, ensemble: Ensemble, other_client: OtherClient, policy: Any, caplog: Any
) -> None:
    """A refused task has no mark when its policy decides."""
    task = policy_task(app, on_conflict=policy, timeout=0)
    other_client.take("1")
    task.delay(1)
    result = run(task, broker.messages[0])
    assert marks(ensemble) == []
    assert isinstance(result, Exception) == (policy in {"raise", "wait"})


def test_refused__before_the_last_call(
    app: Celery, broker: Broker, other_client: OtherClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that comes after the refusal, and is not sent, gets its run: the refused one asks again."""
    task = policy_task(app, on_conflict="skip")
    other_client.take("1")
    task.delay(1)
    remove, seen = sent.remove, []

    def remove_late(*args: Any, **options: Any) -> None:
        seen.append(task.delay(1).id)
        other_client.release("1")
        remove(*args, **options)

    monkeypatch.setattr(sent, "remove", remove_late)
    assert run(task, broker.messages[0]) == "done"
    assert seen == broker.ids


def test_retry_later(app: Celery, broker: Broker, ensemble: Ensemble, other_client: OtherClient) -> None:
    """A task that comes back later keeps its mark, and calls wait for it; when it gives up, they are sent again."""
    task = policy_task(app, on_conflict=RetryLater(max_wait=60, delay=5))
    other_client.take("1")
    first = task.delay(1)
    run(task, broker.messages[0])
    assert (task.delay(1).id, marks(ensemble)) == (first.id, [first.id])
    again = broker.messages[1]
    assert (again["id"], HEADER in again) == (first.id, True)
    (attempts, _waited) = again["zklock_conflict_waited"]
    result = run(task, {**again, "zklock_conflict_waited": [attempts, 60.0]})
    assert isinstance(result, LockConflict)
    wait_until(lambda: marks(ensemble) == [], 20, "the mark is gone")


def test_retry(app: Celery, broker: Broker, ensemble: Ensemble) -> None:
    """A retry is another message, without a mark."""

    @app.task(name="t", bind=True, autoretry_for=(KeyError,), max_retries=3)
    @zk_locked("{number}", unique_until="start")
    def work(self: Any, number: int) -> None:
        raise KeyError(number)

    app.finalize()
    work.delay(1)
    run(work, broker.messages[0])
    assert broker.marked == [True, False]
    assert marks(ensemble) == []


@pytest.mark.parametrize("error", [Ignore(), Reject(requeue=False), ValueError("no")], ids=repr)
def test_ended__before_the_body(app: Celery, broker: Broker, ensemble: Ensemble, error: Exception) -> None:
    """Whatever ends a task before its lock is asked for, its mark goes."""

    class Failing(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    @app.task(name="t", base=Failing)
    @zk_locked("{number}", unique_until="start")
    def work(number: int) -> None: ...

    app.finalize()
    work.delay(1)
    run(work, broker.messages[0])
    wait_until(lambda: marks(ensemble) == [], 20, "the mark is gone")


def test_begin__mark_cannot_be_removed(
    task: Any, broker: Broker, runs: list[Any], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No body begins while calls count on it: that is an outage of ZooKeeper, and the lock is free again."""
    task.delay(1)

    def fail(*_args: Any, **_options: Any) -> None:
        raise ZooKeeperUnavailable("no answer")

    monkeypatch.setattr(sent, "remove", fail)
    assert isinstance(run(task, broker.messages[0]), ZooKeeperUnavailable)
    assert runs == []
    ensemble.wait_empty("1")
    # And when it is over, calls are sent again.
    wait_until(lambda: marks(ensemble) == [], 20, "the mark is gone")


def test_worker_sees_an_end(task: Any, broker: Broker, ensemble: Ensemble) -> None:
    """A worker's main process sees messages that it revokes or rejects, and tasks whose process was lost."""

    class Message:
        def __init__(self, headers: dict[str, Any]) -> None:
            self.headers = headers

    @dataclass(eq=False)
    class Received:
        id: str
        message: Message

    class Context(dict[str, Any]):
        @property
        def id(self) -> str:
            return str(self["id"])

    ends: list[Callable[[dict[str, Any]], Any]] = [
        lambda headers: task_revoked.send(task, request=Context(headers), terminated=False, signum=None, expired=False),
        lambda headers: task_unknown.send(None, name="t", id=headers["id"], message=Message(headers), exc=None),
        lambda headers: task_rejected.send(None, message=Message(headers), exc=None),
        lambda headers: task_failure.send(type("T", (), {"request": Context(headers)}), task_id=headers["id"]),
        lambda headers: task_failure.send(type("T", (), {"request": Context()}), task_id=headers["id"]),
    ]
    for number, end in enumerate(ends):
        task.delay(number)
        received = Received(broker.ids[-1], Message(broker.messages[-1]))
        if number == len(ends) - 1:
            task_received.send(None, request=received)
        end(broker.messages[-1])
        wait_until(lambda: marks(ensemble) == [], 20, "the mark is gone")


@pytest.mark.parametrize("value", [None, 7, [], ["default"], ["nowhere", "a" * 32], ["default", "../x"], [[], "a"]])
def test_mark_in__header_of_any_client(ensemble: Ensemble, value: object) -> None:
    """A message of any client names no node outside of the marks."""
    assert unique.mark_in({HEADER: value}, "1") is None


# What cannot be.


def test_decorated__run_unprotected() -> None:
    """A body that begins without ZooKeeper would begin while calls count on it."""
    with pytest.raises(ValueError, match='cannot go with on_unavailable="run"'):
        zk_locked("k", unique_until="start", on_unavailable="run")


def test_decorated__unknown() -> None:
    """Only the begin of the body can be promised."""
    with pytest.raises(ValueError, match="unique_until must be one of None, 'start'"):
        zk_locked("k", unique_until="success")  # type: ignore[call-overload]


def test_decorated__no_task() -> None:
    """A command is not sent."""
    with pytest.raises(TypeError, match="for tasks of Celery"):

        @zk_locked("k", unique_until="start")
        class Command(BaseCommand): ...
