"""Waiting at the gate: without a slot, visible to inspection, and until revocation, expiry or timeout."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_zklock import LockConflict, LockTimeout
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


def test_no_slot__is_no_wait(workshop: Any, key: str) -> None:
    """The waiting time of a lock does not include the waiting time for a slot."""
    workshop.send("idle", f"{key}:gate")
    workshop.entered(f"{key}:gate")
    # Longer than a worker takes for a lock that is free, and from a free slot to the result. A busy machine gets
    # another try; a waiting time that includes the pause fails each of them.
    pause, waited, took = 1.5, 60.0, 60.0
    while max(waited, took) > pause:
        pause *= 2
        assert pause < 100
        task = workshop.send("shared_below", key)
        wait_until(lambda: [*workshop.inspect().reserved().values()] != [[]], SOON, "the worker has the task")
        time.sleep(pause)
        released = time.monotonic()
        workshop.let_go(f"{key}:gate")
        waited, took = workshop.result(task)["waited"], time.monotonic() - released
        if max(waited, took) > pause:
            workshop.send("idle", f"{key}:gate")
            workshop.entered(f"{key}:gate")


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


def test_coalesce(workshop: Any, key: str) -> None:
    """One task waits at the gate, and the others end at once, with the reason in the result."""
    workshop.other_client.take(key)
    first = workshop.send("coalesce", key)
    workshop.wait_count(key, 2)
    for _ in range(3):
        result = workshop.result(workshop.send("coalesce", key))
        assert (result["zklock"], result["key"], result["reason"]) == ("skipped", key, "coalesced")
        assert result["holder"].startswith("label the other client")
    workshop.wait_count(key, 2)
    workshop.other_client.release(key)
    assert workshop.result(first)["key"] == key


def test_running__is_told(open_workshop: Any, key: str) -> None:
    """The gate sends Celery events for waiting, holding and releasing."""
    with open_workshop(concurrency=1, session_timeout=30, options=["--task-events"]) as workshop:
        heard: list[dict[str, Any]] = []
        with workshop.sender.connection() as connection:
            receiver = workshop.sender.events.Receiver(connection, handlers={"*": heard.append})
            with receiver.consumer_context() as (listening, _, _):

                def notified(what: str) -> bool:
                    with contextlib.suppress(TimeoutError):
                        listening.drain_events(timeout=0.2)
                    return any(event["type"] == f"zklock-{what}" for event in heard)

                # Earlier events are lost: the transport subscribes when it first listens.
                notified("anything")
                workshop.other_client.take(key)
                task = workshop.send("shared_below", key)
                wait_until(lambda: notified("waiting"), SOON, "the wait is told")
                workshop.other_client.release(key)
                wait_until(lambda: notified("released"), SOON, "the release is told")
                workshop.result(task)
        ours = [event for event in heard if event["type"].startswith("zklock-")]
        assert [event["type"] for event in ours] == ["zklock-waiting", "zklock-held", "zklock-released"]
        assert {(event["uuid"], event["key"]) for event in ours} == {(task.id, key)}


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


def test_timeout__fails_as_in_a_slot(workshop: Any, key: str) -> None:
    """A task whose timeout is over fails with the same error as in a slot, and names the holder."""
    workshop.other_client.take(key)
    error = workshop.outcome(workshop.send("time_out", key, f"{key}:run"))
    assert type(error) is LockTimeout
    assert str(error).startswith(f"lock '{key}' was not granted within {scaled(1):g} s; held by label the other client")
    workshop.wait_count(key, 1)


def test_policies__as_in_a_slot(workshop: Any, key: str) -> None:
    """`raise`, `skip` and a callable have the same results as without the gate."""
    workshop.other_client.take(key)
    assert type(workshop.outcome(workshop.send("refuse", key))) is LockConflict
    skipped = workshop.result(workshop.send("skip", key))
    assert (skipped["zklock"], skipped["reason"]) == ("skipped", "conflict")
    assert skipped["holder"].startswith("label the other client")
    assert workshop.result(workshop.send("tell_conflict", key))["holder"].startswith("label the other client")
    workshop.wait_count(key, 1)


def test_retry__comes_back(workshop: Any, key: str) -> None:
    """`retry` sends the task back to the broker, without its ticket, and it runs when the lock is free."""
    workshop.other_client.take(key)
    task = workshop.send("come_back", key, f"{key}:run")
    wait_until(lambda: task.state == "RETRY", SOON, "the task has gone back")
    workshop.other_client.release(key)
    result = workshop.result(task)
    assert result["conflicts"] >= 1
    assert result["key"] == key


@pytest.mark.slow
def test_maximum_wait__goes_back_to_the_broker(open_workshop: Any, key: str) -> None:
    """A task that has waited for the maximum time goes back to the broker, keeps its retries, and runs later."""
    environment = {"WORKSHOP_MAX_WAIT": str(scaled(2))}
    with open_workshop(concurrency=1, session_timeout=30, environment=environment) as workshop:
        workshop.other_client.take(key)
        task = workshop.send("shared_below", key)
        (first,) = set(workshop.wait_count(key, 2)) - set(workshop.nodes(key)[:1])
        wait_until(lambda: first not in workshop.nodes(key), SOON, "the task has left the queue")
        workshop.wait_count(key, 2, SOON)
        workshop.other_client.release(key)
        assert workshop.result(task)["retries"] == 0


def test_granted_without_a_slot__lets_others(workshop: Any, key: str) -> None:
    """A lock that is granted while no slot is free is released if another worker, or a body, waits for it."""
    workshop.other_client.take(key)
    waiting = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.send("idle", f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.other_client.release(key)
    # Behind the granted request.
    workshop.other_client.take(key)
    workshop.other_client.release(key)
    workshop.let_go(f"{key}:gate")
    assert workshop.result(waiting)["key"] == key


def test_key__that_cannot_be_made(workshop: Any, key: str) -> None:
    """A key that cannot be made of the arguments fails the task, in its slot, as without the gate."""
    error = workshop.outcome(workshop.send("fail_to_name", key))
    assert "cannot be made from this call" in str(error)


@pytest.mark.parametrize("task", ["number_key", "number_key_for_a_while"])
def test_key__another_one_each_time(workshop: Any, key: str, task: str) -> None:
    """A key callable that is called again for the body, and gives another key: the body has the lock of its own key."""
    result = workshop.result(workshop.send(task, key))
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


def test_key__of_other_arguments(workshop: Any, key: str) -> None:
    """A task whose `__call__` changes the arguments acquires their lock itself, and the gate's hold is released."""
    result = workshop.result(workshop.send("alter", key))
    assert result["key"] == result["argument"] == f"{key}:altered"
    workshop.wait_empty(key)
    workshop.wait_empty(f"{key}:altered")
    workshop.wait_log(f"event=header_refused task={result['id']}")


