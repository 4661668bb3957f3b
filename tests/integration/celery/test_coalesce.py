"""`on_conflict="coalesce"` on workers: a task is skipped only for one that waits to run the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock.zk.lock import Lock
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.threads import Runner

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]


@pytest.fixture(scope="module", params=[True, False], ids=["gate", "slot"])
def workshop(request: pytest.FixtureRequest, open_workshop: Any) -> Iterator[Any]:
    # Without the gate two tasks wait in slots, and one more is skipped.
    with open_workshop(concurrency=3, session_timeout=30, gate=request.param) as workshop:
        yield workshop


def is_skipped(result: dict[str, Any]) -> bool:
    return result.get("reason") == "coalesced"


@pytest.mark.parametrize(("other", "name"), [("shared_below", "coalesce"), ("made1", "made2")])
def test_another_function_waits(workshop: Any, key: str, other: str, name: str) -> None:
    """A task runs behind a task of another function, also of another task of the same name that a factory has made."""
    workshop.other_client.take(key)
    first = workshop.send(other, key)
    workshop.wait_count(key, 2)
    second = workshop.send(name, key)
    workshop.wait_count(key, 3)
    assert is_skipped(workshop.result(workshop.send(name, key)))
    workshop.other_client.release(key)
    assert [workshop.result(task)["key"] for task in (first, second)] == [key, key]
    workshop.wait_empty(key)


def test_block_waits(workshop: Any, key: str) -> None:
    """A task runs behind a block in another process, also if that one gives up."""
    workshop.other_client.take(key)
    staying, leaving = (Lock(key, workshop.pool) for _ in range(2))
    first = Runner(lambda: staying.acquire(60))
    workshop.wait_count(key, 2)
    second = Runner(lambda: leaving.acquire(2))
    workshop.wait_count(key, 3)
    task = workshop.send("coalesce", key)
    workshop.wait_count(key, 4)
    assert isinstance(second.outcome(), TimeoutError)
    assert is_skipped(workshop.result(workshop.send("coalesce", key)))
    workshop.other_client.release(key)
    first.result().release()
    assert workshop.result(task)["key"] == key


# Without the gate a task that waits has begun, and does not expire.
@pytest.mark.parametrize("workshop", [True], indirect=True, ids=["gate"])
def test_waiting_task_may_expire(workshop: Any, key: str) -> None:
    """No task is skipped for one that is discarded if its message expires before its turn."""
    workshop.other_client.take(key)
    first = workshop.send("coalesce", key, expires=300)
    workshop.wait_count(key, 2)
    second = workshop.send("coalesce", key)
    workshop.wait_count(key, 3)
    # It may be skipped itself.
    assert is_skipped(workshop.result(workshop.send("coalesce", key, expires=300)))
    workshop.other_client.release(key)
    assert [workshop.result(task)["key"] for task in (first, second)] == [key, key]


@pytest.mark.shows("faults#a-call-was-skipped-for-a-waiter-that-ends")
@pytest.mark.xdist_group("rabbitmq")
def test_worker_dies_while_its_task_waits(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """A task that is delivered again runs: it is not skipped for the node that its dead worker has left."""
    with open_workshop(concurrency=1, session_timeout=60, rabbitmq=rabbitmq) as workshop:
        workshop.other_client.take(key)
        task = workshop.send("coalesce", key)
        (_, left) = workshop.wait_count(key, 2)
        workshop.worker.kill()
        workshop.start()
        (_, found, _) = workshop.wait_count(key, 3)
        assert found == left
        assert is_skipped(workshop.result(workshop.send("coalesce", key)))
        # What the end of the session does.
        workshop.delete(f"{workshop.pool.path(key)}/{left}")
        workshop.other_client.release(key)
        assert workshop.result(task)["key"] == key
