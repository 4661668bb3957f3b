"""Waiting for a semaphore: which waiter watches the queue, which one node, and how news gets from one to the next."""

from __future__ import annotations

import pytest
from kazoo.exceptions import BadVersionError, NoNodeError

from django_zklock.zk.contender import State
from django_zklock.zk.queue import Kind, semaphore
from tests.unit.zk.scripted_session import (
    OTHERS,
    Script,
    contend,
    create,
    data,
    join_behind,
    other,
    settle,
    stat,
    wait_behind,
)

TWO = semaphore(2)
LINE = "/k/"


@pytest.fixture
def script() -> Script:
    return Script()


def lease(sequence: int, limit: int | None = 2) -> str:
    return other(sequence, Kind.PERMIT, limit)


def watched(script: Script, own: str) -> set[str]:
    """Return what is watched besides the own node, by the last part of the path; the queue is nothing."""
    assert f"/k/{own}" in script.watches
    return {path.rpartition("/")[2] for path in script.watches} - {own}


def test_join__room_and_followed(script: Script) -> None:
    """A contender that gets in tells a lease behind it, which may have looked before and counts on that."""
    contender = contend(script, TWO)
    name = create(script)
    script.answer("children", [lease(1), name, lease(6)])
    assert contender.state is State.HELD
    assert script.answer("set") == (f"/k/{name}", 0)
    assert script.asked == []


@pytest.mark.parametrize("behind", [[], [other(6, Kind.READ), other(7)]])
def test_join__followed_by_others(script: Script, behind: list[str]) -> None:
    """Where there is room, create and list are enough; other kinds wait for every lease's end, and need not be told."""
    contender = contend(script, TWO)
    name = create(script)
    script.answer("children", [lease(1), name, *behind])
    assert (contender.state, script.asked) == (State.HELD, [])


# The first waiter.


def test_first__watches_the_queue(script: Script) -> None:
    """Any lease may be the one that is given back, so the first waiter watches the queue, and no node but its own."""
    contender, name = join_behind(script, lease(1), lease(2), rule=TWO)
    assert watched(script, name) == {""}
    settle(script, name)
    script.answer("children", [lease(1), lease(2), name])
    script.requests.clear()
    # A contender joins.
    script.tell(LINE, deleted=False)
    assert script.asked == ["children"]
    assert watched(script, name) == {""}
    script.answer("children", [lease(1), lease(2), name, lease(6)])
    settle(script, name)
    assert (contender.state, script.asked) == (State.WAITING, [])
    script.tell(LINE, deleted=False)
    script.answer("children", [lease(2), name, lease(6)])
    assert contender.state is State.HELD
    assert watched(script, name) == set()
    assert script.answer("set") == (f"/k/{name}", 0)


def test_first__given_back_before_the_watch(script: Script) -> None:
    """What was given back between the list and the watch is in the list that comes with the watch."""
    contender, name = wait_behind(script, lease(1), lease(2), rule=TWO)
    script.answer("children", [lease(2), name])
    assert contender.state is State.HELD
    assert watched(script, name) == set()


def test_first__queue_gone(script: Script) -> None:
    """When the queue itself is deleted, the waiter queues up anew."""
    contender, name = wait_behind(script, lease(1), lease(2), rule=TWO)
    script.answer("children", [lease(1), lease(2), name])
    script.requests.clear()
    script.tell(LINE, deleted=True)
    script.answer("children", error=NoNodeError())
    assert (contender.state, script.asked) == (State.JOINING, ["create", "children"])


# Those behind it.


def test_later__told_that_it_is_first(script: Script) -> None:
    """When the one before comes in, it says so by writing to its node, and the next watches the queue from then on."""
    contender, name = wait_behind(script, lease(1), lease(2), lease(3), rule=TWO)
    assert watched(script, name) == {lease(3)}
    script.tell(f"/k/{lease(3)}", deleted=False)
    script.answer("children", [lease(2), lease(3), name])
    assert watched(script, name) == {""}
    settle(script, name)
    script.answer("children", [lease(3), name])
    assert contender.state is State.HELD


