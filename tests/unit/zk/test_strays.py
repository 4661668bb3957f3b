"""How a session finds that it waits behind a node that only its own server has."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError, OperationTimeoutError

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.queue import READ, WRITE, Kind, Mark, Rule, name_prefix, new_guid, semaphore
from django_zklock.zk.strays import MAX_TAKEN, MAX_TIMEOUTS
from tests.unit.zk.scripted_session import SESSION, Script, contend, create, join_behind, other, settle, wait_behind


class Clock:
    """The clock of leases, which the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def script(clock: Clock) -> Script:
    return Script(clock)


def wait_long(script: Script, clock: Clock, timeouts: float = 1.0) -> None:
    """Let that number of session timeouts pass between two heartbeats."""
    script.heartbeat()
    clock.now += timeouts * script.timeout
    script.heartbeat()


def deny(script: Script) -> None:
    """Answer that the leader does not know a node, and that the server of the connection has it."""
    script.answer("confirm", error=NoNodeError())
    script.answer("read_many", [[]])


# A waiter.


def test_wait__stray(script: Script, clock: Clock) -> None:
    """One that waits for long behind a node that its server has, and the leader does not, has found a stray."""
    wait_behind(script, other(3))
    wait_long(script, clock)
    assert script.answer("confirm", error=NoNodeError()) == (f"/k/{other(3)}",)
    assert script.answer("read_many", [[]]) == [(f"/k/{other(3)}", True)]
    assert script.strays_found == [(f"/k/{other(3)}",)]


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_wait__asked_late_and_once(script: Script, clock: Clock) -> None:
    """A short wait asks nothing, and a long one once: what the leader knows will be deleted at every server."""
    wait_behind(script, other(3))
    wait_long(script, clock, 0.9)
    assert script.asked == []
    wait_long(script, clock, 0.1)
    script.answer("confirm", [None])
    wait_long(script, clock, 50)
    assert (script.asked, script.strays_found) == ([], [])


def test_wait__asked_on_each_connection(script: Script, clock: Clock) -> None:
    """Another server may have a stray too."""
    wait_behind(script, other(3))
    wait_long(script, clock)
    script.answer("confirm", [None])
    script.break_connection()
    script.reconnect()
    wait_long(script, clock, 0.9)
    assert script.asked == []
    wait_long(script, clock, 0.1)
    assert script.asked == ["confirm"]


@pytest.mark.parametrize(("there", "error"), [([None], None), (None, NoAuthError())], ids=["deleted", "refused"])
def test_wait__not_at_the_own_server(script: Script, clock: Clock, there: Any, error: Exception | None) -> None:
    """A node that the own server does not have, or does not show, is no stray: its event may be on its way."""
    wait_behind(script, other(3))
    wait_long(script, clock)
    script.answer("confirm", error=NoNodeError())
    script.answer("read_many", there, error)
    assert (script.asked, script.strays_found) == ([], [])


@pytest.mark.parametrize("at", ["confirm", "read_many"])
def test_wait__refused_for_now(script: Script, clock: Clock, at: str) -> None:
    """A refusal that passes is no answer: the leader is asked again after a pause."""
    wait_behind(script, other(3))
    wait_long(script, clock)
    if at == "read_many":
        script.answer("confirm", error=NoNodeError())
    script.answer(at, error=OperationTimeoutError())
    script.ask_again()
    deny(script)
    assert script.strays_found == [(f"/k/{other(3)}",)]


def test_wait__may_not_ask(script: Script, clock: Clock) -> None:
    """A node that may not be read says nothing about others; one that the server itself does not show is left out."""
    names = [other(number, Kind.READ) for number in (2, 3)]
    wait_behind(script, *names, rule=WRITE)
    wait_long(script, clock)
    first, second = script.requests[0][1]
    script.answer("confirm", error=NoAuthError())
    script.answer("read_many", [NoAuthError(), []])
    assert script.answer("confirm", error=NoAuthError()) == (second,)
    script.answer("read_many", [[]])
    assert (script.asked, script.strays_found) == ([], [])
    assert first != second


@pytest.mark.parametrize(
    ("rule", "kinds", "suspects"),
    [
        # The second-to-last node is watched: a waiter there does not hear of the last one.
        (WRITE, [Kind.EXCLUSIVE] * 3, [1]),
        (WRITE, [Kind.READ] * 3, [0, 1, 2]),
        (READ, [Kind.WRITE, Kind.READ, Kind.READ], [0]),
        # It is not known which of the leases is released first.
        (semaphore(2), [Kind.PERMIT] * 2, [0, 1]),
        # The lease right before ours waits, and would tell us.
        (semaphore(1), [Kind.PERMIT] * 2, [1]),
    ],
)
def test_wait__every_kind(script: Script, clock: Clock, rule: Rule, kinds: list[Kind], suspects: list[int]) -> None:
    """The leader is asked about all nodes whose deletion is waited for, whatever the lock is."""
    limit = rule.limit
    names = [other(number, kind, limit if kind is Kind.PERMIT else None) for number, kind in enumerate(kinds)]
    _contender, name = join_behind(script, *names, rule=rule)
    script.requests = [each for each in script.requests if each[0] != "children"]
    settle(script, name)
    wait_long(script, clock)
    script.requests = [each for each in script.requests if each[0] == "confirm"]
    asked = script.answer("confirm", error=NoNodeError())
    assert sorted(asked) == sorted(f"/k/{names[number]}" for number in suspects)


