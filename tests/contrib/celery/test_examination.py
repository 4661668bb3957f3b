"""What the doctor says of a project's Celery: its tasks, its broker, its workers."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.app import app_or_default
from services.port import LOOPBACK, free_port
from services.worker import Worker

from django_zklock import doctor, zk_locked
from django_zklock.connections import connections
from django_zklock.contrib.celery import RetryLater, examination
from django_zklock.findings import Finding
from tests.zk.onlooker import wait_until
from tests.zk.talker import Talker

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.contrib.celery.conftest import OpenWorkshop

pytestmark = [
    pytest.mark.celery,
    # Early kombu asks workers by what later redis-py is about to drop.
    pytest.mark.filterwarnings("ignore:Call to 'get_connection' function with deprecated usage"),
]

# Tasks of the project under test have another alias.
ALIAS = "shop"
SESSION_TIMEOUT = 15.0
# How much later something may be done on a busy machine, in seconds.
GRACE = 8.0


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Give an app that is the current one during the test, with a broker in memory, at which no worker is."""
    monkeypatch.setattr(examination, "ANSWER", 0.05)
    before = app_or_default()
    app = Celery("shop", broker="memory://")
    yield app
    app.close()
    before.set_current()


def look(session_timeout: float = SESSION_TIMEOUT) -> dict[str, list[Finding]]:
    """Give the findings by their ids."""
    found: dict[str, list[Finding]] = {}
    for finding in examination.examine(ALIAS, session_timeout):
        found.setdefault(finding.id, []).append(finding)
    return found


def one(name: str, session_timeout: float = SESSION_TIMEOUT) -> Finding:
    """Give the only finding of that id."""
    (finding,) = look(session_timeout)[name]
    return finding


def add_task(app: Celery, name: str, **options: Any) -> None:
    """Have the app know a locked task; what Celery does not take is for the lock."""
    of_lock = {option: options.pop(option) for option in ("on_conflict", "on_lost") if option in options}

    @app.task(name=name, shared=False, **options)
    @zk_locked("invoice:{number}", using=ALIAS, **of_lock)
    def bill(number: int) -> int:
        return number


def test_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the project has no app, there is nothing to say."""
    made_up = Celery("default", set_as_current=False, fixups=[])
    monkeypatch.setattr(examination, "app_or_default", lambda: made_up)
    assert look() == {}


def test_gate(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the gate is on is told by the setting and the environment."""
    assert one("celery.gate").level == "ok"
    monkeypatch.setenv("ZKLOCK_GATE", "0")
    assert one("celery.gate").level == "info"
    monkeypatch.delenv("ZKLOCK_GATE")
    app.conf.zklock_gate = False
    assert one("celery.gate").level == "info"


def test_tasks(app: Celery) -> None:
    """Every task with a lock of the alias is told, with what it does on a conflict; others are not."""
    assert "no task" in one("celery.tasks").found
    add_task(app, "shop.bill", on_conflict="skip", bind=False)
    add_task(app, "shop.book", on_conflict=RetryLater(), autoretry_for=(ValueError,))
    add_task(app, "shop.send", zklock_gate=False)

    @app.task(name="shop.free", shared=False)
    def free() -> None: ...

    @app.task(name="shop.other", shared=False)
    @zk_locked("k", using="other")
    def other() -> None: ...

    finding = one("celery.tasks")
    assert finding.level == "ok"
    assert finding.found == "shop.bill (skip), shop.book (RetryLater), shop.send (wait, without the gate)"


def test_tasks__many(app: Celery) -> None:
    """Of a hundred tasks ten are named."""
    for number in range(100):
        add_task(app, f"shop.task{number:03}")
    finding = one("celery.tasks")
    assert finding.subject == "100 with a lock"
    assert "shop.task009 (wait) and 90 more" in finding.found


def test_tasks__cannot_be_imported(app: Celery) -> None:
    """A module that a worker could not import is an error, and no exception."""
    app.conf.include = ["no_such_module"]
    finding = one("celery.tasks")
    assert finding.level == "error"
    assert "no_such_module" in finding.found


