"""The doctor's findings about Celery: tasks, broker and workers."""

from __future__ import annotations

import functools
import inspect
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task
from celery.app import app_or_default
from celery.backends.rpc import RPCBackend
from kombu import Queue

from django_zklock import doctor, operations, zk_locked
from django_zklock.connections import connections
from django_zklock.contrib.celery import RetryLater
from django_zklock.doctor import Finding
from django_zklock.doctor import celery as celery_findings
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.ops import sent
from django_zklock.zk.pool import Pool
from tests.toolbox.django.findings import by_id
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.any_server import Server

if TYPE_CHECKING:
    from pytest_django import Settings


pytestmark = [
    pytest.mark.oldest,
    pytest.mark.celery,
    # Early kombu asks workers by what later redis-py is about to drop.
    pytest.mark.filterwarnings("ignore:Call to 'get_connection' function with deprecated usage"),
]

# Tasks of the project under test have another alias.
ALIAS = "shop"
SESSION_TIMEOUT = 15.0
# Seconds of delay that a busy machine may add.
GRACE = scaled(8)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Return the current app during the test, with a broker in memory and no worker."""
    monkeypatch.setattr(celery_findings, "ANSWER_TIMEOUT", 0.05)
    before = app_or_default()
    app = Celery("shop", broker="memory://")
    yield app
    app.close()
    before.set_current()


def examine(session_timeout: float = SESSION_TIMEOUT) -> dict[str, list[Finding]]:
    """Return the findings by id."""
    return by_id(celery_findings.examine(ALIAS, session_timeout))


def one(name: str, session_timeout: float = SESSION_TIMEOUT) -> Finding:
    """Return the only finding with this id."""
    (finding,) = examine(session_timeout)[name]
    return finding


def add_task(app: Celery, name: str, **options: Any) -> None:
    """Add a locked task to the app; options that Celery does not know are for the lock."""
    known = ("on_conflict", "on_lost", "on_unavailable", "unique_until")
    of_lock = {option: options.pop(option) for option in known if option in options}

    @app.task(name=name, shared=False, **options)
    @zk_locked("invoice:{number}", using=ALIAS, **of_lock)  # type: ignore[untyped-decorator]
    def bill(number: int) -> int:
        return number


def test_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an app of the project there are no findings."""
    made_up = Celery("default", set_as_current=False, fixups=[])
    monkeypatch.setattr(celery_findings, "app_or_default", lambda: made_up)
    assert examine() == {}


def test_gate(app: Celery) -> None:
    """The setting switches the gate on and off."""
    assert one("celery.gate").level == "ok"
    app.conf.zklock_gate = False
    assert one("celery.gate").level == "info"


def test_tasks(app: Celery) -> None:
    """Every task with a lock of the alias is listed with its conflict policy, and no other task."""
    assert "no task" in one("celery.tasks").found
    add_task(app, "shop.bill", on_conflict="skip", bind=False)
    add_task(app, "shop.book", on_conflict=RetryLater(), autoretry_for=(ValueError,))
    add_task(app, "shop.send", zklock_gate=False)

    @app.task(name="shop.free", shared=False)
    def free() -> None: ...

    @app.task(name="shop.other", shared=False)
    @zk_locked("k", using="other")
    def other() -> None: ...

    # Some of its keys may be of this alias.
    @app.task(name="shop.spread", shared=False)
    @zk_locked("{number}", using=lambda _key: "other")
    def spread(number: int) -> None: ...

    finding = one("celery.tasks")
    assert finding.level == "ok"
    listed = "shop.bill (skip), shop.book (RetryLater), shop.send (wait, without the gate), shop.spread (wait)"
    assert finding.found == listed


