"""What is counted after a fault: runs, order, slots and the prefetch count."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import redis

from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.timing import wait_until

# Seconds, enough for a busy machine.
TIMEOUT = 40.0

# One group, so that one process alone starts a server.
BROKERS = ["redis", pytest.param("rabbitmq", marks=pytest.mark.xdist_group("rabbitmq"))]


def settings(**changed: Any) -> dict[str, str]:
    """Return the environment that changes the settings of a worker."""
    return {"WORKSHOP_SETTINGS": json.dumps(changed)}


def broker_of(request: pytest.FixtureRequest, name: str) -> RabbitMQ | None:
    """Return RabbitMQ, or ``None`` for Redis, which every workshop has."""
    return request.getfixturevalue("rabbitmq") if name == "rabbitmq" else None


# The broker.


def cut(workshop: Any, rabbitmq: RabbitMQ | None) -> None:
    """Close every connection to the broker."""
    if rabbitmq is not None:
        rabbitmq.close_connections()
    else:
        with messages(workshop) as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)
    # That of the test is one of them: a later test of this workshop would find it closed when it reads.
    with workshop.sender.pool.acquire() as connection:
        connection.collect()


def connections_begun(workshop: Any) -> int:
    """Return how often the worker has connected to its broker."""
    return str(workshop.worker.log.read_text()).count("Connected to ")


def cut_and_wait(workshop: Any, rabbitmq: RabbitMQ | None) -> None:
    """Close every connection to the broker, and wait until the worker is back.

    A worker that has connected and does not listen yet would not notice it: it takes its commands from new connections.
    """
    ask(workshop, "ping")
    before = connections_begun(workshop)
    cut(workshop, rabbitmq)
    wait_until(lambda: connections_begun(workshop) > before, TIMEOUT, "the worker is connected again")


def redis_options(unacknowledged: str, visibility_timeout: float) -> dict[str, Any]:
    """Return the options of a worker with that timeout, and with a hash of its own for what is not acknowledged."""
    return {
        "visibility_timeout": visibility_timeout,
        # kombu looks once in a hundred seconds unless told.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_key": unacknowledged,
        "unacked_index_key": f"{unacknowledged}_index",
        "unacked_mutex_key": f"{unacknowledged}_mutex",
        # A worker that is killed or cut off while it looks keeps others from it, for five minutes unless told.
        "unacked_mutex_expire": 2,
    }


def unacknowledged(workshop: Any, name: str) -> int:
    """Return how many messages the workers have and have not acknowledged."""
    return int(messages(workshop).hlen(name))


def wait_no_message(workshop: Any, name: str) -> None:
    """Wait until neither the queue nor a worker has a message: nothing is delivered again after this."""
    client = messages(workshop)
    # The script sees a message on its way from one to the other in one of both.
    script = "return redis.call('LLEN', KEYS[1]) + redis.call('HLEN', KEYS[2])"
    wait_until(lambda: client.eval(script, 2, workshop.queue, name) == 0, TIMEOUT, "no message is left")


def messages(workshop: Any) -> Any:
    """Return a client of the database of messages."""
    return redis.Redis.from_url(workshop.sender.conf.broker_url)


# The journal.


def entries(workshop: Any, journal: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workshop.notes(journal)
    return found


def runs(workshop: Any, journal: str) -> Counter[int]:
    """Return how often each number has run."""
    return Counter(entry["number"] for entry in entries(workshop, journal))


def wait_runs(workshop: Any, journal: str, count: int, timeout: float = TIMEOUT) -> Counter[int]:
    """Wait until ``count`` different numbers have run, and return how often each has."""
    try:
        wait_until(lambda: len(runs(workshop, journal)) >= count, timeout, f"{count} tasks have run")
    except AssertionError as error:
        log = workshop.worker.log_tail(15)
        raise AssertionError(f"{error}; {len(runs(workshop, journal))} have run\n{log}") from error
    return runs(workshop, journal)


def more_than_once(workshop: Any, journal: str) -> dict[int, int]:
    """Return the numbers that have run more than once, and how often."""
    return {number: count for number, count in runs(workshop, journal).items() if count > 1}


# The worker.


def ask(workshop: Any, command: str) -> Any:
    """Ask the worker until it answers: a connection that was cut may take the question with it."""

    def answer() -> Any:
        try:
            replies = workshop.inspect()._request(command)
        except workshop.sender.connection().recoverable_connection_errors:
            return None
        return replies and replies.popitem()

    return wait_until(answer, TIMEOUT, f"the worker answers to {command}")[1]


def consume(workshop: Any, worker: Any, *, wanted: bool) -> None:
    """Let one worker receive tasks, or none; repeated while a connection that was cut takes the command with it."""
    command = workshop.control.add_consumer if wanted else workshop.control.cancel_consumer

    def replies() -> Any:
        try:
            return command(workshop.queue, destination=[worker.node_name], reply=True)
        except workshop.sender.connection().recoverable_connection_errors:
            return None

    wait_until(replies, TIMEOUT, f"the worker consumes: {wanted}")


def prefetch_count(workshop: Any) -> int:
    return int(ask(workshop, "stats")["prefetch_count"])


def assert_as_before(workshop: Any, key: str, *, prefetch: int, slots: int) -> None:
    """Assert that the prefetch count is what it was, that every slot takes a task, and that the gate has none."""

    def is_restored() -> bool:
        # Celery itself restores it step by step, with each task that is acknowledged.
        workshop.outcome(workshop.send("idle"))
        return prefetch_count(workshop) == prefetch

    wait_until(is_restored, TIMEOUT, f"the prefetch count is {prefetch}")
    for _ in range(slots):
        workshop.send("idle", f"{key}:slots")
    for _ in range(slots):
        workshop.entered(f"{key}:slots")
    for _ in range(slots):
        workshop.let_go(f"{key}:slots")
    wait_until(lambda: ask(workshop, "zklocks") == [], TIMEOUT, "the gate has no request")
