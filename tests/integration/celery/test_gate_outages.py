"""Outages of ZooKeeper, and a stopped worker: an outage decides nothing, and no body begins with a lost lock."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import TIMEOUT
from tests.toolbox.timing import MAX_SESSION, scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

ENDS = {"SUCCESS", "FAILURE"}


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(min_session_timeout=0.8, max_session_timeout=MAX_SESSION) as server:
        yield server


@contextlib.contextmanager
def away(server: ZooKeeperServer) -> Iterator[None]:
    """Make the server unreachable."""
    with server.faults.refuse():
        server.faults.drop()
        yield


def queue_length(server: ZooKeeperServer, workshop: Any, key: str) -> int:
    """Return how many contenders the server has."""
    path = workshop.pool.path(key)
    return sum(each.startswith(f"{path}/") for each in server.paths())


def wait_queue(server: ZooKeeperServer, workshop: Any, key: str, count: int) -> None:
    wait_until(lambda: queue_length(server, workshop, key) == count, TIMEOUT, f"{count} nodes of {key}")


def sleep_until(moment: float) -> None:
    wait_until(lambda: time.monotonic() > moment, TIMEOUT, "the time is over")


def count_parked(workshop: Any) -> int:
    return sum(each["state"] == "waiting" for each in broker_audit.ask(workshop, "zklocks"))


def all_ended(sent: list[Any]) -> bool:
    return all(task.state in ENDS for task in sent)


def count_failures(sent: list[Any]) -> int:
    """Wait until all tasks are done, and return how many have failed."""
    wait_until(lambda: all_ended(sent), 80, "every task is done")
    return sum(task.state == "FAILURE" for task in sent)


@pytest.mark.shows("faults#zookeeper-cannot-be-reached-and-tasks-arrive")
@pytest.mark.slow
def test_short_outage__worker_leaves_tasks_to_others(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """While ZooKeeper is away, a worker takes only tasks for its slots: no task runs twice after the outage."""
    count, seconds = 30, 0.4
    unacknowledged = f"unacknowledged-{uuid.uuid4().hex[:8]}"
    environment = broker_audit.settings(
        CELERY_BROKER_TRANSPORT_OPTIONS=broker_audit.redis_options(unacknowledged, scaled(8))
    )
    # No task fails, however long the outage is.
    environment |= {"WORKSHOP_PREFETCH": "1", "WORKSHOP_CONNECT_TIMEOUT": str(scaled(60)), "WORKSHOP_MAX_JOINING": "1"}
    with open_workshop(concurrency=1, session_timeout=30, server=server, environment=environment) as workshop:
        workshop.result(workshop.send("shared_below", key))
        with away(server):
            begun = time.monotonic()
            for number in range(count):
                workshop.send("workshop.journal.locked", f"{key}-{number}", f"{key}:journal", number, seconds)
            sleep_until(begun + 2)
        workshop.start_another(concurrency=1)
        broker_audit.wait_runs(workshop, f"{key}:journal", count, 60)
        broker_audit.wait_no_message(workshop, unacknowledged)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        broker_audit.assert_as_before(workshop, key, prefetch=1, slots=1)


@pytest.mark.shows("faults#zookeeper-cannot-be-reached-and-tasks-arrive")
def test_long_outage__slots_pace_the_failures(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """While ZooKeeper is away, no more tasks fail than the slots can run one after the other."""
    count = 60
    environment = {"WORKSHOP_PREFETCH": "4", "WORKSHOP_CONNECT_TIMEOUT": "1", "WORKSHOP_MAX_JOINING": "1"}
    with open_workshop(concurrency=1, session_timeout=20, server=server, environment=environment) as workshop:
        workshop.result(workshop.send("shared_below", key))
        begun = time.monotonic()
        with away(server):
            sent = [
                workshop.send("workshop.journal.locked", f"{key}-{number}", f"{key}:journal", number)
                for number in range(count)
            ]
            sleep_until(begun + 5)
        # The outage is over for the worker when it has its session again.
        wait_until(lambda: any(task.state == "SUCCESS" for task in sent) or all_ended(sent), TIMEOUT, "one has run")
        lasted = time.monotonic() - begun
        failures = count_failures(sent)
        assert failures <= lasted / 1 + 2
        assert broker_audit.runs(workshop, f"{key}:journal").total() == count - failures
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        broker_audit.assert_as_before(workshop, key, prefetch=4, slots=1)


@pytest.mark.shows("faults#zookeeper-cannot-be-reached-and-tasks-arrive")
@pytest.mark.slow
def test_outage_beyond_the_session__parked_tasks_stay(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """Tasks that wait without a timeout join the queue again after an outage that has ended their session."""
    count = 40
    environment = {"WORKSHOP_PREFETCH": "4", "WORKSHOP_CONNECT_TIMEOUT": "1"}
    with open_workshop(concurrency=1, session_timeout=2, server=server, environment=environment) as workshop:
        workshop.other_client.take(key)
        sent = [workshop.send("workshop.journal.locked", key, f"{key}:journal", number) for number in range(count)]
        wait_queue(server, workshop, key, count + 1)
        # The node exists before its worker knows that the request waits and needs no slot.
        wait_until(lambda: count_parked(workshop) == count, TIMEOUT, "all are parked")
        with away(server):
            # The holder's node remains.
            wait_queue(server, workshop, key, 1)
            sleep_until(time.monotonic() + 3)
        wait_queue(server, workshop, key, count + 1)
        workshop.other_client.release(key)
        assert count_failures(sent) == 0
        numbers = [entry["number"] for entry in broker_audit.entries(workshop, f"{key}:journal")]
        assert len(numbers) == len(set(numbers)) == count
        broker_audit.assert_as_before(workshop, key, prefetch=4, slots=1)


@pytest.mark.shows("faults#the-main-process-is-stopped-while-a-granted-task-waits-for-a-slot")
def test_main_process_stopped__no_body_begins_with_a_lost_lock(open_workshop: Any, key: str) -> None:
    """A lock that is lost between its grant and the slot is acquired again before the body begins."""
    environment = {"WORKSHOP_PREFETCH": "1"}
    with open_workshop(concurrency=1, session_timeout=2, environment=environment) as workshop:
        workshop.other_client.take(key)
        task = workshop.send("workshop.journal.report_loss", key, f"{key}:journal")
        workshop.wait_count(key, 2)
        busy = workshop.send("idle", f"{key}:busy")
        workshop.entered(f"{key}:busy")
        workshop.other_client.release(key)
        workshop.wait_count(key, 1)
        workshop.worker.signal(signal.SIGSTOP)
        try:
            # As soon as the session has ended.
            token = workshop.other_client.take(key).token
            workshop.let_go(f"{key}:busy")
            # The slot is free when the main process goes on.
            workshop.result(busy)
        finally:
            workshop.worker.signal(signal.SIGCONT)
        workshop.wait_count(key, 2)
        workshop.other_client.release(key)
        assert workshop.result(task)["token"] > token
        assert [entry["lost"] for entry in broker_audit.entries(workshop, f"{key}:journal")] == [False]
        workshop.wait_empty(key)
        broker_audit.assert_as_before(workshop, key, prefetch=1, slots=1)
