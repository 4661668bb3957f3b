"""``unique_until="start"`` with workers: what is sent, and that a run follows each call."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Exchange, Queue

from django_zklock import operations, zk_locked
from django_zklock.contrib.celery import RetryLater, install
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import sent
from tests.integration.celery import broker_audit
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.celery.workshop import OpenWorkshop, Sent, Workshop
from tests.toolbox.timing import scaled, wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.xdist_group("rabbitmq")]

# Longer than every timeout here: no session times out.
SESSION_TIMEOUT = 30.0
# Broker, pool, and whether there is a gate.
PLACES = [
    ("redis", "prefork", True), ("redis", "prefork", False), ("redis", "threads", True), ("redis", "gevent", True),
    ("redis", "solo", True), ("classic", "prefork", True), ("classic", "prefork", False), ("quorum", "prefork", True),
]  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "once": {}, "once_noted": {}, "once_or_skip": {"on_conflict": "skip"},
    "once_or_coalesce": {"on_conflict": "coalesce"}, "once_or_later": {"on_conflict": RetryLater()},
}  # fmt: skip


def name_of(place: tuple[str, str, bool]) -> str:
    return f"{place[0]}-{place[1]}-{'gate' if place[2] else 'slot'}"


# Those whose workers run more than one task at once.
SEVERAL = pytest.mark.parametrize(
    "workshop", [each for each in PLACES if each[1] != "solo"], ids=name_of, indirect=True
)


class Sender:
    """The tasks of a workshop, as a web process has them: decorated."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.tasks: dict[str, Any] = {}
        for name, options in OPTIONS.items():
            lock: Any = zk_locked("{key}", unique_until="start", **options)
            make: Any = workshop.sender.task(name=f"workshop.tasks.{name}", shared=False)
            self.tasks[name] = lock(make(_body))

    def send(self, name: str, key: str) -> Sent:
        """Send a call whose body waits at the gate that is named like the key."""
        result = self.tasks[name].apply_async((key, key), queue=self.workshop.queue)
        return Sent(result.id, self.workshop.results)

    @property
    def marks(self) -> list[str]:
        """The ids of the messages that have a mark."""
        return [call.id for call in sent.find(self.workshop.pool, timeout=scaled(20))]

    def wait_marks(self, *ids: str) -> None:
        wait_until(lambda: sorted(self.marks) == sorted(ids), 30, f"marks of {ids}")


def _body(key: str, gate: str) -> None: ...


@pytest.fixture(scope="module", params=PLACES, ids=name_of)
def workshop(request: pytest.FixtureRequest, open_workshop: OpenWorkshop) -> Iterator[Workshop]:
    broker, pool, gate = request.param
    rabbitmq: RabbitMQ | None = None if broker == "redis" else request.getfixturevalue("rabbitmq")
    environment = {"WORKSHOP_QUORUM": "1"} if broker == "quorum" else {}
    with open_workshop(
        pool=pool,
        concurrency=1 if pool == "solo" else 2,
        session_timeout=SESSION_TIMEOUT,
        gate=gate,
        rabbitmq=rabbitmq,
        environment=environment,
    ) as workshop:
        if broker == "quorum":
            declare_quorum(workshop)
        yield workshop


def declare_quorum(workshop: Workshop) -> None:
    """Let senders know the queue of a workshop with quorum queues."""
    name, kind = workshop.queue, {"x-queue-type": "quorum"}
    queue = Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments=kind)
    workshop.sender.conf.task_queues = [queue]


@pytest.fixture
def open_sender(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workshop], Sender]:
    """Return a function that makes the tasks of a workshop."""
    install()
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))

    def make(workshop: Workshop) -> Sender:
        hosts = workshop.pool.options.connection.hosts
        settings.ZKLOCK = {"default": {"HOSTS": hosts, "ROOT": workshop.root, "SESSION_TIMEOUT": scaled(20)}}
        return Sender(workshop)

    return make


@pytest.fixture
def sender(workshop: Workshop, open_sender: Callable[[Workshop], Sender]) -> Sender:
    return open_sender(workshop)