def test_bypass(app: Celery) -> None:
    """Tasks without the gate are listed with the reason, and count as tasks with a lock."""
    add_task(app, "shop.bill")
    assert one("celery.bypass").level == "ok"
    add_task(app, "shop.send", zklock_gate=False)

    class Called(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    add_task(app, "shop.call", base=Called)

    def measured(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measure(*args: Any) -> Any:
            return function(*args)

        return measure

    @app.task(name="shop.measure", shared=False)
    @measured
    @functools.cache
    @zk_locked("{number}", using=ALIAS)
    def measure(number: int) -> None: ...

    @app.task(name="shop.free", shared=False)
    @measured
    def free(number: int) -> None: ...

    finding = one("celery.bypass")
    assert (finding.level, finding.subject) == ("info", "3 without the gate")
    above, of_its_own = "which may change the arguments", "its own __call__, if that changes"
    assert re.search(rf"shop\.measure \(below {__name__}\.[\w.]+, {above}\), ", finding.found)
    assert "shop.send (zklock_gate=False), " in finding.found
    assert f"shop.call ({of_its_own}" in finding.found
    assert "shop.bill" not in finding.found
    assert "shop.free" not in finding.found
    assert one("celery.tasks").subject == "4 with a lock"
    assert "shop.measure (wait, without the gate)" in one("celery.tasks").found


def test_bypass__pydantic(app: Celery) -> None:
    """A task whose arguments Celery converts uses the gate; a decorator in between is listed by its name."""
    pytest.importorskip("pydantic")
    if "pydantic" not in inspect.signature(Celery._task_from_fun).parameters:
        pytest.skip("Celery 5.4 does not know pydantic")
    add_task(app, "shop.convert", pydantic=True)
    assert one("celery.bypass").level == "ok"

    @app.task(name="shop.hidden", shared=False, pydantic=True)
    @functools.cache
    @zk_locked("{number}", using=ALIAS)
    def hidden(number: int) -> None: ...

    assert "shop.hidden (below _lru_cache_wrapper, " in one("celery.bypass").found


def test_tasks__many(app: Celery) -> None:
    """Ten of a hundred tasks are named, and the others counted."""
    for number in range(100):
        add_task(app, f"shop.task{number:03}")
    finding = one("celery.tasks")
    assert finding.subject == "100 with a lock"
    assert "shop.task009 (wait) and 90 more" in finding.found


@pytest.mark.parametrize(
    "setting", [{"include": ["no_such_module"]}, {"broker_url": "carrier-pigeon://"}], ids=["module", "broker"]
)
def test_tasks__cannot_be_imported(app: Celery, setting: dict[str, Any]) -> None:
    """A module that cannot be imported is an error finding, not an exception; so is a broker's missing library."""
    app.conf.update(setting)
    finding = one("celery.tasks")
    assert finding.level == "error"
    assert re.search("no_such_module|carrier-pigeon", finding.found)


def test_time_limits(app: Celery) -> None:
    """A locked task without a time limit is listed; a soft limit is enough."""
    add_task(app, "shop.soft", soft_time_limit=60)
    add_task(app, "shop.hard", time_limit=60)
    assert one("celery.time-limits").level == "ok"
    add_task(app, "shop.endless")
    finding = one("celery.time-limits")
    assert finding.level == "info"
    assert finding.found.endswith(": shop.endless")


def test_time_limits__of_the_app(app: Celery) -> None:
    """The limit of the app applies to each task."""
    app.conf.task_time_limit = 300
    add_task(app, "shop.endless")
    assert one("celery.time-limits").level == "ok"


def test_visibility_timeout(app: Celery) -> None:
    """A task with acks_late must end within the rest of the visibility timeout after its wait at the gate."""
    assert "has no visibility timeout" in one("celery.visibility-timeout").found
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.short", acks_late=True, time_limit=50)
    add_task(app, "shop.early", time_limit=200)
    add_task(app, "shop.beside", acks_late=True, time_limit=90, zklock_gate=False)
    finding = one("celery.visibility-timeout")
    assert (finding.level, finding.subject) == ("ok", "100 s")
    add_task(app, "shop.long", acks_late=True, time_limit=51)
    finding = one("celery.visibility-timeout")
    assert finding.level == "warning"
    assert "after 50 s at the gate" in finding.found
    assert finding.found.endswith(": shop.long")
    app.conf.zklock_gate_max_wait = 10
    assert one("celery.visibility-timeout").level == "ok"


def test_visibility_timeout__without_the_gate(app: Celery) -> None:
    """Without the gate the task has the whole visibility timeout."""
    app.conf.update(zklock_gate=False, broker_transport_options={"visibility_timeout": 100})
    add_task(app, "shop.long", acks_late=True, time_limit=90)
    assert one("celery.visibility-timeout").level == "ok"


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({"on_conflict": RetryLater(max_delay=51)}, 51),
        ({"on_unavailable": RetryLater(max_delay=51)}, 51),
        ({"autoretry_for": (KeyError,), "default_retry_delay": 60}, 60),
        ({"autoretry_for": (KeyError,), "retry_kwargs": {"countdown": 70}}, 70),
        ({"autoretry_for": (KeyError,), "retry_backoff": True}, 600),
        ({"autoretry_for": (KeyError,), "retry_backoff": True, "retry_backoff_max": 80}, 80),
    ],
)
def test_countdowns(app: Celery, options: dict[str, Any], delay: float) -> None:
    """A countdown longer than the rest after the wait at the gate is a warning."""
    assert "has no visibility timeout" in one("celery.countdowns").found
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.quick", on_conflict=RetryLater(max_delay=50), default_retry_delay=400)
    finding = one("celery.countdowns")
    assert (finding.level, finding.subject) == ("ok", "50 s")
    add_task(app, "shop.late", **options)
    finding = one("celery.countdowns")
    assert finding.level == "warning"
    assert finding.found.endswith(f": shop.late ({delay:g} s)")


