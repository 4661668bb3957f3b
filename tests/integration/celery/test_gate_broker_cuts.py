"""Connections to the broker that are lost: Celery drops requests then, and the gate must not keep their locks."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import ResultHandler

from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import BROKERS, TIMEOUT
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.workshop import Workshop
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SLOTS = 3
MULTIPLIER = 2
# Locks that are free before this are not free because a session has ended.
SESSION_TIMEOUT = 50.0
# A message that kombu could not put back, because the connection for that was cut too, is delivered again after this.
VISIBILITY_TIMEOUT = scaled(25)


@pytest.fixture(scope="module", params=BROKERS)
def rabbitmq_or_redis(request: pytest.FixtureRequest) -> RabbitMQ | None:
    return broker_audit.broker_of(request, request.param)


@pytest.fixture(scope="module")
def unacknowledged() -> str:
    """Return the name of the hash where Redis keeps what is not acknowledged."""
    return f"unacked-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def workshop(open_workshop: Any, rabbitmq_or_redis: RabbitMQ | None, unacknowledged: str) -> Iterator[Any]:
    environment = {"WORKSHOP_PREFETCH": str(MULTIPLIER)}
    if rabbitmq_or_redis is None:
        options = broker_audit.redis_options(unacknowledged, VISIBILITY_TIMEOUT)
        environment |= broker_audit.settings(CELERY_BROKER_TRANSPORT_OPTIONS=options)
    else:
        # Celery's loop does not notice, with the gate or without, that RabbitMQ closes a connection some milliseconds
        # after its beginning. Two heartbeats that are missing tell.
        environment |= broker_audit.settings(CELERY_BROKER_HEARTBEAT=10)
    with open_workshop(
        concurrency=SLOTS, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq_or_redis, environment=environment
    ) as workshop:
        yield workshop


def occupy(workshop: Any, gate: str, count: int) -> None:
    """Let ``count`` tasks use a slot each, until the gate is opened.

    The worker knows that they run, and has acknowledged them. If they came again after a cut, they could fill the
    window, which Celery makes smaller then.
    """
    for _ in range(count):
        workshop.send("idle", gate)
    for _ in range(count):
        workshop.entered(gate)
    wait_until(lambda: len(broker_audit.ask(workshop, "active")) >= count, TIMEOUT, "the worker knows that they run")


@pytest.mark.shows("faults#the-brokers-connections-are-cut")
def test_cuts_under_load__every_task_runs(
    workshop: Any, rabbitmq_or_redis: RabbitMQ | None, unacknowledged: str, key: str
) -> None:
    """Six cuts while 120 short tasks of four keys run: none is lost, no two of a key run together, no lock is left.

    Redis may lose one message at each cut, as without the gate: the server has removed it from the queue, and the
    worker has not stored it as delivered.
    """
    keys = [f"{key}-{number}" for number in range(4)]
    cuts = 6
    for number in range(120):
        workshop.send("workshop.journal.locked", keys[number % 4], key, number, 0.15)
    for _ in range(cuts):
        # The next comes while children are still at the tasks of before: Celery counts their slots as free.
        broker_audit.wait_runs(workshop, key, min(len(broker_audit.runs(workshop, key)) + 2, 120))
        broker_audit.cut_and_wait(workshop, rabbitmq_or_redis)
    if rabbitmq_or_redis is None:
        broker_audit.wait_no_message(workshop, unacknowledged)
    counts = broker_audit.wait_runs(workshop, key, 120 if rabbitmq_or_redis is not None else 120 - cuts)
    assert {entry["together"] for entry in broker_audit.entries(workshop, key)} == {1}
    for each in keys:
        workshop.wait_empty(each, TIMEOUT)
    # What a child has been given and has not accepted is run by the child and delivered again.
    assert counts.total() - len(counts) <= cuts * SLOTS
    broker_audit.assert_as_before(workshop, key, prefetch=SLOTS * MULTIPLIER, slots=SLOTS)


@pytest.mark.shows("faults#the-brokers-connections-are-cut")
def test_cut_after_grant__lock_is_free(workshop: Any, rabbitmq_or_redis: RabbitMQ | None, key: str) -> None:
    """A task that Celery drops on its way into a full pool is delivered again and runs, and its lock is free then."""
    occupy(workshop, f"{key}:busy", SLOTS)
    # Celery counts every slot as free after this.
    broker_audit.cut_and_wait(workshop, rabbitmq_or_redis)
    task = workshop.send("workshop.journal.locked", key, f"{key}:journal")
    workshop.wait_count(key, 1, TIMEOUT)
    wait_until(lambda: task.id in str(broker_audit.ask(workshop, "reserved")), TIMEOUT, "the worker has the task")
    broker_audit.cut_and_wait(workshop, rabbitmq_or_redis)
    # After each cut the idle ones are delivered again, and may run once more.
    for _ in range(3 * SLOTS):
        workshop.let_go(f"{key}:busy")
    broker_audit.wait_runs(workshop, f"{key}:journal", 1)
    workshop.wait_empty(key, TIMEOUT)
    broker_audit.assert_as_before(workshop, key, prefetch=SLOTS * MULTIPLIER, slots=SLOTS)


@pytest.mark.shows("faults#the-brokers-connections-are-cut")
def test_cut_with_parked_tasks__prefetch_count(workshop: Any, rabbitmq_or_redis: RabbitMQ | None, key: str) -> None:
    """After a cut unrelated tasks run past those that wait for a lock, and the prefetch count is restored."""
    occupy(workshop, f"{key}:busy", 1)
    broker_audit.cut_and_wait(workshop, rabbitmq_or_redis)
    workshop.other_client.take(key)
    for number in range(6):
        workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
    workshop.wait_count(key, 7, TIMEOUT)
    # The first acknowledgements after a cut restore the prefetch count. The idle one may run once more.
    for _ in range(2):
        workshop.let_go(f"{key}:busy")
    for number in range(5):
        workshop.send("workshop.journal.unlocked", f"{key}:unrelated", number)
    broker_audit.wait_runs(workshop, f"{key}:unrelated", 5)
    workshop.other_client.release(key)
    broker_audit.wait_runs(workshop, f"{key}:journal", 6)
    assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
    workshop.wait_empty(key, TIMEOUT)
    broker_audit.assert_as_before(workshop, key, prefetch=SLOTS * MULTIPLIER, slots=SLOTS)


def test_broker_gone__child_is_killed(open_workshop: Any, key: str) -> None:
    """The worker kills a child that has lost its lock and cannot end itself, also while the worker has no broker."""
    with Redis() as broker, open_workshop(own_broker=broker, session_timeout=4.0) as workshop:
        workshop.send("hold_terminably", key, f"{key}:gate")
        pid = workshop.entered(f"{key}:gate")["pid"]
        os.kill(pid, signal.SIGSTOP)
        broker.stop()
        workshop.wait_log("Cannot connect to redis")
        workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
        workshop.wait_log("event=child_ended")
        wait_until(lambda: not _runs(pid), TIMEOUT, "the child is killed")


@pytest.mark.xdist_group("rabbitmq")
def test_broker_gone__dropped_task(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """The lock of a task that Celery has dropped is free before the broker is back."""
    with Proxy((LOOPBACK, rabbitmq.port)) as proxy:
        broker = SimpleNamespace(url=f"amqp://guest:guest@{proxy.hosts}//")
        with open_workshop(concurrency=SLOTS, session_timeout=SESSION_TIMEOUT, rabbitmq=broker) as workshop:
            occupy(workshop, f"{key}:busy", SLOTS)
            before = broker_audit.connections_begun(workshop)
            # Celery counts every slot as free after this.
            proxy.cut()
            again = "the worker is connected again"
            wait_until(lambda: broker_audit.connections_begun(workshop) > before, TIMEOUT, again)
            workshop.send("workshop.journal.locked", key, f"{key}:journal")
            in_pool = "the task is on its way into the pool"
            wait_until(lambda: _states(workshop)[-1:] == ["granted"], TIMEOUT, in_pool)
            proxy.refusing = True
            proxy.cut()
            workshop.wait_log("event=dropped")
            workshop.wait_empty(key, TIMEOUT)


@pytest.mark.shows("faults#the-brokers-connections-are-cut")
def test_cut_while_a_result_is_read__child_is_used(open_workshop: Any, key: str) -> None:
    """A child whose result was read in part when the connection was lost gets the next task."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT) as workshop:
        failed = workshop.send("fail_in_pieces", key, f"{key}:gate")
        workshop.entered(f"{key}:gate")
        # The loop has turned when it has answered: it has read the first piece.
        broker_audit.ask(workshop, "ping")
        broker_audit.cut_and_wait(workshop, None)
        workshop.let_go(f"{key}:gate")
        workshop.send("workshop.journal.locked", key, f"{key}:journal")
        broker_audit.wait_runs(workshop, f"{key}:journal", 1)
        assert failed.state == "FAILURE"
        workshop.wait_empty(key, TIMEOUT)
        wait_until(lambda: not broker_audit.ask(workshop, "active"), TIMEOUT, "no task runs")


# Earlier versions wait for ever for such a result, also without a cut.
if hasattr(ResultHandler, "_finish_partial_read"):

    def test_shutdown_while_a_result_is_read__ends(open_workshop: Any, key: str) -> None:
        """A shutdown without a broker reads the rest of a result that was read in part, and ends."""
        with (
            Redis() as broker,
            open_workshop(own_broker=broker, concurrency=1, session_timeout=SESSION_TIMEOUT) as workshop,
        ):
            failed = workshop.send("fail_in_pieces", key, f"{key}:gate")
            workshop.entered(f"{key}:gate")
            broker_audit.ask(workshop, "ping")
            broker.stop()
            workshop.wait_log("Cannot connect to redis")
            workshop.worker.signal(signal.SIGTERM)
            workshop.wait_log("Warm shutdown")
            workshop.let_go(f"{key}:gate")
            assert workshop.worker.wait(scaled(TIMEOUT)) is not None
            assert failed.state == "FAILURE"
            workshop.wait_empty(key, TIMEOUT)


def _runs(pid: int) -> bool:
    """Return whether the process runs: the worker reads its exit status when it has a broker."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _states(workshop: Workshop) -> list[str]:
    return [each["state"] for each in broker_audit.ask(workshop, "zklocks")]
