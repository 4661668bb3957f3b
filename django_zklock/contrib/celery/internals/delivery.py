"""What a broker delivers to a worker: how many messages at once, in which order, and when once more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django_zklock.zk.waiting import monotonic

# Seconds, for a broker without a visibility timeout. RabbitMQ waits 30 minutes for an acknowledgement.
VISIBILITY_TIMEOUT = 1800.0
# Seconds for which Celery's loop of green pools sleeps until there is a message, and between two looks in its place.
DRAIN_TIMEOUT = 2.0
ROOM_INTERVAL = 0.005
# The largest number that AMQP can encode, in two bytes.
MAX_PREFETCH = 65535


class PrefetchWindow:
    """The maximum of unacknowledged messages in this worker: Celery's number plus what ``count`` returns.

    Only Celery changes its own number, by countdowns, reconnects and remote control. The other one is added when the
    number is sent, so the two cannot drift apart.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._qos: Any = None

    def attach(self, qos: Any) -> None:
        """Use the counter of a new connection to the broker."""
        send = qos.callback
        qos.callback = lambda prefetch_count: send(prefetch_count=self._widened(prefetch_count))
        self._qos = qos
        self.refresh()

    def refresh(self) -> None:
        """Let Celery's loop send its number: it does as soon as that differs from the number in `prev`."""
        if self._qos is not None:
            self._qos.prev = None

    @property
    def size(self) -> int:
        """The number of messages that the broker may deliver; 0 means no limit."""
        return self._widened(self._qos.value) if self._qos is not None else 0

    def _widened(self, count: int) -> int:
        return min(count + self._count(), MAX_PREFETCH) if count else 0


def own_prefetch_count(consumer: Any) -> int:
    """Return how many messages Celery itself would let this worker keep, without countdowns; 0 means no limit."""
    return int(getattr(consumer, "initial_prefetch_count", 0))


def await_room(consumer: Any) -> None:
    """Wait until Celery's loop would ask the broker for another message, for at most :data:`DRAIN_TIMEOUT` seconds.

    For the thread of that loop alone, where there is no event loop, as with gevent and eventlet. It asks a virtual
    transport for messages, and sleeps so long if the window is full at that moment, whatever becomes of its messages
    meanwhile. Without the gate the pool would take the message at once, or keep the loop waiting for a greenlet.
    """
    can_consume = getattr(getattr(consumer.task_consumer.channel, "qos", None), "can_consume", None)
    end = monotonic() + DRAIN_TIMEOUT
    while can_consume is not None:
        # What the loop does before it asks.
        if consumer.qos.prev != consumer.qos.value:
            consumer.qos.update()
        consumer.perform_pending_operations()
        if can_consume() or monotonic() >= end:
            return
        time.sleep(ROOM_INTERVAL)


def visibility_timeout(consumer: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = consumer.app.conf.broker_transport_options or {}
    channel = getattr(consumer.task_consumer, "channel", None)
    timeout = options.get("visibility_timeout") or getattr(channel, "visibility_timeout", None)
    return float(timeout or VISIBILITY_TIMEOUT)


def restore_in_order(consumer: Any) -> None:
    """Restore the unacknowledged messages of a closed Redis channel in their order.

    kombu puts one message after the other at the head of the queue, the oldest first, which reverses them.
    """
    channel: Any = getattr(consumer.task_consumer, "channel", None)
    qos: Any = getattr(channel, "qos", None)
    restore, delivered = getattr(qos, "restore_by_tag", None), getattr(qos, "_delivered", None)
    if restore is None or delivered is None:
        return

    def restore_unacked(client: Any = None) -> None:
        with channel.conn_or_acquire(client) as connection:
            for tag in reversed(list(delivered)):
                restore(tag, client=connection)
        delivered.clear()

    qos.restore_unacked = restore_unacked