def test_countdowns__of_beat(app: Celery) -> None:
    """So is a countdown in beat's schedule."""
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.bill")
    entry = {"task": "shop.bill", "schedule": 60.0, "options": {"countdown": 65}}
    app.conf.beat_schedule = {"other": {"task": "shop.other", "schedule": 1.0}, "bill": entry}
    assert one("celery.countdowns").found.endswith(": shop.bill (65 s)")


QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    ("arguments", "notified"),
    [
        (None, None),
        ({"x-queue-type": "classic"}, None),
        (QUORUM, "orders"),
        (QUORUM | {"x-delivery-limit": 3}, "orders (3)"),
        (QUORUM | {"x-delivery-limit": -1}, None),
        (QUORUM | {"x-dead-letter-exchange": "dead"}, None),
    ],
)
def test_delivery_limits(app: Celery, arguments: dict[str, Any] | None, notified: str | None) -> None:
    """Queues of RabbitMQ that discard a message after a number of deliveries are listed."""
    queues = (Queue("default"), Queue("orders", queue_arguments=arguments))
    app.conf.update(broker_url="amqp://127.0.0.1:1", task_queues=queues)
    finding = one("celery.delivery-limits")
    assert finding.level == ("ok" if notified is None else "info")
    assert notified is None or f": {notified};" in finding.found


def test_delivery_limits__of_another_broker(app: Celery) -> None:
    """Other brokers ignore the arguments of a queue."""
    app.conf.task_queues = (Queue("orders", queue_arguments=QUORUM),)
    assert one("celery.delivery-limits").level == "ok"


@pytest.fixture
def shop(settings: Settings, server: Server, root: str) -> Pool:
    """Return the pool of the alias."""
    settings.ZKLOCK = {ALIAS: {"HOSTS": server.hosts, "ROOT": root}}
    return connections[ALIAS]


def test_unique(app: Celery, shop: Pool) -> None:
    """Without a task whose calls are not sent there is no finding about them; then their calls are counted."""
    add_task(app, "plain")
    assert not {"celery.unique", "celery.sent"} & set(examine())
    add_task(app, "once", unique_until="start")
    found = one("celery.unique")
    assert (found.level, found.subject, found.found) == ("ok", "1 with unique_until", "once")
    assert one("celery.sent").found == "0 calls"


