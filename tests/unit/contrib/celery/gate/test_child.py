"""The call that a ticket is for."""

from __future__ import annotations

import logging
import os
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context

from django_zklock import zk_locked
from django_zklock.contrib.celery.gate import child
from django_zklock.contrib.celery.gate.child import TicketOffer, _difference
from django_zklock.contrib.celery.gate.scoreboard import HoldState, Scoreboard
from django_zklock.contrib.celery.gate.ticket import HEADER, Ticket
from django_zklock.contrib.celery.tasks import outermost_lock
from django_zklock.exceptions import LockTimeout
from django_zklock.locked_call import Undecided
from django_zklock.zk import owners
from django_zklock.zk.held import Held
from django_zklock.zk.node_data import Identity
from django_zklock.zk.queue import EXCLUSIVE
from django_zklock.zk.waiting import boottime, monotonic


def ticket_for(*keys: str, **facts: Any) -> Ticket:
    """Return the ticket that the main process "worker" makes for a hold of these keys."""
    known: dict[str, Any] = {
        "origin": "worker", "cell": 3, "hold_id": 7, "keys": list(keys), "alias": "default", "since": 1.0,
        "waited": 0.5, "contended": False, "session_timeout": 4.0, "nodes": {"/a": "/a/node"}, "token": 5,
    }  # fmt: skip
    return Ticket(**known | facts)


class Delivery:
    """A task that runs here, with the ticket that the main process has made of the message's arguments."""

    def __init__(self, body: Any, *args: Any, **kwargs: Any) -> None:
        request = SimpleNamespace(args=list(args), kwargs=kwargs)
        self.task = SimpleNamespace(name="shop.bill", run=body, request=request)
        call, own = outermost_lock(self.task)
        assert call is not None
        self.call = call
        key = call.key((*own, *args), kwargs)
        self.ticket = ticket_for(*([key] if isinstance(key, str) else key))

    def fits(self, *args: Any, call: Any = None, **kwargs: Any) -> bool:
        return self.difference(*args, call=call, **kwargs) == ""

    def difference(self, *args: Any, call: Any = None, **kwargs: Any) -> str:
        return _difference(self.ticket, self.task, call or self.call, args, kwargs) or ""


@zk_locked("{key}")
def body(key: str, size: int = 0) -> None: ...


@pytest.mark.parametrize(
    "header", [pytest.param({"origin": "worker"}, id="of a producer"), pytest.param(ticket_for("a"), id="of another")]
)
def test_ticket__of_nobody_here(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, header: Any) -> None:
    """What a producer has sent is no ticket, and one of another worker counts for nothing; a retry copies neither."""
    request = Context(
        {"id": "one", "args": ["a"], "kwargs": {}, HEADER: header, "headers": {HEADER: header, "mine": 1}}
    )
    monkeypatch.setattr(child, "running_task", lambda: SimpleNamespace(run=body, request=request))
    call, _own = outermost_lock(SimpleNamespace(run=body))
    assert call is not None
    with caplog.at_level(logging.WARNING):
        assert child.read_ticket(call, ("a",), {}) is None
    assert "event=header_refused task=one" in caplog.text
    assert (request.get(HEADER), request.headers) == (None, {"mine": 1})


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


def test_ticket__what_differs() -> None:
    """The log says what differs: the call, or the key of the arguments, with both keys."""

    @zk_locked("{key}")
    def other(key: str) -> None: ...

    delivery = Delivery(body, "a")
    another, _own = outermost_lock(SimpleNamespace(run=other))
    of_the_call = delivery.difference("a", call=another)
    assert of_the_call.startswith("it is for the body of the task shop.bill, and the call of ")
    assert "other is another one" in of_the_call
    assert (
        delivery.difference("b") == "the arguments of the message give the key ['a'], and those of the body give ['b']"
    )
    assert delivery.difference().startswith("the arguments of the body give no key, or no alias: TypeError(")


def test_ticket__another_ensemble() -> None:
    """A function as `using` that says something else where the body runs: the hold does not count for that lock."""
    aliases = iter(["default", "tenant-b"])

    @zk_locked("{key}", using=lambda _key: next(aliases))
    def spread(key: str) -> None: ...

    delivery = Delivery(spread, "a")
    assert delivery.fits("a")
    there = "using gives 'default' in the main process, and 'tenant-b' where the body runs"
    assert delivery.difference("a") == there


def test_take__rest_of_the_timeout() -> None:
    """A task that acquires the lock itself has what is left of its timeout, on the clock that its host has for it."""
    hold = Hold()
    for deadline, least, most in ((monotonic() + 100, 1, 100), (monotonic() - 100, 0, 0)):
        offer = replace(hold.offer, ticket=ticket_for("a", nodes={}, deadline=deadline))
        undecided = offer.take(owners.caller())
        assert isinstance(undecided, Undecided)
        assert undecided.timeout is not None
        assert least <= undecided.timeout <= most
    assert replace(hold.offer, ticket=ticket_for("a", nodes={})).take(owners.caller()) == Undecided()


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