def test_calls_while_one_waits_for_its_lock(workshop: Workshop, sender: Sender, key: str) -> None:
    """While a call waits for its lock, no other one is sent; a call after its body has begun is sent."""
    workshop.other_client.take(key)
    first = sender.send("once", key)
    workshop.wait_count(key, 2)
    assert {sender.send("once", key).id for _ in range(10)} == {first.id}
    workshop.other_client.release(key)
    assert workshop.entered(key)["id"] == first.id
    assert sender.marks == []
    second = sender.send("once", key)
    assert {sender.send("once", key).id for _ in range(10)} == {second.id} != {first.id}
    for task in (first, second):
        workshop.let_go(key)
        assert workshop.result(task)["id"] == task.id
    assert workshop.entered(key)["id"] == second.id
    sender.wait_marks()
    workshop.wait_empty(key)


def test_refused(workshop: Workshop, sender: Sender, key: str) -> None:
    """A skipped call leaves no mark."""
    workshop.other_client.take(key)
    task = sender.send("once_or_skip", key)
    assert workshop.result(task)["reason"] == "conflict"
    assert sender.marks == []
    workshop.other_client.release(key)
    task = sender.send("once_or_skip", key)
    assert workshop.entered(key)["id"] == task.id
    workshop.let_go(key)
    workshop.result(task)


@SEVERAL
def test_coalesced(workshop: Workshop, sender: Sender, key: str) -> None:
    """Where calls without a mark wait too, one that a worker skips leaves no mark."""
    workshop.other_client.take(key)
    waiting = workshop.send("once_or_coalesce", key, key)
    workshop.wait_count(key, 2)
    assert workshop.result(sender.send("once_or_coalesce", key))["reason"] == "coalesced"
    assert sender.marks == []
    workshop.other_client.release(key)
    workshop.let_go(key)
    assert workshop.result(waiting)["id"] == workshop.entered(key)["id"] == waiting.id


def test_retry_later(workshop: Workshop, sender: Sender, key: str) -> None:
    """A call that comes back later keeps its mark until its body begins."""
    workshop.other_client.take(key)
    first = sender.send("once_or_later", key)
    wait_until(lambda: first.state == "RETRY", 40, "it has gone back")
    assert {sender.send("once_or_later", key).id for _ in range(10)} == {first.id}
    workshop.other_client.release(key)
    assert workshop.entered(key)["id"] == first.id
    assert sender.marks == []
    workshop.let_go(key)
    workshop.result(first)


@SEVERAL
def test_revoked(workshop: Workshop, sender: Sender, key: str) -> None:
    """When a worker has seen that a call is revoked, the next one is sent."""
    workshop.other_client.take(key)
    first = sender.send("once", key)
    workshop.wait_count(key, 2)
    # Without the gate it waits in a child, which is killed.
    workshop.control.revoke(first.id, terminate=not workshop.has_gate)
    sender.wait_marks()
    second = sender.send("once", key)
    assert second.id != first.id
    workshop.other_client.release(key)
    assert workshop.entered(key)["id"] == second.id
    workshop.let_go(key)
    workshop.result(second)


