"""Messages that a worker keeps for too long are delivered again by the broker: no task runs twice because of that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import BROKERS, TIMEOUT
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.slow]

# An hour with Redis and half an hour with RabbitMQ, scaled down.
VISIBILITY_TIMEOUT = scaled(8)
SESSION_TIMEOUT = 50.0


@pytest.fixture
def unacknowledged() -> str:
    """Return the name of Redis' hash for a test's unacknowledged messages; by default all workers share one."""
    return f"unacknowledged-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def environment(unacknowledged: str) -> dict[str, str]:
    options = broker_audit.redis_options(unacknowledged, VISIBILITY_TIMEOUT)
    return broker_audit.settings(CELERY_BROKER_TRANSPORT_OPTIONS=options) | {"WORKSHOP_PREFETCH": "1"}


@pytest.fixture
def limited(request: pytest.FixtureRequest, broker_name: str) -> Iterator[Any]:
    """Return RabbitMQ with a limit for acknowledgements, or ``None`` for Redis."""
    rabbitmq = broker_audit.broker_of(request, broker_name)
    if rabbitmq is None:
        yield None
        return
    rabbitmq.limit_acknowledgement(VISIBILITY_TIMEOUT, look_every=1.0)
    yield rabbitmq
    rabbitmq.limit_acknowledgement()


@pytest.mark.shows("faults#the-broker-delivers-messages-again-after-a-time")
@pytest.mark.parametrize("broker_name", BROKERS)
def test_readers_behind_a_writer__run_once(
    open_workshop: Any, limited: Any, environment: dict[str, str], unacknowledged: str, key: str
) -> None:
    """Granted readers that wait for one slot go back to the broker before it delivers them again."""
    count = 32
    if limited is not None:
        # No client can ask RabbitMQ for its limit.
        environment = broker_audit.settings(CELERY_ZKLOCK_GATE_MAX_WAIT=VISIBILITY_TIMEOUT / 2) | {
            "WORKSHOP_PREFETCH": "1"
        }
    with open_workshop(
        concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=limited, environment=environment
    ) as workshop:
        workshop.other_client.take(key)
        for number in range(count):
            workshop.send("workshop.journal.read", key, f"{key}:journal", number, 0.4)
        workshop.wait_count(key, count + 1, TIMEOUT)
        workshop.other_client.release(key)
        other = workshop.start_another(concurrency=1)
        broker_audit.wait_runs(workshop, f"{key}:journal", count, 60)
        if limited is None:
            broker_audit.wait_no_message(workshop, unacknowledged)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        assert workshop.worker.is_running()
        assert other.is_running()
        workshop.wait_empty(key, TIMEOUT)
        broker_audit.assert_as_before(workshop, key, prefetch=1, slots=1)


@pytest.mark.shows("faults#the-broker-delivers-messages-again-after-a-time")
def test_countdown_before_the_queue__runs_once(
    open_workshop: Any, environment: dict[str, str], unacknowledged: str, key: str
) -> None:
    """The time of a countdown counts: a message's age begins with its delivery."""
    with open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        workshop.other_client.take(key)
        sent = time.monotonic()
        workshop.send("workshop.journal.locked", key, f"{key}:journal", countdown=0.65 * VISIBILITY_TIMEOUT)
        over = sent + VISIBILITY_TIMEOUT + 2
        wait_until(lambda: time.monotonic() > over, TIMEOUT, "the broker may have delivered the message again")
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", 1)
        broker_audit.wait_no_message(workshop, unacknowledged)
        workshop.wait_empty(key, TIMEOUT)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}


@pytest.mark.shows("faults#the-broker-delivers-messages-again-after-a-time")
def test_killed_worker__others_have_the_rest(open_workshop: Any, unacknowledged: str, key: str) -> None:
    """A worker takes no more tasks of a key than a setting allows: if it dies, other workers can run the rest."""
    count, parked = 30, 5
    # One is in the slot, and one can wait for the slot.
    most = parked + 2
    options = broker_audit.redis_options(unacknowledged, 3600)
    environment = broker_audit.settings(CELERY_BROKER_TRANSPORT_OPTIONS=options, CELERY_ZKLOCK_GATE_MAX_PARKED=parked)
    environment["WORKSHOP_PREFETCH"] = "1"
    with open_workshop(concurrency=1, session_timeout=2, environment=environment) as workshop:
        workshop.other_client.take(key)
        for number in range(count):
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
        taken = 0
        wait_until(lambda: len(workshop.nodes(key)) > parked, TIMEOUT, "as many wait as may")
        assert broker_audit.ask(workshop, "zklock_gate")["max_parked"] == parked
        over = time.monotonic() + 3
        while time.monotonic() < over:
            taken = max(taken, broker_audit.unacknowledged(workshop, unacknowledged))
            time.sleep(0.05)
        assert taken <= most
        workshop.worker.kill()
        workshop.wait_count(key, 1, TIMEOUT)
        workshop.start(concurrency=1)
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", count - most)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
