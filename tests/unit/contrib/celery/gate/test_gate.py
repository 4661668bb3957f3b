"""The gate's own steps, without a worker."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.worker.consumer import Consumer

from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.gate.gate import Gate, install
from django_zklock.contrib.celery.internals import delivery, messages, sending
from tests.toolbox.processes.status import identity, open_files
from tests.toolbox.timing import wait_until
from tests.unit.contrib.celery.gate.workplace import Workplace


def test_check__one_chain() -> None:
    """One check comes after the other while there are requests, however many begin, and none without."""
    workplace = Workplace()
    locked = workplace.waiting()
    workplace.waiting().over()
    assert len(workplace.loop.due) == 1
    workplace.loop.fire()
    assert len(workplace.loop.due) == 1
    locked.over()
    workplace.loop.fire()
    assert workplace.loop.due == []


@pytest.fixture
def make_consumer() -> Iterator[Callable[..., Any]]:
    """Return a function that makes the consumer of a worker that never runs, with the gate in its app."""
    app = Celery("made", broker="memory://", set_as_current=False)
    install(app)
    yield lambda **options: Consumer(Mock(), timer=Mock(), controller=Mock(), app=app, **options)
    app.close()


def test_consumer__without_a_pool(make_consumer: Callable[..., Any]) -> None:
    """A consumer that has no pool has no gate, as in programs that embed one."""
    assert not hasattr(make_consumer(), "zklock_gate")


@pytest.mark.parametrize("ended", [True, False])
def test_consumer__leaves_nothing(make_consumer: Callable[..., Any], ended: bool) -> None:
    """The gate of a consumer that has ended, or was dropped, leaves neither threads nor descriptors."""
    consumer = make_consumer(pool=TaskPool.__new__(TaskPool))
    gate = consumer.zklock_gate
    descriptors = gate.loop._read_end, gate.loop._write_end, gate.child_watcher._write_end, gate.scoreboard._claims.fd
    opened = {identity(os.fstat(each)) for each in descriptors}
    assert opened <= open_files()
    timers = gate.loop.timers
    if ended:
        timers.call_later(0.0, lambda: None)
        consumer.shutdown()
        wait_until(lambda: timers._thread is None, 20, "the thread has ended")
    del consumer, gate
    gc.collect()
    assert not opened & open_files()


def test_soft_shutdown__without_a_request(make_consumer: Callable[..., Any]) -> None:
    """A soft shutdown starts no thread where the gate has nothing to give back."""
    consumer = make_consumer(pool=TaskPool.__new__(TaskPool))
    consumer.controller.wait_for_soft_shutdown()
    assert consumer.zklock_gate.loop.timers._thread is None
    consumer.shutdown()


@pytest.mark.parametrize("is_countdown", [False, True])
def test_request__without_an_event_loop(is_countdown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that arrives on the consumer's thread makes its steps on the gate's: one thread fills the slots.

    The thread of the timer, where a countdown ends, does not wait for room for the next message.
    """
    entered: list[str] = []
    posted: list[Callable[[], object]] = []
    locked: Any = SimpleNamespace(hold_id=1)
    gate: Any = Gate.__new__(Gate)
    gate.requests, gate.consumer, gate.loop = {}, SimpleNamespace(hub=None), SimpleNamespace(post=posted.append)
    gate.slots = SimpleNamespace(queue=lambda _request: entered.append("enter"))
    monkeypatch.setattr(delivery, "await_room", lambda _consumer: entered.append("room"))
    monkeypatch.setattr(gate, "_locked_request", lambda _request: locked)
    gate._consumer_thread = 0 if is_countdown else threading.get_ident()
    gate.on_request(SimpleNamespace(id="a", request_dict={}))
    room = [] if is_countdown else ["room"]
    assert (entered, gate.requests) == (room, {1: locked})
    for call in posted:
        call()
    assert entered == [*room, "enter"]


def test_back__broker_does_not_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that the broker does not take again is rejected, and the next ones do not wait for the broker."""
    tried: list[str] = []
    rejected: list[str] = []

    def fail(request: Any, *_facts: Any) -> None:
        tried.append(request.id)
        raise TimeoutError

    monkeypatch.setattr(messages, "queue_of", lambda *_: "queue")
    monkeypatch.setattr(messages, "publish_again", fail)
    monkeypatch.setattr(sending, "confirming_connection", lambda _connection: None)
    monkeypatch.setattr(messages, "give_back", lambda request: rejected.append(request.id))
    gate = Workplace().gate
    for name in ("first", "second"):
        request: Any = SimpleNamespace(id=name, message=SimpleNamespace(headers={}))
        gate.give_back(request, (name, 0, 0, 0), 12.5)
    assert (tried, rejected) == (["first"], ["first", "second"])
    # The rest of its timeout cannot travel with the message, which says what the delivery before has left.
    request.message.headers = headers.with_rest("second", 0, 20.0)
    assert [gate.read_rest(request, ("second", 0, 0, 0)) for _ in range(2)] == [12.5, 20.0]


def test_event__has_the_facts_of_the_task() -> None:
    """An event has the facts of the request by Celery's names, the name of the task among them."""
    sent: list[tuple[str, dict[str, Any]]] = []
    workplace = Workplace()
    workplace.gate.consumer.event_dispatcher = SimpleNamespace(
        enabled=True, groups={"task"}, send=lambda what, /, **facts: sent.append((what, facts))
    )
    locked, _in_child = workplace.running()
    (held,) = sent
    kind, facts = held
    assert (kind, facts["uuid"], facts["name"], facts["key"]) == ("zklock-held", "id", "bill", "k")
    locked.over()
    workplace.loop.turn()
    assert [kind for kind, _facts in sent] == ["zklock-held", "zklock-released"]
    assert workplace.gate.consumer.event_dispatcher.groups == {"task", "zklock"}