def test_unique__always_sent(app: Celery, shop: Pool) -> None:
    """A task that expires, or that has a way to send of its own, is named."""

    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **options)

    add_task(app, "expires", unique_until="start", expires=60)
    add_task(app, "own", unique_until="start", base=Own)

    def measured(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def measure(*arguments: Any) -> None:
            function(*arguments)

        return measure

    @app.task(name="hidden", shared=False)
    @measured
    @zk_locked("invoice:{number}", using=ALIAS, unique_until="start")
    def hidden(number: int) -> None: ...

    found = one("celery.unique")
    assert (found.level, found.found.rpartition(": ")[2]) == ("warning", "expires, hidden, own")
    # Only its sender could read the result.
    backend = RPCBackend(app)
    add_task(app, "remote", unique_until="start", backend=backend)
    add_task(app, "without", unique_until="start", backend=backend, ignore_result=True)
    assert one("celery.unique").found.rpartition(": ")[2] == "expires, hidden, own, remote"


def test_unique__without_confirmations(app: Celery, shop: Pool) -> None:
    """RabbitMQ must confirm messages."""
    app.conf["broker_url"] = f"amqp://{LOOPBACK}:{free_port()}"
    add_task(app, "once", unique_until="start")
    assert one("celery.unique").level == "warning"
    app.conf.broker_transport_options = {"confirm_publish": True}
    assert one("celery.unique").level == "ok"


def test_sent__stale(app: Celery, shop: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that may be lost is named, and so is an ensemble that cannot be asked."""
    add_task(app, "once", unique_until="start")
    data = sent.encode(key="invoice:7", task="once", max_age=-1.0)
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))
    monkeypatch.setattr(sent, "MAX_UNCONFIRMED", -1.0)
    sent.claim(shop, sent.new_mark(shop, "4711", "once"), data, max_age=-1.0)
    found = one("celery.sent")
    assert (found.level, found.found.rpartition(": ")[2]) == ("warning", "invoice:7 (once)")

    def fail(**_options: Any) -> None:
        raise ZooKeeperUnavailable("no answer")

    monkeypatch.setattr(operations, "sent_calls", fail)
    assert "could not be read" in one("celery.sent").found


@pytest.mark.parametrize(("url", "timeout"), [("redis://127.0.0.1:1", "3600 s"), ("amqp://127.0.0.1:1", "1800 s")])
def test_visibility_timeout__default(app: Celery, url: str, timeout: str) -> None:
    """Without a setting the default of the broker applies."""
    app.conf.update(broker_url=url)
    assert one("celery.visibility-timeout").subject == timeout


def test_max_wait(app: Celery) -> None:
    """The wait at the gate may take at most half of the visibility timeout."""
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    assert "is not set" in one("celery.max-wait").found
    app.conf.zklock_gate_max_wait = 50
    assert one("celery.max-wait").level == "ok"
    app.conf.zklock_gate_max_wait = 51
    finding = one("celery.max-wait")
    assert (finding.level, finding.subject) == ("warning", "CELERY_ZKLOCK_GATE_MAX_WAIT 51 s")


def test_session_timeout(app: Celery) -> None:
    """The session timeout is compared with the visibility timeout and the time limits of the tasks."""
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.quick", time_limit=20)
    assert one("celery.session-timeout", 15).level == "ok"
    finding = one("celery.session-timeout", 30)
    assert finding.level == "info"
    assert finding.found.endswith(": shop.quick")
    assert one("celery.session-timeout", 100).level == "warning"


def test_workers__none(app: Celery) -> None:
    """Without an answering worker the broker is ok, and the workers are info."""
    found = examine()
    assert found["celery.broker"][0].level == "ok"
    assert found["celery.workers"][0].level == "info"


def test_broker__refuses(app: Celery) -> None:
    """A broker that does not run is a warning."""
    app.conf.update(broker_url=f"redis://{LOOPBACK}:{free_port()}")
    assert one("celery.broker").level == "warning"


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_broker__black_hole(app: Celery, scheme: str) -> None:
    """A broker that accepts connections and never answers takes at most the timeout."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        app.conf.update(broker_url=f"{scheme}://{LOOPBACK}:{listener.getsockname()[1]}")
        began = time.monotonic()
        finding = one("celery.broker")
        assert time.monotonic() - began < celery_findings.BROKER_TIMEOUT + GRACE
    assert finding.level == "warning"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, app: Celery) -> Callable[[Any], Finding]:
    """Return a function that returns the finding for a worker with the given answer."""

    def ask(answer: Any) -> Finding:
        monkeypatch.setattr(type(app.control), "broadcast", lambda *_args, **_options: [{"celery@web1": answer}])
        finding = one("celery.workers")
        assert finding.subject == "celery@web1"
        return finding

    return ask


def test_worker__pool_without_processes(app: Celery, ask: Callable[[Any], Finding]) -> None:
    """In a pool without processes, a task with `terminate` is listed."""
    assert ask({"gate": True, "pool": "gevent"}).level == "ok"
    add_task(app, "shop.bill", on_lost="terminate")
    assert ask({"gate": True, "pool": "prefork"}).level == "ok"
    finding = ask({"gate": True, "pool": "gevent"})
    assert finding.level == "info"
    assert "shop.bill" in finding.found


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_worker__results_of_greenlets(app: Celery, ask: Callable[[Any], Finding], pool: str) -> None:
    """A worker with greenlets and results in Redis needs a result backend that they share."""
    app.conf.update(result_backend="redis://127.0.0.1:1")
    assert ask({"gate": True, "pool": "threads"}).level == "ok"
    finding = ask({"gate": True, "pool": pool})
    assert (finding.level, finding.advice) == ("warning", "Set CELERY_RESULT_BACKEND_THREAD_SAFE = True.")
    app.conf.update(result_backend_thread_safe=True)
    assert ask({"gate": True, "pool": pool}).level == "ok"
    app.conf.update(result_backend="rpc://", result_backend_thread_safe=False)
    assert ask({"gate": True, "pool": pool}).level == "ok"


def test_worker__without_gate(app: Celery, ask: Callable[[Any], Finding]) -> None:
    """A worker without a gate is ok only if the app switches it off."""
    assert ask({"gate": False, "pool": "processes"}).level == "warning"
    app.conf.zklock_gate = False
    assert ask({"gate": False, "pool": "processes"}).level == "ok"


def test_worker__solo(ask: Callable[[Any], Finding]) -> None:
    """A worker with the solo pool without a gate is ok."""
    assert ask({"gate": False, "pool": "solo"}).level == "ok"


@pytest.mark.parametrize("answer", [{"error": "KeyError('zklock_gate')"}, None, "yes", ["gate"], 1])
def test_worker__nonsense(ask: Callable[[Any], Finding], answer: Any) -> None:
    """A worker that does not know the request, or answers something else, is a warning."""
    assert ask(answer).level == "warning"


def test_doctor(app: Celery, settings: Settings) -> None:
    """The doctor examines Celery too, even if ZooKeeper is unavailable."""
    settings.ZKLOCK = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.2}}
    found = {finding.id: finding for finding in doctor.run("default")}
    assert found["lock.trial"].level == "error"
    assert found["celery.gate"].subject == "app shop"
    assert found["celery.workers"].level == "info"
