"""Tasks that go back to the broker while ZooKeeper cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.amqp import Queues
from celery.exceptions import Retry
from kombu import Exchange, Queue

from django_zklock import LockConflict, ZooKeeperUnavailable
from django_zklock.conflict import Conflict
from django_zklock.contrib.celery import RetryLater, retry
from django_zklock.contrib.celery.headers import CONFLICTS, OUTAGES, TASK, with_rest
from django_zklock.contrib.celery.internals import sending
from django_zklock.testing import ZooKeeperServer
from tests.toolbox.timing import scaled, wait_until

pytestmark = pytest.mark.celery


# With real workers.


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def workshop(open_workshop: Any, server: ZooKeeperServer) -> Iterator[Any]:
    environment = {"WORKSHOP_CONNECT_TIMEOUT": str(scaled(0.5)), "WORKSHOP_MAX_JOINING": "1"}
    with open_workshop(concurrency=2, server=server, environment=environment) as workshop:
        yield workshop


@contextmanager
def outage(server: ZooKeeperServer) -> Iterator[None]:
    """Make ZooKeeper unreachable."""
    with server.faults.refuse():
        server.faults.drop()
        yield


@pytest.mark.zookeeper
def test_retry__outlasts_an_outage(workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """A task is sent back until ZooKeeper is available, then runs, with unchanged retries."""
    with outage(server):
        task = workshop.send("outlast", key, headers={"tenant": "north"})
        wait_until(lambda: task.state == "RETRY", 30, "the task has found no ZooKeeper")
    result = workshop.result(task)
    assert (result["key"], result["retries"], result["conflicts"]) == (key, 0, 0)
    assert result["outages"] >= 1


@pytest.mark.zookeeper
def test_retry__gives_up(workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """After `max_wait` the task fails with ZooKeeperUnavailable, with number and time of the retries."""
    with outage(server):
        error = workshop.outcome(workshop.send("outlast_for_a_while", key))
    assert type(error) is ZooKeeperUnavailable
    assert str(error).startswith(f"lock '{key}': ")
    assert "outlast_for_a_while gave up after" in str(error)
    assert "RetryLater(max_wait=...)" in str(error)


# The budgets.


class Delivery:
    """A task in a worker, with one message after the other."""

    name = "shop.bill"

    def __init__(self) -> None:
        self.request = SimpleNamespace(headers={}, retries=0, id="4711")
        self.countdown = 0.0
        self.options: dict[str, Any] = {}
        broker = SimpleNamespace(transport=SimpleNamespace(driver_type="redis"))
        self.app: Any = SimpleNamespace(connection_for_write=lambda: broker, amqp=SimpleNamespace(queues=Queues()))

    def signature_from_request(self, request: Any, *, countdown: float, retries: int, headers: Any) -> Any:
        assert retries == request.retries
        self.countdown = countdown
        return SimpleNamespace(
            options=self.options, apply_async=lambda **_options: setattr(request, "headers", headers)
        )

    def use_rabbitmq(self, kind: str, *names: str) -> None:
        """Let the worker consume queues of that kind at RabbitMQ."""
        broker = SimpleNamespace(transport=SimpleNamespace(driver_type="amqp"))
        arguments = {"x-queue-type": kind}
        exchange = Exchange("celery", type="topic")
        queues = Queues(
            [Queue(name, exchange, routing_key=name, queue_arguments=arguments) for name in names or ("celery",)]
        )
        self.app = SimpleNamespace(connection_for_write=lambda: broker, amqp=SimpleNamespace(queues=queues))

    def meet(self, later: RetryLater, refusal: str, elapsed: float = 0.0) -> dict[str, Any]:
        """Return the headers of the message that is sent after a conflict or an outage."""
        unavailable = ZooKeeperUnavailable("lock 'k': no connection", key="k") if refusal == "outage" else None
        conflict = Conflict(
            key="k", function="shop.bill", holder=None, waited=None, args=(), kwargs={}, unavailable=unavailable,
            elapsed=elapsed,
        )  # fmt: skip
        with pytest.raises(Retry) as caught:
            later(conflict)
        assert isinstance(caught.value.exc, ZooKeeperUnavailable if unavailable else LockConflict)
        return dict(self.request.headers)


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    delivery = Delivery()
    monkeypatch.setattr(retry, "running_task", lambda: delivery)
    monkeypatch.setattr(sending, "confirming_producer", lambda _app: nullcontext())
    return delivery


def test_budget__one_each(delivery: Delivery) -> None:
    """Conflicts and outages are counted separately, and a conflict ends an outage, because ZooKeeper has answered."""
    later = RetryLater()
    headers = [delivery.meet(later, refusal) for refusal in ("conflict", "outage", "outage", "conflict", "outage")]
    assert [each["zklock_conflicts"] for each in headers] == [1, 1, 1, 2, 2]
    assert [each.get("zklock_outages") for each in headers] == [None, 1, 2, None, 1]
    # The delay of the first message is in the second one, and the outage changes nothing.
    waited = [each["zklock_conflict_waited"] for each in headers]
    assert [tries for tries, _seconds in waited] == [1, 1, 1, 2, 2]
    assert 0 < waited[0][1] == waited[1][1] == waited[2][1] < waited[3][1] == waited[4][1]


def test_budget__delays(delivery: Delivery) -> None:
    """The delays of an outage grow like those of a conflict, up to `max_delay`."""
    later = RetryLater(delay=1, max_delay=8)
    delays = []
    for _ in range(6):
        delivery.meet(later, "outage")
        delays.append(delivery.countdown)
    assert all(most / 2 <= delay <= most for delay, most in zip(delays, [1, 2, 4, 8, 8, 8], strict=True))


@pytest.mark.parametrize(
    ("refusal", "error"), [("conflict", "lock 'k' is taken"), ("outage", "lock 'k': no connection")]
)
def test_budget__over(delivery: Delivery, refusal: str, error: str) -> None:
    """When one budget is spent the task fails, whatever is left of the other."""
    delivery.request.headers = (CONFLICTS if refusal == "conflict" else OUTAGES).write(0, 7, 60.0, 0.0)
    unavailable = ZooKeeperUnavailable(error, key="k") if refusal == "outage" else None
    conflict = Conflict(
        key="k", function="shop.bill", holder=None, waited=None, args=(), kwargs={}, unavailable=unavailable
    )
    with pytest.raises(LockConflict if unavailable is None else ZooKeeperUnavailable) as caught:
        RetryLater(max_wait=10)(conflict)
    assert str(caught.value).startswith(error)
    assert "shop.bill gave up after 7" in str(caught.value)
    assert caught.value.timeout == 10


@pytest.mark.shows("guarantees#that-clocks-are-right", "faults#the-clocks-of-workers-differ")
@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_budget__another_clock(delivery: Delivery, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """A host whose clock differs counts the delays and the waits alone: no task gives up early, and none goes on."""
    later = RetryLater(max_wait=60, delay=5, max_delay=5)
    true_time = time.time

    def go_to_host(number: int) -> None:
        monkeypatch.setattr(time, "time", lambda: true_time() + ahead * (number % 2))

    def try_until_the_end() -> None:
        for number in range(100):
            go_to_host(number)
            delivery.meet(later, "conflict")

    with pytest.raises(LockConflict, match="gave up after"):
        try_until_the_end()
    # Delays of 2.5 to 5 seconds.
    assert 60 / 5 <= delivery.request.headers["zklock_conflicts"] <= 60 / 2.5 + 1


def test_budget__waits_of_the_calls(delivery: Delivery) -> None:
    """What a task has waited for its lock in each delivery counts too, from the second conflict on."""
    later = RetryLater(max_wait=100, delay=0.001, max_delay=0.001)
    headers = [delivery.meet(later, "conflict", elapsed=30.0) for _ in range(4)]
    assert [round(each["zklock_conflict_waited"][1]) for each in headers] == [0, 30, 60, 90]
    with pytest.raises(LockConflict, match="gave up after 4 conflicts in 120 s"):
        delivery.meet(later, "conflict", elapsed=30.0)


def test_budget__what_rounding_leaves(delivery: Delivery) -> None:
    """A budget of which next to nothing is left is spent: no task comes back at once, again and again."""
    delivery.request.headers = CONFLICTS.write(0, 3, 59.9999, 0.0)
    with pytest.raises(LockConflict, match="gave up after 3"):
        delivery.meet(RetryLater(max_wait=60), "conflict")


@pytest.mark.parametrize(
    ("later", "waited"),
    [(RetryLater(), 0.0), (RetryLater(delay=0.1, max_delay=0.2), 0.0), (RetryLater(max_wait=60), 59.9)],
)
def test_delay__of_a_quorum_queue(delivery: Delivery, later: RetryLater, waited: float) -> None:
    """Where RabbitMQ delays messages, a delay is a second or more, also the last one, and no two need to be equal."""
    delivery.use_rabbitmq("quorum")
    delays = set()
    for _ in range(20):
        delivery.request.headers = CONFLICTS.write(0, 1, waited, 0.0) if waited else {}
        delivery.meet(later, "conflict")
        delays.add(delivery.countdown)
    assert all(1 <= delay <= 2 for delay in delays)
    assert len(delays) == 1 if waited else len(delays) > 1


def test_delay__of_a_classic_queue(delivery: Delivery) -> None:
    """Where a worker has the message during its delay, it may be a part of a second."""
    delivery.use_rabbitmq("classic")
    delivery.meet(RetryLater(delay=0.1, max_delay=0.2), "conflict")
    assert delivery.countdown <= 0.1


def test_headers__of_one_delivery(delivery: Delivery) -> None:
    """A message that follows another one does not say how that one came here, nor how long that one could wait yet."""
    delivery.request.headers = {
        "x-death": [{"count": 1}], "x-first-death-queue": "celery_delayed_0", "tenant": "north",
        **with_rest(delivery.request.id, 0, 1.0),
    }  # fmt: skip
    headers = delivery.meet(RetryLater(), "conflict")
    assert headers.keys() - CONFLICTS == {"tenant", TASK}


@pytest.mark.parametrize("prefix", ["", "0." * 27 + "1."], ids=["sent", "delayed"])
def test_queue__where_rabbitmq_delays(delivery: Delivery, prefix: str) -> None:
    """A task goes back to the queue that it came from, which Celery is told, and not to the default one."""
    delivery.use_rabbitmq("quorum", "celery", "reports", "0.mail")
    delivery.options = {"exchange": "shop", "routing_key": f"{prefix}0.mail"}
    delivery.meet(RetryLater(), "conflict")
    assert delivery.options["queue"] == "0.mail"


@pytest.mark.parametrize(
    ("queues", "options"),
    [
        (("news",), {"exchange": "shop", "routing_key": "news.sport"}),
        (("mail", "news"), {"queue": "news"}),
    ],
    ids=["only one", "named"],
)
def test_queue__known_otherwise(delivery: Delivery, queues: tuple[str, ...], options: dict[str, str]) -> None:
    """The only queue of a worker is that of all its tasks, and a message that was sent to a queue names it."""
    delivery.use_rabbitmq("quorum", *queues)
    delivery.options = options
    delivery.meet(RetryLater(), "conflict")
    assert delivery.options["queue"] == "news"


def test_queue__unknown(delivery: Delivery) -> None:
    """Where several queues may be meant, or none, Celery decides."""
    for kind, names in [("quorum", ("mail", "news")), ("classic", ("mail",))]:
        delivery.use_rabbitmq(kind, *names)
        delivery.options = {"exchange": "shop", "routing_key": "news.sport"}
        delivery.meet(RetryLater(), "conflict")
        assert "queue" not in delivery.options


@pytest.mark.shows("faults#several-queues-are-bound-to-the-exchange-of-a-task")
@pytest.mark.parametrize(
    ("kind", "routing_key"),
    [
        ("fanout", ""),
        ("topic", "invoices.#"),
        ("topic", "*.paid.#"),
        ("topic", "invoices.*"),
        ("direct", "invoices.paid"),
    ],
)
def test_queue__others_are_bound(delivery: Delivery, kind: str, routing_key: str) -> None:
    """A task comes back to its queue alone, whatever its exchange gives to others: each has had its own message."""
    delivery.use_rabbitmq("classic", "mail")
    bills = Queue("bills", Exchange("shop", type=kind), routing_key=routing_key)
    delivery.app.amqp.queues = Queues([Queue("news", Exchange("news", type="fanout")), bills])
    delivery.options = {"exchange": "shop", "routing_key": "invoices.paid"}
    delivery.meet(RetryLater(), "conflict")
    assert (delivery.options["exchange"], delivery.options["routing_key"]) == ("", "bills")
    assert (delivery.options["queue"].name, delivery.options["declare"]) == ("bills", ())
    # The next message comes through the default exchange.
    delivery.options = {"queue": "bills"}
    delivery.meet(RetryLater(), "conflict")
    assert delivery.options["queue"].exchange.name == ""