def test_ticket__bound() -> None:
    """The task itself is the first argument of a bound body."""

    class Bill:
        name = "shop.bill"
        request = SimpleNamespace(args=["a"], kwargs={})

        @zk_locked("{key}")
        def run(self, key: str) -> None: ...

    task = Bill()
    call, own = outermost_lock(task)
    assert call is not None
    assert own == (task,)
    assert _difference(ticket_for("a"), task, call, (task, "a"), {}) is None
    assert _difference(ticket_for("a"), task, call, (task, "b"), {}) is not None


def test_ticket__is_pickled() -> None:
    """A ticket reaches a child as it was made, with the error that says why there is no lock."""
    holder = Identity(host="web1", pid=71)
    ticket = ticket_for("a", refusal=LockTimeout("taken", key="a", timeout=3.0, holder=holder), holder=holder)
    copy = pickle.loads(pickle.dumps(ticket))
    refusal = copy.refusal
    assert (copy.keys, copy.holder, type(refusal)) == (["a"], holder, LockTimeout)
    assert (str(refusal), refusal.key, refusal.timeout, refusal.holder) == ("taken", "a", 3.0, holder)


class Hold:
    """A hold that the main process has put on its scoreboard, and the offer of its ticket to the child."""

    def __init__(self) -> None:
        self.scoreboard = Scoreboard()
        self.words = self.scoreboard.words[3]
        self.words.hold_id, self.words.state = 7, HoldState.HELD
        self.words.lease_end = boottime() + 60.0
        self.released: list[int] = []
        gate: Any = SimpleNamespace(scoreboard=self.scoreboard, release=self.released.append)
        listener = SimpleNamespace(notify=lambda *_facts, **_more: None)
        lock: Any = SimpleNamespace(key="a", keys=("a",), paths=("/a",), rule=EXCLUSIVE, listener=listener)
        self.offer = TicketOffer(gate, ticket_for("a"), lock, "one")

    def taken(self) -> Held:
        """Take it, as the child does."""
        outcome = self.offer.take(owners.caller())
        assert isinstance(outcome, tuple)
        assert outcome[0] is not None
        return outcome[0]


def test_take() -> None:
    """The child takes the hold of the main process, with its token, and releases it there."""
    hold = Hold()
    outcome = hold.offer.take(owners.caller())
    assert isinstance(outcome, tuple)
    held, refusal = outcome
    assert held is not None
    assert (held.token, held.lost, refusal, hold.released) == (5, False, None, [])
    held._let_go()
    assert hold.released == [7]


def test_end__is_written_first() -> None:
    """The end of the body is in the memory before the main process is sent anything."""
    hold = Hold()
    written: list[bool] = []
    hold.offer.gate.release = lambda hold_id: written.append(hold.words.ended == hold_id)
    held = hold.taken()
    assert hold.words.ended == 0
    held._let_go()
    assert written == [True]


def test_lost__reason_comes_later() -> None:
    """A loss is known at once, and its reason when the main process has read it."""
    hold = Hold()
    held = hold.taken()
    hold.words.state = HoldState.LOSING
    assert held.lost
    assert held._possession.contender.loss_reason_pending
    hold.scoreboard.reasons[3].LOST = b"deploy"
    hold.words.state = HoldState.LOST
    assert held._possession.loss() == "the worker's main process has lost it: deploy"
    held._let_go()


def test_lost__given_up_by_another() -> None:
    """A hold that another process has let go is lost, also for the body that has it."""
    hold = Hold()
    held = hold.taken()
    hold.words.hold_id = 0
    assert held.lost
    held._let_go()


def test_fork__has_no_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a task forks can neither take the hold of the task nor give it back."""
    request = Context({"id": "one", "args": ["a"], "kwargs": {}, HEADER: ticket_for("a")})
    monkeypatch.setattr(child, "running_task", lambda: SimpleNamespace(run=body, request=request))
    pid = os.fork()
    if not pid:
        os._exit(int(request.get(HEADER) is not None))
    assert os.waitpid(pid, 0)[1] == 0
    assert request.get(HEADER) is not None


@pytest.mark.parametrize(
    "words",
    [{"state": HoldState.LOST}, {"state": HoldState.LOSING}, {"hold_id": 0}, {"lease_end": boottime() - 1.0}],
    ids=["lost", "losing", "given up", "lease over"],
)
def test_take__no_longer_held(caplog: pytest.LogCaptureFixture, words: dict[str, Any]) -> None:
    """A hold that the main process has lost or given up is not taken, nor one while that has stood still too long."""
    hold = Hold()
    for name, value in words.items():
        setattr(hold.words, name, value)
    with caplog.at_level(logging.WARNING):
        assert hold.offer.take(owners.caller()) == Undecided()
    assert hold.released == [7]
    assert "event=not_handed_over" in caplog.text
