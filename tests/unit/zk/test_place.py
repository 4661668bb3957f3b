"""The end of a wait: when a notification is proof enough to hold, and when the queue has to be read once more."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError

from django_zklock.zk.contender import State
from django_zklock.zk.queue import WRITE, Kind
from tests.toolbox.locks.contenders import node_of
from tests.unit.zk.scripted_session import (
    OTHERS,
    SESSION,
    Script,
    contend,
    create,
    data,
    hold,
    join_behind,
    other,
    settle,
    stat,
    wait_behind,
)


@pytest.fixture
def script() -> Script:
    return Script()


def reader(sequence: int) -> str:
    return other(sequence, Kind.READ)


def test_last_gone(script: Script) -> None:
    """One that watches the last before it holds when that is gone, asks nothing, and still watches its own node."""
    notified: list[Any] = []
    contender = contend(script, notified=notified)
    name = create(script)
    script.answer("children", [name, other(3)])
    settle(script, name)
    notified.clear()
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, script.asked) == (State.HELD, [])
    assert notified
    assert set(script.watches) == {f"/k/{name}"}


# What is no proof.


@pytest.mark.shows("faults#it-is-stopped-for-longer-than-its-session-lives")
def test_last_gone__own_place_unsure(script: Script) -> None:
    """One that cannot be sure of its own node, which was just written to, waits for the answer of its new watch."""
    contender, name = wait_behind(script, other(3))
    script.tell(f"/k/{name}", deleted=False)
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, script.asked) == (State.WAITING, ["get"])
    settle(script, name)
    assert (contender.state, script.asked) == (State.HELD, [])


def test_last_gone__own_place_unwatched(script: Script) -> None:
    """One that may not read its own node, and so cannot watch it, reads the queue: the node may be gone as well."""
    contender, name = join_behind(script, other(3))
    script.answer_get(other(3), (data(), stat(owner=OTHERS)))
    script.answer_get(name, error=NoAuthError())
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, script.asked) == (State.WAITING, ["children"])
    script.answer("children", [name])
    assert contender.state is State.HELD


def test_own_node__not_watched_yet_and_gone(script: Script) -> None:
    """The watch on the own node counts from its answer on; if that is that the node is gone, it queues up anew."""
    contender, name = join_behind(script, other(3))
    script.answer_get(other(3), (data(), stat(owner=OTHERS)))
    script.tell(f"/k/{other(3)}", deleted=True)
    script.answer_get(name, error=NoNodeError())
    assert (contender.state, script.asked) == (State.JOINING, ["create", "children"])


def test_own_node__gone(script: Script) -> None:
    """A contender that hears that its own node is gone queues up anew, whatever it hears of others after that."""
    contender, name = wait_behind(script, other(3))
    watcher = script.watches[f"/k/{other(3)}"][0]
    script.tell(f"/k/{name}", deleted=True)
    watcher(True)
    assert (contender.state, node_of(contender)) == (State.JOINING, None)
    assert script.asked == ["create", "children"]
    assert script.watches == {}


def test_own_node__watched_from_the_first_heartbeat(script: Script) -> None:
    """One that holds without a wait watches its node at the first heartbeat; later ones ask nothing."""
    contender, name = hold(script)
    assert (contender.state, script.asked) == (State.HELD, [])
    script.heartbeat()
    script.heartbeat()
    assert script.answer("get", (data(), stat())) == f"/k/{name}"
    script.heartbeat()
    assert (script.asked, list(script.watches)) == ([], [f"/k/{name}"])
    script.tell(f"/k/{name}", deleted=False)
    script.answer("get", (b"__REVOKE__", stat(version=1)))
    assert contender.revoked
    script.tell(f"/k/{name}", deleted=True)
    assert (contender.state, contender.lost) == (State.HELD, "its node was deleted")


def test_own_node__left_before_it_is_watched(script: Script) -> None:
    """A node that is to be watched, and deleted before its turn comes, is not watched."""
    contender, _name = hold(script)
    contender.heartbeat()
    contender.leave()
    script.heartbeat()
    assert script.asked == ["delete"]
    script.answer("delete")
    assert (contender.state, script.watches) == (State.GONE, {})


def test_own_node__unreadable_at_a_heartbeat(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    """A node that cannot be read is no loss, is told of once, and is asked about at each heartbeat."""
    caplog.set_level("DEBUG", "django_zklock")
    contender, name = hold(script)

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if "event=unverified" in record.message]

    for count in (1, 2, 3):
        script.heartbeat()
        script.answer("get", error=NoAuthError())
        assert (contender.state, contender.lost) == (State.HELD, None)
        assert levels() == ["WARNING", "DEBUG", "DEBUG"][:count]
    # It is readable for a while.
    script.heartbeat()
    script.answer("get", (data(), stat()))
    script.tell(f"/k/{name}", deleted=False)
    script.answer("get", error=NoAuthError())
    assert levels()[3:] == ["WARNING"]
    script.heartbeat()
    script.answer("get", error=NoNodeError())
    assert contender.lost == "its node was deleted" or contender.loss_reason_pending


def test_own_node__unreadable_while_it_waits(script: Script) -> None:
    """One that waits and may not read its node asks again at each heartbeat, and queues anew once it is gone."""
    contender, name = join_behind(script, other(3))
    script.answer_get(other(3), (data(), stat(1, OTHERS)))
    script.answer("get", error=NoAuthError())
    for _ in range(2):
        script.heartbeat()
        assert script.answer("get", error=NoAuthError()) == f"/k/{name}"
        assert (contender.state, script.asked) == (State.WAITING, [])
    script.heartbeat()
    script.answer("get", error=NoNodeError())
    assert (contender.state, script.asked) == (State.JOINING, ["create", "children"])


def test_own_node__gone_and_then_the_connection(script: Script) -> None:
    """A loss is told at once if no server can be asked any more why it came."""
    notified: list[str | None] = []
    contender, name = wait_behind(script, other(3))
    script.tell(f"/k/{other(3)}", deleted=True)
    script.tell(f"/k/{name}", deleted=True)
    contender.when_deleted(lambda: notified.append(contender.lost))
    assert (contender.lost, notified) == ("its node was deleted", [])
    script.break_connection()
    assert notified == ["its node was deleted"]
    assert script.listeners == {}


def test_last_gone__session_closes(script: Script) -> None:
    """A session that closes grants nothing: the holder may have been in a session of this process that ended first."""
    contender, _name = wait_behind(script, other(3))
    script.closing = True
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, script.asked) == (State.WAITING, [])


@pytest.mark.parametrize(
    ("owner", "deleting", "held"), [(OTHERS, False, True), (SESSION, False, False), (SESSION, True, True)]
)
def test_last_gone__whose(script: Script, owner: int, deleting: bool, held: bool) -> None:
    """A node of our own session proves something only if we have deleted it: else the session may be ending."""
    contender, name = join_behind(script, other(3))
    settle(script, name, {other(3): owner})
    if deleting:
        script.deleting.add(other(3))
    script.tell(f"/k/{other(3)}", deleted=True)
    assert contender.state is (State.HELD if held else State.WAITING)
    assert script.asked == ([] if held else ["children"])


def test_last_gone__of_a_neighbour(script: Script) -> None:
    """Between two of one session the first lets go by a request of ours, and the second hears it before the answer."""
    first = contend(script)
    one = create(script, 4)
    script.answer("children", [one])
    second = contend(script)
    two = create(script, 5)
    script.answer("children", [one, two])
    settle(script, two, {one: SESSION})
    first.leave()
    assert script.asked == ["delete"]
    script.tell(f"/k/{one}", deleted=True)
    assert (second.state, script.asked) == (State.HELD, ["delete"])
    script.answer("delete")
    assert (first.state, script.deleting) == (State.GONE, set())


def test_last__unreadable(script: Script) -> None:
    """One that may not read the node before it cannot wait for its end, and gives up with the server's word."""
    contender, name = join_behind(script, other(3))
    script.answer_get(other(3), error=NoAuthError())
    assert isinstance(contender.error, NoAuthError)
    assert contender.state is State.LEAVING
    assert script.requests[-1][:2] == ("delete", f"/k/{name}")


