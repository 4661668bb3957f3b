"""What the broker delivers: the prefetch window of the installed Celery and kombu, and the wait for room in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from kombu.common import QoS
from kombu.transport import redis

from django_zklock.contrib.celery.internals import delivery
from django_zklock.contrib.celery.internals.delivery import MAX_PREFETCH, PrefetchWindow

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


class Window:
    """A consumer of greenlets whose prefetch window is one message of a virtual transport, which it has."""

    hub = None

    def __init__(self, connection: Connection) -> None:
        channel: Any = connection.channel()
        self.task_consumer = SimpleNamespace(channel=channel)
        self.messages: Any = channel.qos
        self.messages.append(SimpleNamespace(delivery_tag=1), 1)
        self.qos = QoS(lambda prefetch_count: channel.basic_qos(0, prefetch_count, apply_global=False), 1)
        self.pending: list[Callable[[], object]] = []

    def perform_pending_operations(self) -> None:
        while self.pending:
            self.pending.pop()()


@pytest.fixture
def window() -> Iterator[Window]:
    with Connection("memory://") as connection:
        yield Window(connection)


def test_room__message_is_acknowledged(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for room in the window ends when a message has been acknowledged, which the loop would do later."""
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        window.pending.append(partial(window.messages.ack, 1))

    monkeypatch.setattr(time, "sleep", nap)
    delivery.await_room(window)
    assert len(naps) == 1
    assert window.messages.can_consume()


def test_room__window_is_widened(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends when the window was widened, of which the loop would tell the broker later."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: window.qos.increment_eventually())
    delivery.await_room(window)
    assert window.messages.prefetch_count == 2


def test_room__none(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is no longer than that of Celery's loop, and there is none with a broker that sends by itself."""
    monkeypatch.setattr(delivery, "DRAIN_TIMEOUT", 0.02)
    delivery.await_room(window)
    assert not window.messages.can_consume()
    monkeypatch.setattr(delivery, "DRAIN_TIMEOUT", 10_000.0)
    window.task_consumer = SimpleNamespace(channel=SimpleNamespace())
    delivery.await_room(window)


class Channel:
    """A channel that records the prefetch counts."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, prefetch_count: int) -> None:
        self.sent.append(prefetch_count)


def loop_once(qos: Any) -> None:
    """Send the prefetch count like Celery's loop between two messages."""
    if qos.prev != qos.value:
        qos.update()


def test_window__is_celery_s_number_and_ours() -> None:
    """The broker gets the sum; Celery's own number does not change, with countdowns and after a reconnect."""
    channel, waiting = Channel(), list[None]()
    window = PrefetchWindow(lambda: len(waiting))
    qos = QoS(channel.send, 4)
    window.attach(qos)
    loop_once(qos)
    waiting.extend([None] * 5)
    window.refresh()
    loop_once(qos)
    for _ in range(4):
        qos.increment_eventually()
    loop_once(qos)
    waiting.clear()
    window.refresh()
    loop_once(qos)
    loop_once(qos)
    assert channel.sent == [4, 9, 13, 8]
    assert (qos.value, window.size) == (8, 8)
    # A reconnect makes a new counter; waiting requests count again.
    waiting.extend([None] * 2)
    qos = QoS(channel.send, 2)
    window.attach(qos)
    loop_once(qos)
    assert channel.sent[-1] == 4


def test_window__without_limit_and_at_the_limit() -> None:
    """No limit stays no limit, and the number does not exceed the maximum of AMQP."""
    channel, window = Channel(), PrefetchWindow(lambda: MAX_PREFETCH)
    for initial in (0, 10):
        qos = QoS(channel.send, initial)
        window.attach(qos)
        qos.update()
    assert channel.sent == [0, MAX_PREFETCH]


@pytest.mark.parametrize(
    ("options", "channel", "seconds"),
    [({"visibility_timeout": 60}, redis.Channel, 60.0), (None, redis.Channel, 3600.0), ({}, object(), 1800.0)],
)
def test_visibility_timeout(options: dict[str, int] | None, channel: object, seconds: float) -> None:
    """The setting is before the default of the transport, and that before what RabbitMQ waits."""
    conf = SimpleNamespace(broker_transport_options=options)
    consumer = SimpleNamespace(app=SimpleNamespace(conf=conf), task_consumer=SimpleNamespace(channel=channel))
    assert delivery.visibility_timeout(consumer) == seconds