def test_key__of_another_call(workshop: Any, key: str) -> None:
    """A locked function that runs before the body acquires its own lock, and so does the body after it."""
    assert workshop.result(workshop.send("lock_before", key)) == [f"{key}:other", key]
    workshop.wait_empty(key)
    workshop.wait_empty(f"{key}:other")


def test_task_option__no_gate(workshop: Any, key: str) -> None:
    """A task with `zklock_gate=False` locks in its slot."""
    task = workshop.send("past_the_gate", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    (holder,) = workshop.holders(key)
    assert holder.pid == facts["pid"] != workshop.worker.pid
    workshop.let_go(f"{key}:gate")
    workshop.result(task)


def test_countdown__waits_after_it(workshop: Any, key: str) -> None:
    """A task with a countdown joins the queue when its countdown is over."""
    workshop.other_client.take(key)
    task = workshop.send("shared_below", key, countdown=1)
    workshop.wait_count(key, 2)
    workshop.other_client.release(key)
    assert workshop.result(task)["key"] == key


def test_two_locks__both_hold(workshop: Any, key: str) -> None:
    """A task under two locks holds both, the outer one through the gate."""
    assert workshop.result(workshop.send("twice_above", key))["key"] == key
    workshop.wait_empty(key)
    workshop.wait_empty(f"{key}:outer")