def test_lease__over_at_the_grant(script: Script) -> None:
    """A queue that was listed when the lease had ended is listed again, over a new connection."""
    contender, name = wait_behind(script, other(3))
    script.lease_expired = True
    script.tell(f"/k/{other(3)}", deleted=True)
    # Behind the event, and again at the grant: the list follows a write, which is to renew the lease.
    for _ in range(2):
        assert (contender.state, script.asked) == (State.WAITING, ["write", "children"])
        script.answer("write")
        script.answer("children", [name])
    assert (contender.state, script.asked) == (State.WAITING, ["drop"])
    script.break_connection()
    script.lease_expired = False
    script.reconnect()
    script.answer("children", [name])
    assert contender.state is State.HELD


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs")
def test_lease__short_before_the_grant(script: Script) -> None:
    """A waiter whose lease would end before the next heartbeat renews it when it lists again, and when it holds.

    The third in a queue has waited for nearly a session timeout, in a session that keeps no lease; then the two before
    it end shortly after each other. The lease ended after the grant, with nothing wrong anywhere.
    """
    contender, name = wait_behind(script, other(1), other(3))
    script.lease_is_short = True
    script.tell(f"/k/{other(1)}", deleted=True)
    assert script.asked == ["get", "write", "children"]
    settle(script, name)
    script.answer("write")
    script.answer("children", [other(3), name])
    settle(script, name)
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, script.asked) == (State.HELD, ["write"])