def test_later__gone_before_the_watch(script: Script) -> None:
    """The one before may be gone before it can be watched; the queue is read again."""
    contender, name = join_behind(script, lease(1), lease(2), lease(3), rule=TWO)
    script.answer_get(name, (data(), stat()))
    script.answer_get(lease(3), error=NoNodeError())
    settle(script, name)
    script.answer("children", [lease(1), lease(2), name])
    assert (contender.state, watched(script, name)) == (State.WAITING, {""})


# The one before does not tell in time.


def queue_of_three(script: Script) -> str:
    """Stand behind three leases, the last of which was written to."""
    _, name = join_behind(script, lease(1), lease(2), lease(3), rule=TWO)
    script.answer_get(name, (data(), stat()))
    script.answer_get(lease(3), (data(), stat(owner=OTHERS, version=1)))
    return name


def test_silent__queue_is_watched(script: Script) -> None:
    """A waiter behind a lease that may have come in already watches the queue too, look after look."""
    name = queue_of_three(script)
    (contender,) = script.listeners
    settle(script, name)
    for number in range(3):
        assert watched(script, name) == {"", lease(3)}
        script.answer("children", [lease(1), lease(2), lease(3), name, lease(6 + number)])
        settle(script, name)
        assert (contender.state, script.asked) == (State.WAITING, [])
        script.tell(LINE, deleted=False)
    # There is room now, though the one before us has not moved.
    script.answer("children", [lease(3), name])
    assert contender.state is State.HELD


def test_silent__written_to(script: Script) -> None:
    """A queue that is watched already is not watched a second time."""
    name = queue_of_three(script)
    settle(script, name)
    script.answer("children", [lease(1), lease(2), lease(3), name])
    settle(script, name)
    script.tell(f"/k/{lease(3)}", deleted=False)
    script.answer("children", [lease(1), lease(2), lease(3), name])
    script.answer_get(lease(3), (data(), stat(owner=OTHERS, version=2)))
    settle(script, name)
    assert watched(script, name) == {"", lease(3)}
    assert (len(script.watches[LINE]), script.asked) == (1, [])


def test_silent__not_ours(script: Script) -> None:
    """A lease that is none of ours says nothing: a waiter behind it watches the queue."""
    _, name = join_behind(script, lease(1), lease(2), lease(3, None), rule=TWO)
    assert watched(script, name) == {""}


def test_silent__no_longer(script: Script) -> None:
    """When the silent one is gone, the queue is watched only if that is called for."""
    name = queue_of_three(script)
    settle(script, name)
    script.answer("children", [lease(1), lease(2), lease(3), name])
    settle(script, name)
    script.tell(f"/k/{lease(3)}", deleted=True)
    script.answer("children", [lease(0), lease(1), lease(2), name])
    settle(script, name)
    assert watched(script, name) == {lease(2)}


# Behind other kinds.


def test_behind_exclusive__room(script: Script) -> None:
    """If there is room behind what is in the way, its end is all that is waited for, and the next lease is told."""
    contender, name = join_behind(script, other(1), lease(2), rule=TWO)
    assert watched(script, name) == {other(1)}
    settle(script, name)
    script.tell(f"/k/{other(1)}", deleted=True)
    assert contender.state is State.HELD
    assert script.answer("set") == (f"/k/{name}", 0)
    assert script.asked == []


# Telling the next.


def followed(script: Script) -> str:
    """Hold, with the word to the next one under way."""
    contend(script, TWO)
    name = create(script)
    script.answer("children", [name, lease(6)])
    assert script.asked == ["set"]
    return name


def test_telling__word_lost(script: Script) -> None:
    """If the connection breaks before the server has confirmed it, it is said again."""
    name = followed(script)
    script.break_connection()
    script.reconnect()
    assert script.asked == ["get", "set"]
    script.answer("get", (data(), stat()))
    script.break_connection()
    script.reconnect()
    assert script.asked == ["set"]
    assert script.answer("set") == (f"/k/{name}", 0)
    script.break_connection()
    script.reconnect()
    assert script.asked == []


def test_telling__written_to_meanwhile(script: Script) -> None:
    """What another client has written there has told the next one as well, and is not overwritten."""
    followed(script)
    script.answer("set", error=BadVersionError())
    (contender,) = script.listeners
    assert contender.state is State.HELD
    script.break_connection()
    script.reconnect()
    assert script.asked == ["get"]