def test_tasks__broker_that_nobody_knows(app: Celery) -> None:
    """So is a broker whose library is not there."""
    app.conf.update(broker_url="carrier-pigeon://")
    finding = one("celery.tasks")
    assert finding.level == "error"
    assert "carrier-pigeon" in finding.found


def test_time_limits(app: Celery) -> None:
    """A locked task without any limit is told; a soft one will do, and so will that of the app."""
    add_task(app, "shop.soft", soft_time_limit=60)
    add_task(app, "shop.hard", time_limit=60)
    assert one("celery.time-limits").level == "ok"
    add_task(app, "shop.endless")
    finding = one("celery.time-limits")
    assert finding.level == "info"
    assert finding.found.endswith(": shop.endless")


def test_time_limits__of_the_app(app: Celery) -> None:
    """The limit of all tasks counts for each."""
    app.conf.task_time_limit = 300
    add_task(app, "shop.endless")
    assert one("celery.time-limits").level == "ok"


def test_visibility_timeout(app: Celery) -> None:
    """A task that is acknowledged late must end before its message is delivered again."""
    assert "takes no message back" in one("celery.visibility-timeout").found
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.short", acks_late=True, time_limit=90)
    add_task(app, "shop.early", time_limit=200)
    finding = one("celery.visibility-timeout")
    assert (finding.level, finding.subject) == ("ok", "100 s")
    add_task(app, "shop.long", acks_late=True, time_limit=200)
    finding = one("celery.visibility-timeout")
    assert finding.level == "warning"
    assert finding.found.endswith(": shop.long")


@pytest.mark.parametrize(("url", "timeout"), [("redis://127.0.0.1:1", "3600 s"), ("amqp://127.0.0.1:1", "1800 s")])
def test_visibility_timeout__default(app: Celery, url: str, timeout: str) -> None:
    """Without a setting it is the broker's own."""
    app.conf.update(broker_url=url)
    assert one("celery.visibility-timeout").subject == timeout


def test_max_wait(app: Celery) -> None:
    """A message must not come again while its task waits at the gate."""
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    assert "is not set" in one("celery.max-wait").found
    app.conf.zklock_gate_max_wait = 50
    assert one("celery.max-wait").level == "ok"
    app.conf.zklock_gate_max_wait = 100
    assert one("celery.max-wait").level == "warning"


def test_session_timeout(app: Celery) -> None:
    """It is compared with the visibility timeout and the time limits of the tasks."""
    app.conf.broker_transport_options = {"visibility_timeout": 100}
    add_task(app, "shop.quick", time_limit=20)
    assert one("celery.session-timeout", 15).level == "ok"
    finding = one("celery.session-timeout", 30)
    assert finding.level == "info"
    assert finding.found.endswith(": shop.quick")
    assert one("celery.session-timeout", 100).level == "warning"


def test_workers__none(app: Celery) -> None:
    """That nobody answers is told; the broker is there all the same."""
    found = look()
    assert found["celery.broker"][0].level == "ok"
    assert found["celery.workers"][0].level == "info"