def test_left__hears_nothing(script: Script) -> None:
    """A contender that gives up its place takes its watch off, and is not granted by what comes late."""
    contender, name = wait_behind(script, other(3))
    late = script.watches[f"/k/{other(3)}"][0]
    contender.leave()
    assert set(script.watches) == {f"/k/{name}"}
    late(True)
    assert (contender.state, script.asked) == (State.LEAVING, ["delete"])


# Several at once.


@pytest.mark.parametrize("last", [1, 2, 3])
def test_readers__last_of_several(script: Script, last: int) -> None:
    """One that waits for readers that hold together watches them all, and holds when the last of them is gone."""
    contender, name = join_behind(script, reader(1), reader(2), reader(3), rule=WRITE)
    assert set(script.watches) == {f"/k/{name}", *(f"/k/{reader(number)}" for number in (1, 2, 3))}
    settle(script, name)
    for number in {1, 2, 3} - {last}:
        script.tell(f"/k/{reader(number)}", deleted=True)
        assert (contender.state, script.asked) == (State.WAITING, [])
    script.tell(f"/k/{reader(last)}", deleted=True)
    assert (contender.state, script.asked) == (State.HELD, [])


def test_readers__of_our_own_session(script: Script) -> None:
    """Readers that we have deleted are proven gone, also when the server has long confirmed it."""
    contender, name = join_behind(script, reader(1), reader(2), rule=WRITE)
    settle(script, name, {reader(1): SESSION, reader(2): SESSION})
    for number in (2, 1):
        script.deleting.add(reader(number))
        script.tell(f"/k/{reader(number)}", deleted=True)
        script.deleting.clear()
    assert (contender.state, script.asked) == (State.HELD, [])


def test_readers__one_without_proof(script: Script) -> None:
    """One end that proves nothing has the queue read, whatever the others prove."""
    contender, name = join_behind(script, reader(1), reader(2), rule=WRITE)
    settle(script, name, {reader(1): SESSION})
    script.tell(f"/k/{reader(1)}", deleted=True)
    assert script.asked == ["children"]
    script.tell(f"/k/{reader(2)}", deleted=True)
    assert (contender.state, script.asked) == (State.WAITING, ["children"])
    script.answer("children", [name])
    assert contender.state is State.HELD


def test_looking_again__keeps_what_is_watched(script: Script) -> None:
    """A second look asks for no watch that is there already, and takes off those that are of no use any more."""
    contender, name = wait_behind(script, reader(1), reader(2), rule=WRITE)
    script.tell(f"/k/{reader(1)}", deleted=False)
    script.answer("children", [reader(1), reader(2), name])
    assert [what for _, what, _ in script.requests] == [f"/k/{reader(1)}"]
    settle(script, name)
    script.tell(f"/k/{reader(1)}", deleted=False)
    # The other one is gone, and the notification of that still on its way.
    script.answer("children", [reader(1), name])
    assert set(script.watches) == {f"/k/{name}", f"/k/{reader(1)}"}
    settle(script, name)
    script.tell(f"/k/{reader(1)}", deleted=True)
    assert (contender.state, script.asked) == (State.HELD, [])
