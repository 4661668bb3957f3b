"""Waiting at the gate: without a slot, visible to inspection, and until revocation, expiry or timeout."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_zklock.zk.pool import Pool
from tests.toolbox.django.layer import OtherClient
from tests.toolbox.timing import scaled, wait_until

pytestmark = [
    pytest.mark.oldest,
    pytest.mark.celery,
    pytest.mark.zookeeper,
    # kombu 5.3 warns with redis 5.3, in the client that inspects the worker.
    pytest.mark.filterwarnings("ignore:Call to 'get_connection' function with deprecated usage"),
]

# Seconds, enough for a busy machine, and less than the session timeout.
SOON = 20.0


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    # One slot, and a prefetch window of one message.
    environment = {"WORKSHOP_PREFETCH": "1"}
    with open_workshop(concurrency=1, session_timeout=30, environment=environment) as workshop:
        yield workshop


def test_parked__leaves_slot_and_window(workshop: Any, key: str) -> None:
    """Waiting tasks take neither the only slot nor the prefetch window: unrelated tasks run meanwhile."""
    workshop.other_client.take(key)
    waiting = [workshop.send("shared_below", key) for _ in range(5)]
    workshop.wait_count(key, 6)
    for _ in range(3):
        assert workshop.result(workshop.send("idle"))["key"] is None
    workshop.other_client.release(key)
    tokens = [workshop.result(task)["token"] for task in waiting]
    assert tokens == sorted(tokens)
    workshop.wait_empty(key)


def test_parked__by_its_key(workshop: Any, key: str) -> None:
    """A task waits in the ensemble that has its key, and runs with that lock."""
    far = f"{key}:elsewhere"
    options = dataclasses.replace(workshop.pool.options, root=f"{workshop.root}/elsewhere")
    with contextlib.closing(Pool("elsewhere", options)) as pool:
        other_client = OtherClient(pool)
        other_client.take(far)
        task = workshop.send("hold_by_key", far, f"{key}:gate")
        wait_until(lambda: len(workshop.nodes_at(pool.path(far))) == 2, SOON, "the task waits there")
        assert workshop.nodes(far) == []
        other_client.release(far)
        assert workshop.entered(f"{key}:gate")["key"] == far
        assert len(workshop.nodes_at(pool.path(far))) == 1
        workshop.let_go(f"{key}:gate")
        assert workshop.result(task)["key"] == far
        wait_until(lambda: not workshop.nodes_at(pool.path(far)), SOON, "the lock is free")
    near = workshop.send("hold_by_key", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    assert len(workshop.nodes(key)) == 1
    workshop.let_go(f"{key}:gate")
    assert workshop.result(near)["key"] == key


def test_parked__is_reserved(workshop: Any, key: str) -> None:
    """A waiting task is in `inspect reserved`, and in `inspect zklocks` with its key and the holder."""
    workshop.other_client.take(key)
    task = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    inspect = workshop.inspect()
    (reserved,) = inspect.reserved().values()
    assert [each["id"] for each in reserved] == [task.id]
    wait_until(lambda: inspect._request("zklocks").popitem()[1][0]["holder"], SOON, "the holder is known")
    ((waiting,),) = inspect._request("zklocks").values()
    assert waiting["holder"].startswith("label the other client")
    expected = {"id": task.id, "key": key, "state": "waiting", "token": None, "pid": None}
    assert {name: waiting[name] for name in expected} == expected
    workshop.other_client.release(key)
    workshop.result(task)


def test_parked__revoked(workshop: Any, key: str) -> None:
    """A waiting task that is revoked leaves the queue."""
    workshop.other_client.take(key)
    task = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.control.revoke(task.id)
    workshop.wait_count(key, 1, SOON)
    wait_until(lambda: task.state == "REVOKED", SOON, "the task is revoked")
    workshop.other_client.release(key)
    workshop.wait_empty(key)


def test_parked__expires(workshop: Any, key: str) -> None:
    """A waiting task that expires leaves the queue."""
    workshop.other_client.take(key)
    task = workshop.send("shared_below", key, expires=datetime.now(UTC) + timedelta(seconds=scaled(2)))
    workshop.wait_count(key, 2)
    workshop.wait_count(key, 1, SOON)
    wait_until(lambda: task.state == "REVOKED", SOON, "the task is revoked")
    workshop.other_client.release(key)


def test_key__that_cannot_be_made(workshop: Any, key: str) -> None:
    """A key that cannot be made of the arguments fails the task, in its slot, as without the gate."""
    error = workshop.outcome(workshop.send("fail_to_name", key))
    assert "cannot be made from this call" in str(error)


def test_key__another_one_each_time(workshop: Any, key: str) -> None:
    """A key callable that is called again for the body, and gives another key: the body has the lock of its own key."""
    result = workshop.result(workshop.send("number_key", key))
    made = workshop.board.lrange(f"{key}:keys", 0, -1)
    assert made[0].startswith(f"{key}:{workshop.worker.pid}:")
    assert result["key"] == made[-1] != made[0]
    workshop.wait_log(f"event=header_refused task={result['id']}")
    for each in made:
        workshop.wait_empty(each)


def test_key__of_the_request(workshop: Any, key: str) -> None:
    """A key callable of a bound task finds the task's request as in a slot."""
    result = workshop.result(workshop.send("rooted", key))
    assert result["root"] == result["id"]
    assert result["key"] == f"{key}:{result['root']}"


def test_key__of_a_header(workshop: Any, key: str) -> None:
    """A key of a tenant that the producer has put into a header is the same at the gate, in the body and in a retry."""
    workshop.other_client.take(f"north:{key}")
    task = workshop.send("of_tenant", key, headers={"tenant": "north"})
    workshop.wait_count(f"north:{key}", 2)
    other = workshop.result(workshop.send("of_tenant", key, headers={"tenant": "south"}))
    assert (other["key"], other["retries"]) == (f"south:{key}", 1)
    workshop.other_client.release(f"north:{key}")
    result = workshop.result(task)
    assert (result["key"], result["retries"]) == (f"north:{key}", 1)
    for each in (result, other):
        assert f"event=header_refused task={each['id']}" not in workshop.worker.log.read_text()


def test_task_option__no_gate(workshop: Any, key: str) -> None:
    """A task with `zklock_gate=False` locks in its slot."""
    task = workshop.send("past_the_gate", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    (holder,) = workshop.holders(key)
    assert holder.pid == facts["pid"] != workshop.worker.pid
    workshop.let_go(f"{key}:gate")
    workshop.result(task)
