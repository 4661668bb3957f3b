"""How messages go back: to which queue, with which headers, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state
from kombu import Connection, Exchange, Queue

from django_zklock.contrib.celery.internals import messages
from django_zklock.contrib.celery.internals.messages import is_better_published, queue_of

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


def delivered(*, exchange: str, routing_key: str, tag: str | None = None) -> Any:
    """Return a request whose message has this delivery info."""
    facts = {"exchange": exchange, "routing_key": routing_key, "consumer_tag": tag}
    return SimpleNamespace(message=SimpleNamespace(delivery_info=facts, headers={}))


def consumer_of(*queues: Queue, driver: str = "redis", tags: dict[str, str] | None = None) -> Any:
    """Return a consumer of ``queues``."""
    return SimpleNamespace(
        connection=SimpleNamespace(transport=SimpleNamespace(driver_type=driver)),
        task_consumer=SimpleNamespace(queues=queues, _active_tags=tags or {}),
        app=SimpleNamespace(amqp=SimpleNamespace(queues={queue.name: queue for queue in queues})),
    )


NEWS = Exchange("news", type="topic")
ONE, OTHER = Queue("one", NEWS, routing_key="a"), Queue("other", NEWS, routing_key="b")


def test_queue_of() -> None:
    """The broker or the settings name the queue; otherwise it is unknown."""
    tags = {"one": "1", "other": "2"}
    assert queue_of(consumer_of(ONE, OTHER, tags=tags), delivered(exchange="news", routing_key="a", tag="2")) == "other"
    assert queue_of(consumer_of(ONE, OTHER), delivered(exchange="news", routing_key="b")) == "other"
    assert queue_of(consumer_of(ONE, OTHER), delivered(exchange="news", routing_key="c")) is None
    # Made from its name alone, like the queues of `--queues`.
    plain = Queue("plain", Exchange("plain", type="direct"), routing_key="plain")
    assert queue_of(consumer_of(plain), delivered(exchange="news", routing_key="a")) == "plain"
    assert queue_of(consumer_of(plain), delivered(exchange="", routing_key="plain")) == "plain"


def test_published__what_would_go_to_other_queues() -> None:
    """A virtual transport rejects to all queues of an exchange; RabbitMQ may drop what it has had for long or often."""
    direct = Queue("direct", Exchange("direct", type="direct"), routing_key="direct")
    news, own = delivered(exchange="news", routing_key="a"), delivered(exchange="direct", routing_key="direct")
    assert is_better_published(consumer_of(ONE), news)
    assert is_better_published(consumer_of(direct), news)
    assert not is_better_published(consumer_of(direct), own)
    assert not is_better_published(consumer_of(direct), delivered(exchange="", routing_key="direct"))
    assert is_better_published(consumer_of(direct, driver="amqp"), own)
    assert is_better_published(consumer_of(direct, driver="sqs"), own)


def test_publish_again__headers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that goes back has no header about the way of the one before, and its others and the body are kept."""
    monkeypatch.setattr(state, "task_ready", lambda _request: None)
    acknowledged: list[str] = []
    with Connection("memory://") as connection:
        channel = connection.default_channel
        bound = Queue("back", Exchange("back"), routing_key="back").bind(channel)
        bound.declare()
        message = SimpleNamespace(
            body=b"[1]", content_type="application/json", content_encoding="utf-8", channel=channel,
            properties={"correlation_id": "4711", "priority": 3},
            headers={"id": "4711", "x-death": [{"count": 2}], "x-last-death-queue": "q", "zklock_rest": [1.0, 2.0]},
        )  # fmt: skip
        request: Any = SimpleNamespace(id="4711", message=message, acknowledge=lambda: acknowledged.append("4711"))
        messages.publish_again(request, "back", {"mine": 1}, None)
        sent = cast("Any", bound.get(no_ack=True))
        bound.delete()
    assert (sent.headers, sent.body) == ({"id": "4711", "mine": 1}, b"[1]")
    assert (sent.properties["correlation_id"], acknowledged) == ("4711", ["4711"])


def test_give_back__at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that go back together go in this order: Celery's loop would let them go in any order."""
    monkeypatch.setattr(state, "task_ready", lambda _request: None)
    order: list[object] = []
    for number in range(20):
        message = SimpleNamespace(reject_log_error=lambda *_facts, number=number: order.append(number))
        request = SimpleNamespace(id=str(number), message=message, _on_reject=lambda *_facts: order.append("later"))
        request.reject = lambda request=request, **_options: request._on_reject()
        messages.give_back(cast("Any", request))
    assert order == list(range(20))
