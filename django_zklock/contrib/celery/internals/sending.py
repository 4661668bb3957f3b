"""Where a task is sent, how it is sent to its queue again, and how the broker confirms it.

A task that is retried imports this in its child or thread, and so nothing of Celery's worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from celery.app.task import extract_exec_options  # type: ignore[attr-defined]
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.pools import connections

# Seconds for which a broker may take to confirm a message; Celery's loop stands still meanwhile.
CONFIRM_TIMEOUT = 5.0

# The options of a message that say where it goes, and how soon.
_WAY = ("queue", "exchange", "routing_key", "priority")

# What Celery writes before the routing key of a message that RabbitMQ is to delay: the seconds, in binary digits.
_DELAY = re.compile(r"^(?:[01]\.){28}")


def signature_again(task: Any, request: Any, *, countdown: float, headers: dict[str, Any]) -> Any:
    """Return the signature that sends ``request`` of ``task`` to its queue again, with these ``headers`` alone."""
    again = task.signature_from_request(request, countdown=countdown, retries=request.retries, headers=headers)
    options, app = again.options, task.app
    is_delayed = bool(shortest_delay(app))
    queue = _queue_of_options(app, options, is_delayed=is_delayed)
    if queue is None:
        return again
    if is_delayed and queue.exchange.type != "direct":
        # Celery lets RabbitMQ delay a message on its way to a queue, and takes the default one if none is named.
        options["queue"] = queue.name
    else:
        # Each queue that is bound to the exchange has had a message of its own. A queue has its name as key in the
        # default exchange, which cannot be declared.
        default = Exchange("", type="direct", delivery_mode=queue.exchange.delivery_mode)
        to = Queue(queue.name, default, routing_key=queue.name)
        options.update(queue=to, exchange="", routing_key=queue.name, declare=())
    return again


def destination(task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> list[str] | None:
    """Return what tells where a message of ``task`` would go, and where its result is to be found.

    ``None`` if only the process that sends it can read the result. Options of the transport may have prefixes and
    folders. Passwords of addresses are left out.
    """
    app = task.app
    if has_private_result(task):
        return None
    given = {**extract_exec_options(task), **options}
    route = app.amqp.router.route(given, task.name, args or (), kwargs or {}, task)
    connection = options.get("connection") or getattr(options.get("producer"), "connection", None)
    way = [getattr(route.get(part), "name", route.get(part)) for part in _WAY]
    places = (connection or app.connection_for_write()).as_uri(), task.backend.as_uri()
    more = app.conf.broker_transport_options, app.conf.result_backend_transport_options
    return [*places, *map(str, way), json.dumps(more, sort_keys=True, default=str)]


def has_private_result(task: Any) -> bool:
    """Whether ``task`` has a result that only the process that sends it can read."""
    return not task.ignore_result and str(task.backend.as_uri()).startswith("rpc")


def shortest_delay(app: Any) -> float:
    """Return the seconds that the delay of a message must have at least.

    RabbitMQ delays the messages of an app with a quorum queue itself, since Celery 5.5, and counts whole seconds; less
    than one is an error. Elsewhere a worker has the message during its delay.
    """
    driver = app.connection_for_write().transport.driver_type
    return 1.0 if driver == "amqp" and _has_quorum_queue(app) else 0.0


def _has_quorum_queue(app: Any) -> bool:
    queues = app.amqp.queues
    return any((queues[name].queue_arguments or {}).get("x-queue-type") == "quorum" for name in queues)


def _queue_of_options(app: Any, options: dict[str, Any], *, is_delayed: bool) -> Any:
    """Return the queue of a worker that the message with the exchange and key of ``options`` came from, or ``None``.

    If it came from one of several with matching keys, it is the first of them.
    """
    if (name := options.get("queue")) is not None:
        # It was sent to the queue itself.
        return app.amqp.queues.get(name)
    consumed = [queue for queue in app.amqp.queues.consume_from.values() if queue.exchange is not None]
    # What RabbitMQ has delayed before has that delay in its routing key, and another exchange.
    exchange, key = options.get("exchange"), _DELAY.sub("", options.get("routing_key") or "", count=1)
    found = [queue for queue in consumed if queue.exchange.name == exchange]
    if is_delayed:
        found = found or consumed
    elif app.connection_for_write().transport.driver_type != "amqp":
        # A fanout of Redis does not come from a list that a worker reads.
        found = [queue for queue in found if queue.exchange.type != "fanout"]
    exact = (queue for queue in found if queue.routing_key == key)
    matching = (queue for queue in found if _is_for(queue, key) or (is_delayed and len(consumed) == 1))
    return next(exact, None) or next(matching, None)


def _is_for(queue: Any, key: str) -> bool:
    """Return whether the exchange of ``queue`` gives it messages with this ``key``."""
    kind = queue.exchange.type
    if kind != "topic":
        return bool(kind == "fanout" or queue.routing_key == key)
    # `*` is one word, and `#` any number of them.
    words = [
        {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}.get(word, re.escape(f".{word}"))
        for word in (queue.routing_key or "").split(".")
    ]
    return re.fullmatch("".join(words), f".{key}") is not None


@contextmanager
def confirming_producer(app: Any) -> Iterator[Producer | None]:
    """Yield a producer of such a connection, from kombu's pools; ``None`` where the app's own will do.

    The main process must not use it: a child that is forked shuts down the connections of inherited pools.
    """
    like = confirming_connection(app.connection_for_write())
    if like is None:
        yield None
        return
    with connections[like].acquire(block=True) as connection, no_late_confirmation(connection):
        yield ConfirmingProducer(connection)


def confirming_connection(connection: Connection) -> Connection | None:
    """Return a connection like ``connection`` on which the broker confirms each message, or raises.

    RabbitMQ discards what a full queue refuses (``x-overflow: reject-publish``), and tells only a client that asks for
    confirmations. On the connection that consumes, a wait for one would begin the tasks that are delivered meanwhile.
    Other brokers answer each message anyway: ``None``.
    """
    if connection.transport.driver_type != "amqp":
        return None
    options = {**(connection.transport_options or {}), "confirm_publish": True, "max_retries": 1}
    # It may be idle for long, and nothing reads it then.
    return connection.clone(transport_options=options, heartbeat=0)


class ConfirmingProducer(Producer):
    """A producer that waits for a confirmation no longer than ``CONFIRM_TIMEOUT``, and does not publish again then.

    kombu takes the end of that time for a lost connection, and would publish one more message. RabbitMQ stops reading
    from producers in an alarm, and takes what they have sent when that is over.
    """

    def publish(  # type: ignore[override]  # Celery names all but the body
        self, body: Any, *, retry: bool = False, retry_policy: Any = None, **options: Any
    ) -> Any:
        publish, connection = super().publish, cast("Connection", self.connection)

        def publish_once() -> Any:
            # A connection that cannot be made has sent nothing, and is tried again.
            _ = self.channel
            try:
                return publish(body, **{**options, "timeout": CONFIRM_TIMEOUT})
            except TimeoutError as error:
                text = (
                    f"the broker has not confirmed the message with which the task comes back in "
                    f"{CONFIRM_TIMEOUT:.0f} s; it may take it later, and the task runs then"
                )
                raise OperationalError(text) from error

        if retry:
            return connection.ensure(self, publish_once, **(retry_policy or {}))()
        return publish_once()


@contextmanager
def no_late_confirmation(connection: Connection | None) -> Iterator[None]:
    """Close ``connection`` after an error: a confirmation that is late must not count for the next message."""
    try:
        yield
    except Exception:
        if connection is not None:
            connection.collect()
        raise