def test_worker_dies(open_workshop: OpenWorkshop, open_sender: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """A call that waits for its lock keeps its mark when its worker dies, and runs in its next delivery."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq) as workshop:
        sender = open_sender(workshop)
        workshop.other_client.take(key)
        first = sender.send("once", key)
        workshop.wait_count(key, 2)
        assert workshop.worker is not None
        workshop.worker.kill()
        assert sender.send("once", key).id == first.id
        workshop.start()
        workshop.wait_count(key, 3)
        assert sender.send("once", key).id == first.id
        for node in workshop.nodes(key)[1:2]:
            workshop.delete(f"{workshop.pool.path(key)}/{node}")
        workshop.other_client.release(key)
        assert workshop.entered(key)["id"] == first.id
        assert sender.marks == []
        workshop.let_go(key)
        workshop.result(first)


def test_given_back(open_workshop: OpenWorkshop, open_sender: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """A call that the gate has returned to its broker keeps its mark."""
    environment = {"WORKSHOP_MAX_WAIT": "1"}
    with open_workshop(
        concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq, environment=environment
    ) as workshop:
        sender = open_sender(workshop)
        workshop.other_client.take(key)
        first = sender.send("once", key)
        workshop.wait_log("event=given_back")
        assert {sender.send("once", key).id for _ in range(5)} == {first.id}
        workshop.other_client.release(key)
        assert workshop.entered(key)["id"] == first.id
        assert sender.marks == []
        workshop.let_go(key)
        workshop.result(first)


@pytest.mark.parametrize("gate", [True, False], ids=["gate", "slot"])
def test_outage_of_zookeeper(open_workshop: OpenWorkshop, open_sender: Any, gate: bool, key: str) -> None:
    """A call that is skipped without ZooKeeper leaves its mark, which goes when ZooKeeper is back."""
    environment = {"WORKSHOP_MAX_JOINING": "1", "WORKSHOP_CONNECT_TIMEOUT": str(scaled(0.5))}
    with (
        ZooKeeperServer() as server,
        open_workshop(concurrency=1, session_timeout=4, gate=gate, server=server, environment=environment) as workshop,
    ):
        sender = open_sender(workshop)
        assert workshop.worker is not None
        os.kill(workshop.worker.pid, signal.SIGSTOP)
        task = sender.send("once_or_skip", key)
        sender.wait_marks(task.id)
        with server.faults.refuse():
            server.faults.drop()
            os.kill(workshop.worker.pid, signal.SIGCONT)
            assert workshop.result(task)["reason"] == "unavailable"
        sender.wait_marks()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["redis", "classic", "quorum"])
@pytest.mark.parametrize("gate", [True, False], ids=["gate", "slot"])
def test_storm(
    open_workshop: OpenWorkshop, open_sender: Any, request: pytest.FixtureRequest, place: str, gate: bool, key: str
) -> None:
    """While workers are killed, tasks revoked and connections cut, each call is followed by a run, or is told."""
    rabbitmq: RabbitMQ | None = None if place == "redis" else request.getfixturevalue("rabbitmq")
    environment = {"WORKSHOP_QUORUM": "1"} if place == "quorum" else {}
    if place == "redis":
        options = broker_audit.redis_options(f"unacknowledged-{key}", scaled(8))
        environment = broker_audit.settings(CELERY_BROKER_TRANSPORT_OPTIONS=options)
    chance, calls = random.Random(f"{place}-{gate}"), []
    with open_workshop(
        concurrency=2, session_timeout=4, gate=gate, rabbitmq=rabbitmq, environment=environment
    ) as workshop:
        if place == "quorum":
            declare_quorum(workshop)
        sender = open_sender(workshop)
        for number in range(120):
            function = f"{key}-{chance.randrange(2)}"
            came = time.time()
            calls.append((function, came, sender.send("once_noted", function)))
            time.sleep(chance.choice([0, 0.01, 0.05]))
            if number in {40, 80}:
                assert workshop.worker is not None
                workshop.worker.kill()
                workshop.start()
            elif number % 17 == 0:
                workshop.control.revoke(calls[-1][2].id)
            elif number % 29 == 0:
                broker_audit.cut(workshop, rabbitmq)

        def unserved() -> list[Any]:
            began = {name: [note["began"] for note in workshop.notes(name)] for name in {call[0] for call in calls}}
            return [
                (name, came, task.id, task.state)
                for name, came, task in calls
                if task.state != "REVOKED" and not any(run > came for run in began[name])
            ]

        try:
            wait_until(lambda: not unserved(), 90, "every call is followed by a run")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{unserved()}\n{list(operations.sent_calls())}") from error
        assert len({task.id for _name, _came, task in calls}) < len(calls)
        sender.wait_marks()


def test_purged(open_workshop: OpenWorkshop, open_sender: Any, key: str) -> None:
    """After a purge calls are not sent until an operator removes the marks, or these are too old."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT) as workshop:
        sender = open_sender(workshop)
        assert workshop.worker is not None
        workshop.worker.kill()
        lost = sender.send("once", key)
        with workshop.sender.connection() as connection:
            assert Queue(workshop.queue).bind(connection.default_channel).purge() == 1
        assert sender.send("once", key).id == lost.id
        assert [call.id for call in operations.prune_sent(everything=True)] == [lost.id]
        workshop.start()
        task = sender.send("once", key)
        assert workshop.entered(key)["id"] == task.id != lost.id
        workshop.let_go(key)
        workshop.result(task)
