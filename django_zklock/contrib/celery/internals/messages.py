"""How a worker lets the broker have the message of a request again."""

from __future__ import annotations

import threading
from typing import Any, cast

from celery.worker import state
from celery.worker.request import Request
from kombu import Connection, Producer

from django_zklock.contrib.celery.headers import own
from django_zklock.contrib.celery.internals.sending import CONFIRM_TIMEOUT, no_late_confirmation

_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id")


def is_better_published(consumer: Any, request: Request) -> bool:
    """Return whether to publish the message of ``request`` again, instead of rejecting it.

    RabbitMQ drops a rejected message whose time to live is over, counted from the first time in the queue; a policy may
    set it, which no consumer sees. Its quorum queues also drop what was rejected too often (20 times by default since
    4.0), and queues of SQS with a redrive policy move it to another queue. A virtual transport sends a rejected message
    to all queues that are bound to its exchange.
    """
    driver = consumer.connection.transport.driver_type if consumer.connection else None
    if driver in {"amqp", "sqs"}:
        return True
    exchange = (request.message.delivery_info or {}).get("exchange")
    bound = _bound(consumer, exchange)
    return bool(exchange) and (not bound or any(queue.exchange.type != "direct" for queue in bound))


def queue_of(consumer: Any, request: Request) -> str | None:
    """Return the name of the queue of the message of ``request``, if it can be found out."""
    facts = request.message.delivery_info or {}
    if not facts.get("exchange"):
        name: str | None = facts.get("routing_key")
        return name
    tag, active = facts.get("consumer_tag"), getattr(consumer.task_consumer, "_active_tags", {})
    found = [name for name, each in active.items() if each == tag]
    if not found:
        # A virtual transport does not report it.
        queues = _bound(consumer, facts["exchange"]) or list(consumer.task_consumer.queues)
        if len(queues) > 1:
            queues = [queue for queue in queues if queue.routing_key == facts.get("routing_key")]
        found = [queue.name for queue in queues]
    return found[0] if len(found) == 1 else None


def _bound(consumer: Any, exchange: str | None) -> list[Any]:
    """Return the queues of this worker that are bound to ``exchange``, according to the settings."""
    queues = consumer.task_consumer.queues
    return [queue for queue in queues if queue.exchange is not None and queue.exchange.name == exchange]


def publish_again(request: Request, queue: str, headers: dict[str, Any], confirming: Connection | None) -> None:
    """Send the message of ``request`` to its ``queue`` again, with more ``headers``, and then acknowledge it.

    It is not sent to its exchange, from which other queues may have got the message too. Raises if the broker has not
    confirmed the new message, and acknowledges nothing then. If the worker dies between the two, the broker has both.
    """
    message = request.message
    properties = {name: message.properties[name] for name in _PROPERTIES if message.properties.get(name) is not None}
    if message.properties.get("expiration"):
        # Milliseconds in a message, seconds in publish().
        properties["expiration"] = float(message.properties["expiration"]) / 1000
    with no_late_confirmation(confirming):
        Producer(confirming or message.channel, auto_declare=False).publish(
            message.body,
            exchange="",
            routing_key=queue,
            headers={**own(message.headers, request.id), **headers},
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            timeout=CONFIRM_TIMEOUT,
            **properties,
        )
    state.task_ready(request)
    request.acknowledge()


def give_back(request: Request) -> None:
    """Let the broker deliver the message of ``request`` again."""
    state.task_ready(request)
    if threading.current_thread() is threading.main_thread():
        # Celery leaves it to the next turn of its loop, which makes such calls in any order, and with Redis that is the
        # order in which the messages come back.
        cast("Any", request)._on_reject = request.message.reject_log_error  # noqa: SLF001
    request.reject(requeue=True)