def test_broker__refuses(app: Celery) -> None:
    """A broker that does not run is a warning."""
    app.conf.update(broker_url=f"redis://{LOOPBACK}:{free_port()}")
    assert one("celery.broker").level == "warning"


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_broker__black_hole(app: Celery, scheme: str) -> None:
    """A broker that accepts and never answers takes the time that it is given, and no more."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        app.conf.update(broker_url=f"{scheme}://{LOOPBACK}:{listener.getsockname()[1]}")
        began = time.monotonic()
        finding = one("celery.broker")
        assert time.monotonic() - began < examination.PATIENCE + GRACE
    assert finding.level == "warning"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, app: Celery) -> Callable[[Any], Finding]:
    """Give a function that gives what is said of a worker that answers so."""

    def ask(answer: Any) -> Finding:
        monkeypatch.setattr(type(app.control), "broadcast", lambda *_args, **_options: [{"celery@web1": answer}])
        finding = one("celery.workers")
        assert finding.subject == "celery@web1"
        return finding

    return ask


def test_worker__pool_without_processes(app: Celery, ask: Callable[[Any], Finding]) -> None:
    """Where tasks have no process of their own, `terminate` does not mean what it says."""
    assert ask({"gate": True, "pool": "gevent"}).level == "ok"
    add_task(app, "shop.bill", on_lost="terminate")
    assert ask({"gate": True, "pool": "prefork"}).level == "ok"
    finding = ask({"gate": True, "pool": "gevent"})
    assert finding.level == "info"
    assert "shop.bill" in finding.found


def test_worker__without_gate(app: Celery, ask: Callable[[Any], Finding]) -> None:
    """A worker without a gate is as it should be only where the app wants none."""
    assert ask({"gate": False, "pool": "processes"}).level == "warning"
    app.conf.zklock_gate = False
    assert ask({"gate": False, "pool": "processes"}).level == "ok"


@pytest.mark.parametrize("answer", [{"error": "KeyError('zklock_gate')"}, None, "yes", ["gate"], 1])
def test_worker__nonsense(ask: Callable[[Any], Finding], answer: Any) -> None:
    """A worker that does not know the question, or answers something else, has no gate."""
    assert ask(answer).level == "warning"


def name_of(worker: Worker | None) -> str:
    """Wait until the worker is at the broker, and give the name that it answers by."""
    assert worker is not None
    log = worker.log
    ready = wait_until(lambda: re.search(r"MainProcess\] (\S+) ready\.", log.read_text()), 30, "a ready worker")
    return str(ready[1])


@pytest.mark.zookeeper
def test_workers__real(open_workshop: OpenWorkshop) -> None:
    """Workers tell of their gates and pools; one whose project does not have the app does not know the question."""
    bare = {"DJANGO_SETTINGS_MODULE": "workshop.bare"}
    before = app_or_default()
    with (
        open_workshop(concurrency=1) as workshop,
        open_workshop(concurrency=1, pool="threads", environment=bare) as other,
    ):
        names = [name_of(each.worker) for each in (workshop, other)]
        workshop.sender.set_current()
        try:
            found = look()
        finally:
            before.set_current()
    assert found["celery.broker"][0].level == "ok"
    workers = {finding.subject: finding for finding in found["celery.workers"]}
    assert [workers[name].level for name in names] == ["ok", "warning"]
    assert "prefork" in workers[names[0]].found
    assert "thread" in workers[names[1]].found


def test_doctor(app: Celery, settings: Settings) -> None:
    """The doctor comes here too, also where ZooKeeper is away."""
    settings.ZKLOCK = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.2}}
    found = {finding.id: finding for finding in doctor.examine("default")}
    assert found["lock.trial"].level == "error"
    assert found["celery.gate"].subject == "app shop"
    assert found["celery.workers"].level == "info"


def test_doctor__black_holes(app: Celery, settings: Settings) -> None:
    """Where neither ZooKeeper nor the broker ever answers, the doctor comes to its end all the same."""
    patience = 0.5
    with Talker(lambda _word: None) as silent, socket.create_server((LOOPBACK, 0)) as broker:
        app.conf.update(broker_url=f"redis://{LOOPBACK}:{broker.getsockname()[1]}")
        settings.ZKLOCK = {"default": {"HOSTS": silent.hosts, "CONNECT_TIMEOUT": patience}}
        began = time.monotonic()
        found = {finding.id: finding for finding in doctor.examine("default")}
        assert time.monotonic() - began < 2 * patience + 3 + GRACE
        connections.close_all(0.1)
    assert [found[name].level for name in ("ensemble.server", "lock.trial", "celery.broker")] == [
        "error", "error", "warning",
    ]  # fmt: skip
