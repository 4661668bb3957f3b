"""The call that a ticket is for."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from django_zklock import zk_locked
from django_zklock.contrib.celery.gate import ticket as tickets
from django_zklock.contrib.celery.gate.handover import TicketOffer, _is_for
from django_zklock.contrib.celery.gate.scoreboard import HoldState, Scoreboard
from django_zklock.contrib.celery.tasks import outermost_lock
from django_zklock.zk.rules import EXCLUSIVE
from django_zklock.zk.waiting import boottime


class Delivery:
    """A task that runs here, with the ticket that the main process has made of the message's arguments."""

    def __init__(self, body: Any, *args: Any, **kwargs: Any) -> None:
        self.task = SimpleNamespace(run=body, request=SimpleNamespace(args=list(args), kwargs=kwargs))
        call, own = outermost_lock(self.task)
        assert call is not None
        self.call = call
        key = call.key((*own, *args), kwargs)
        self.ticket: Any = SimpleNamespace(
            keys=[key] if isinstance(key, str) else list(key), arguments=tickets.digest(args, kwargs)
        )

    def fits(self, *args: Any, call: Any = None, **kwargs: Any) -> bool:
        return _is_for(self.ticket, self.task, call or self.call, args, kwargs)


@zk_locked("{key}")
def body(key: str, size: int = 0) -> None: ...


def test_ticket__for_the_message() -> None:
    """A ticket is for the outermost lock of the task, with the message's arguments or others that give its key."""

    @zk_locked("{key}")
    def other(key: str) -> None: ...

    delivery = Delivery(body, "a", size=1000)
    another, _own = outermost_lock(SimpleNamespace(run=other))
    assert delivery.fits("a", size=1000)
    assert delivery.fits(key="a")
    assert not delivery.fits("a", call=another)
    assert not delivery.fits("b", size=1000)
    assert not delivery.fits("A", size=1000)
    # The call itself raises the error.
    assert not delivery.fits()


def test_ticket__arguments_changed_in_place() -> None:
    """Arguments that were changed between the message and the body count, also if they are the same objects."""

    @zk_locked("{order[key]}")
    def ordered(order: dict[str, Any]) -> None: ...

    order = {"key": "KEY", "size": 1}
    delivery = Delivery(ordered, order)
    assert delivery.fits(order)
    order["size"] = 2
    assert delivery.fits(order)
    order["key"] = "key"
    assert not delivery.fits(order)
    delivery = Delivery(body, key="KEY")
    delivery.task.request.kwargs["key"] = "key"
    assert not delivery.fits(**delivery.task.request.kwargs)


def test_ticket__key_is_made_once() -> None:
    """A callable for the key is called again only for other arguments, or for some that have no form in JSON."""
    made: list[Any] = []

    def key(order: Any) -> str:
        made.append(order)
        return f"order:{order['key']}"

    @zk_locked(key)
    def keyed(order: Any) -> None: ...

    order: dict[str, Any] = {"key": "a"}
    delivery = Delivery(keyed, order)
    assert delivery.fits(order)
    assert len(made) == 1
    assert delivery.fits({"key": "a"})
    assert len(made) == 2
    order["what"] = object()
    delivery = Delivery(keyed, order)
    assert delivery.ticket.arguments == ""
    assert delivery.fits(order)
    assert len(made) == 4
    order["key"] = "b"
    assert not delivery.fits(order)


def test_ticket__bound() -> None:
    """The task itself is the first argument of a bound body."""

    class Bill:
        request = SimpleNamespace(args=["a"], kwargs={})

        @zk_locked("{key}")
        def run(self, key: str) -> None: ...

    task = Bill()
    call, own = outermost_lock(task)
    assert call is not None
    assert own == (task,)
    ticket: Any = SimpleNamespace(keys=["a"], arguments=tickets.digest(["a"], {}))
    assert _is_for(ticket, task, call, (task, "a"), {})
    assert not _is_for(ticket, task, call, (task, "b"), {})


class Hold:
    """A hold that the main process has put on its scoreboard, and the offer of its ticket to the child."""

    def __init__(self) -> None:
        self.scoreboard = Scoreboard()
        self.words = self.scoreboard.words[3]
        self.words.nonce, self.words.state, self.words.lease_end = 7, HoldState.HELD, boottime() + 60.0
        self.released: list[int] = []
        gate: Any = SimpleNamespace(
            scoreboard=self.scoreboard, child_watcher=SimpleNamespace(send_release=self.released.append)
        )
        ticket = tickets.Ticket(
            task="one", origin="worker", slot=3, nonce=7, keys=["a"], arguments="", since=1.0, waited=0.5,
            contended=False, session_timeout=4.0, nodes={"/a": "/a/node"}, token=5,
        )  # fmt: skip
        listener = SimpleNamespace(notify=lambda *_facts, **_more: None)
        lock: Any = SimpleNamespace(key="a", keys=("a",), paths=("/a",), rule=EXCLUSIVE, listener=listener)
        self.offer = TicketOffer(gate, ticket, lock)


def test_take() -> None:
    """The child takes the hold of the main process, with its token, and releases it there."""
    hold = Hold()
    outcome = hold.offer.take()
    assert isinstance(outcome, tuple)
    held, refusal = outcome
    assert held is not None
    assert (held.token, held.lost, refusal, hold.released) == (5, False, None, [])
    held._let_go()
    assert hold.released == [7]


def test_take__lease_over(caplog: pytest.LogCaptureFixture) -> None:
    """A body does not begin under a lock whose lease is over: the main process has stood still since its grant."""
    hold = Hold()
    hold.words.lease_end = boottime() - 1.0
    with caplog.at_level(logging.WARNING):
        assert hold.offer.take() is None
    assert hold.released == [7]
    assert "event=lost_before_start" in caplog.text


@pytest.mark.parametrize("state", [HoldState.LOST, HoldState.GONE, HoldState.WITHDRAWN])
def test_take__no_longer_held(caplog: pytest.LogCaptureFixture, state: HoldState) -> None:
    """A hold that the main process has lost or given up is not taken."""
    hold = Hold()
    hold.words.state = state
    with caplog.at_level(logging.WARNING):
        assert hold.offer.take() is None
    assert hold.released == [7]
    assert "event=not_handed_over" in caplog.text