def test_wait__the_first_of_a_session(script: Script, clock: Clock) -> None:
    """Of many that wait in one queue, the first asks, and for many queues one transaction does."""
    names = [other(1)]
    for sequence in (5, 6, 7):
        contend(script, WRITE)
        names.append(create(script, sequence, sequence))
        script.answer("children", names)
        settle(script, names[-1], dict.fromkeys(names[1:], SESSION))
    wait_long(script, clock)
    assert script.answer("confirm", [None]) == (f"/k/{other(1)}",)
    assert script.asked == []


def test_check__many_queues(script: Script, clock: Clock) -> None:
    """Many queues share transactions; the ones whose nodes were deleted meanwhile are left out of the next one."""
    waits = [(f"/{number}", (f"/{number}/n",)) for number in range(130)]
    script.strays.check(waits, 15.0)
    clock.now += 15.0
    script.strays.check(waits, 15.0)
    assert [len(what) for _, what, _ in script.requests] == [128, 2]
    script.answer("confirm", error=NoNodeError())
    script.answer("confirm", [None] * 2)
    script.answer("read_many", [None, *([[]] * 127)])
    assert len(script.answer("confirm", error=NoNodeError())) == 127
    script.answer("read_many", [[]] * 127)
    (found,) = script.strays_found
    assert found == tuple(nodes[0] for _, nodes in waits[1:128])


def test_check__another_blocker(script: Script, clock: Clock) -> None:
    """A queue that moves is asked about never: each of its holders ends before a session timeout is over."""
    for number in range(30):
        script.strays.check([("/k", (f"/k/{number}",))], 15.0)
        clock.now += 10.0
    assert script.requests == []


# A lock that is taken.


def try_it(script: Script, *names: str, rule: Rule | None = None) -> Contender:
    """Return a try that has found these nodes."""
    contender = contend(script, wait=False) if rule is None else contend(script, rule, wait=False)
    script.answer("children", list(names))
    return contender


def test_try__stray(script: Script, clock: Clock) -> None:
    """A lock that one node has for a session timeout may be taken by a stray: a later try asks, once."""
    assert try_it(script, other(1), other(2)).is_taken
    clock.now += 14.0
    assert try_it(script, other(1), other(3)).is_taken
    assert script.asked == []
    clock.now += 1.0
    assert try_it(script, other(1)).is_taken
    assert script.requests[0][1] == (f"/k/{other(1)}",)
    deny(script)
    assert script.strays_found == [(f"/k/{other(1)}",)]
    try_it(script, other(1))
    assert script.asked == []


def test_try__taken_anew(script: Script, clock: Clock) -> None:
    """A lock that others have each time is taken; so is one that is found taken only once."""
    for number in range(5):
        try_it(script, other(number))
        clock.now += 20.0
    assert script.asked == []


def test_taken__many(script: Script, clock: Clock) -> None:
    """What is known about locks that were found taken is bounded."""
    for number in range(MAX_TAKEN + 1):
        script.strays.taken(f"/{number}", (f"/{number}/n",), 15.0)
    assert len(script.strays._taken) == 1


# The same server again.


def test_found__the_same_server_again(script: Script, clock: Clock) -> None:
    """One that comes to a server with a stray again and again, as through one address, goes on less and less often."""
    waits = [("/k", ("/k/n",))]
    timeouts = 1
    for found in range(12):
        script.strays.disconnected()
        script.strays.check(waits, 1.0)
        clock.now += timeouts - 0.5
        script.strays.check(waits, 1.0)
        assert len(script.strays_found) == found
        clock.now += 0.5
        script.strays.check(waits, 1.0)
        deny(script)
        timeouts = min(2 * timeouts, MAX_TIMEOUTS) if found else 1
    assert timeouts == MAX_TIMEOUTS
    script.peer = "elsewhere"
    clock.now += MAX_TIMEOUTS
    script.strays.disconnected()
    script.strays.check(waits, 1.0)
    clock.now += MAX_TIMEOUTS
    script.strays.check(waits, 1.0)
    deny(script)
    assert script.strays._timeouts == 1


# A call that would leave for a waiter.


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_coalesce__waiter_is_a_stray(script: Script) -> None:
    """A call that cannot leave for a waiter, because the leader does not know it, waits; it does not ask for ever."""
    mark = Mark.of("run", "call")
    waiter = f"{name_prefix(new_guid(mark), Kind.EXCLUSIVE)}0000000003"
    contender = contend(script)
    contender._coalesces = Mark.of("run", "another call")
    name = create(script)
    for _ in range(2):
        script.answer("children", [other(1), waiter, name])
        if script.asked == ["delete_if_all_exist"]:
            script.answer("delete_if_all_exist", error=NoNodeError())
    assert (contender.state, "delete_if_all_exist" in script.asked) == (State.WAITING, False)
