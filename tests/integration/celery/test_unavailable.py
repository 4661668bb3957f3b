"""Tasks that go back to the broker while ZooKeeper cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Retry

from django_zklock import LockConflict, ZooKeeperUnavailable
from django_zklock.conflict import Conflict
from django_zklock.contrib.celery import RetryLater, retry
from django_zklock.testing import ZooKeeperServer
from tests.support.tree_reader import wait_until

pytestmark = pytest.mark.celery


# With real workers.


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module", params=[True, False], ids=["gate", "slot"])
def workshop(request: pytest.FixtureRequest, open_workshop: Any, server: ZooKeeperServer) -> Iterator[Any]:
    environment = {"WORKSHOP_CONNECT_TIMEOUT": "0.5"}
    with open_workshop(concurrency=2, server=server, environment=environment, gate=request.param) as workshop:
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
        redis = SimpleNamespace(transport=SimpleNamespace(driver_type="redis"))
        self.app = SimpleNamespace(connection_for_write=lambda: redis)

    def signature_from_request(self, request: Any, *, countdown: float, retries: int, headers: Any) -> Any:
        assert retries == request.retries
        self.countdown = countdown
        return SimpleNamespace(apply_async=lambda **_options: setattr(request, "headers", headers))

    def meet(self, later: RetryLater, refusal: str) -> dict[str, Any]:
        """Return the headers of the message that is sent after a conflict or an outage."""
        unavailable = ZooKeeperUnavailable("lock 'k': no connection", key="k") if refusal == "outage" else None
        conflict = Conflict(
            key="k", function="shop.bill", holder=None, waited=None, args=(), kwargs={}, unavailable=unavailable
        )
        with pytest.raises(Retry) as caught:
            later(conflict)
        assert isinstance(caught.value.exc, ZooKeeperUnavailable if unavailable else LockConflict)
        return dict(self.request.headers)


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    delivery = Delivery()
    monkeypatch.setattr(retry, "running_task", lambda: delivery)
    return delivery


def test_budget__one_each(delivery: Delivery) -> None:
    """Conflicts and outages are counted separately, and a conflict ends an outage, because ZooKeeper has answered."""
    later = RetryLater()
    headers = [delivery.meet(later, refusal) for refusal in ("conflict", "outage", "outage", "conflict", "outage")]
    assert [each["zklock_conflicts"] for each in headers] == [1, 1, 1, 2, 2]
    assert [each.get("zklock_outages") for each in headers] == [None, 1, 2, None, 1]
    assert headers[0]["zklock_conflict_since"] == headers[-1]["zklock_conflict_since"]


def test_budget__delays(delivery: Delivery) -> None:
    """The delays of an outage grow like those of a conflict, up to `max_delay`."""
    later = RetryLater(delay=1, max_delay=8)
    delays = []
    for _ in range(6):
        delivery.meet(later, "outage")
        delays.append(delivery.countdown)
    assert all(most / 2 <= delay <= most for delay, most in zip(delays, [1, 2, 4, 8, 8, 8], strict=True))


def test_budget__new_with_the_next_attempt(delivery: Delivery) -> None:
    """A retry of the task itself begins a new budget."""
    later = RetryLater(max_wait=10)
    delivery.request.headers = {
        "zklock_outages": 7, "zklock_outage_since": time.time() - 60, "zklock_outage_attempt": 0
    }  # fmt: skip
    delivery.request.retries = 1
    assert delivery.meet(later, "outage")["zklock_outages"] == 1


@pytest.mark.parametrize(
    ("refusal", "error"), [("conflict", "lock 'k' is taken"), ("outage", "lock 'k': no connection")]
)
def test_budget__over(delivery: Delivery, refusal: str, error: str) -> None:
    """When one budget is spent the task fails, whatever is left of the other."""
    delivery.request.headers = {
        f"zklock_{refusal}s": 7, f"zklock_{refusal}_since": time.time() - 60, f"zklock_{refusal}_attempt": 0
    }  # fmt: skip
    unavailable = ZooKeeperUnavailable(error, key="k") if refusal == "outage" else None
    conflict = Conflict(
        key="k", function="shop.bill", holder=None, waited=None, args=(), kwargs={}, unavailable=unavailable
    )
    with pytest.raises(LockConflict if unavailable is None else ZooKeeperUnavailable) as caught:
        RetryLater(max_wait=10)(conflict)
    assert str(caught.value).startswith(error)
    assert "shop.bill gave up after 7" in str(caught.value)
    assert caught.value.timeout == 10
