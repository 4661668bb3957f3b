"""How tasks are sent again: which queues get them, and confirmations."""

from __future__ import annotations

import pytest
from kombu import Connection, Exchange, Queue
from kombu import pools as kombu_pools

from django_zklock.contrib.celery.internals import sending

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


def test_confirming__of_its_own() -> None:
    """Confirmations are asked for where RabbitMQ has them, on a connection that no forked child shuts down."""
    consuming = Connection("amqp://", heartbeat=60, transport_options={"client_properties": {"product": "shop"}})
    confirming = sending.confirming_connection(consuming)
    assert confirming is not None
    assert confirming.transport_options is not None
    assert confirming.transport_options["confirm_publish"]
    assert confirming.transport_options["client_properties"] == {"product": "shop"}
    assert confirming.heartbeat == 0
    # A child closes what kombu's pools have, and shuts down the sockets that it shares with the main process.
    assert confirming not in kombu_pools.connections
    assert sending.confirming_connection(Connection("memory://")) is None


@pytest.mark.parametrize(("bound", "sent", "is_for"), [
    ("a.#", "a", True), ("a.#", "a.b.c", True), ("a.*", "a", False), ("a.*", "a.b.c", False), ("#", "", True),
    ("#.c", "a.b.c", True), ("a.b", "a.b", True), ("a.b", "axb", False), ("a.*.c", "a.b.c", True),
])  # fmt: skip
def test_queue__pattern(bound: str, sent: str, is_for: bool) -> None:
    """The words of a topic exchange are those of RabbitMQ."""
    assert sending._is_for(Queue("q", Exchange("x", type="topic"), routing_key=bound), sent) is is_for
