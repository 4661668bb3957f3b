"""What the contenders of one session in one queue share: lists, the names in them, and what they have found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError, OperationTimeoutError

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.listing import LONG
from django_zklock.zk.node_data import Identity
from django_zklock.zk.place import LockPath
from django_zklock.zk.queue import READ, WRITE, Kind, Queue, Rule
from tests.toolbox.locks.contenders import node_of
from tests.unit.zk.scripted_session import OTHERS, SESSION, Script, contend, create, data, other, stat


@pytest.fixture
def script() -> Script:
    """Return a session in which what is posted runs before the next write, as in a real one."""
    script = Script()
    script.hold_back()
    return script


def joined(script: Script, *rules: Rule) -> list[Contender]:
    """Return contenders that have joined in one write, with sequences from 5 on; the list is still to be answered."""
    contenders = [contend(script, rule) for rule in rules]
    script.flush()
    assert script.asked == ["create"] * len(rules) + ["children"]
    for place in range(len(rules)):
        create(script, 5 + place, 50 + place)
    return contenders


def names(*contenders: Contender) -> list[str]:
    return [node_of(contender) or "" for contender in contenders]


def settle_all(script: Script) -> None:
    """Answer every read that is under way, and those that follow, as if all nodes were there."""
    script.flush()
    while "get" in script.asked:
        name = next(what for kind, what, _ in script.requests if kind == "get").rpartition("/")[2]
        is_ours = any(name in listing.local for listing in script.shared.values())
        script.answer_get(name, (data(), stat(owner=SESSION if is_ours else OTHERS)))
        script.flush()


CALM: dict[str, Any] = {"data": b"", "wait": True, "notify": lambda: None}


# One list for many.


def test_join__together(script: Script) -> None:
    """Those that join in one write are told of the queue once, behind the last of their creations."""
    one, two, three = joined(script, WRITE, WRITE, WRITE)
    script.answer("children", [*names(three, one, two), "readme"])
    assert [each.state for each in (one, two, three)] == [State.HELD, State.WAITING, State.WAITING]
    assert script.asked.count("children") == 0


def test_join__one_after_the_other(script: Script) -> None:
    """A contender that joins after a list has left is not in it, and asks for one of its own."""
    one = contend(script)
    script.flush()
    two = contend(script)
    script.flush()
    assert script.asked == ["create", "children", "create", "children"]
    create(script, 5)
    script.answer("children", names(one))
    create(script, 6)
    script.answer("children", names(one, two))
    assert (one.state, two.state) == (State.HELD, State.WAITING)


def test_list__refused(script: Script) -> None:
    """The refusal of a list is the outcome for all that asked."""
    both = joined(script, WRITE, WRITE)
    script.answer("children", error=NoAuthError())
    for contender in both:
        assert isinstance(contender.error, NoAuthError)
        assert contender.state is State.LEAVING


def test_list__ordered_once(script: Script) -> None:
    """At the end of the counter those that asked together share what it takes to find the order."""
    one, two = joined(script, WRITE, WRITE)
    end = other(2**31 - 1, Kind.WRITE)
    script.answer("children", [*names(one, two), end])
    assert script.asked == ["get"] * 3
    for czxid in (50, 51, 70):
        script.answer("get", (b"", stat(czxid)))
    assert (one.state, two.state) == (State.HELD, State.WAITING)


# A long queue.


def long_queue(script: Script) -> list[str]:
    """Add a contender behind enough others to make the queue long; return the names of all."""
    contender = contend(script, WRITE)
    script.flush()
    create(script, 500)
    nodes = [*(other(place, Kind.WRITE) for place in range(LONG)), *names(contender)]
    script.answer("children", nodes)
    settle_all(script)
    return nodes


def test_long_queue__one_list_at_a_time(script: Script) -> None:
    """While a list is under way those that join wait for its answer, and share the next one, which has them all."""
    nodes = long_queue(script)
    contenders = []
    for place in range(3):
        contenders.append(contend(script, WRITE))
        script.flush()
        assert script.asked[-1] == ("children" if place == 0 else "create")
    create(script, 501)
    script.answer("children", [*nodes, *names(contenders[0])])
    script.flush()
    create(script, 502)
    create(script, 503)
    settle_all(script)
    assert script.asked == ["children"]
    script.answer("children", [*nodes, *names(*contenders)])
    settle_all(script)
    assert [each.state for each in contenders] == [State.WAITING] * 3
    assert [each.holder_reads for each in contenders] == [1] * 3
    assert script.asked == []


def test_long_queue__refused_list(script: Script) -> None:
    """A list that is refused is an answer, too: the next one is asked for."""
    nodes = long_queue(script)
    one = contend(script, WRITE)
    script.flush()
    two = contend(script, WRITE)
    script.flush()
    create(script, 501)
    script.answer("children", error=NoAuthError())
    script.flush()
    create(script, 502)
    assert one.state is State.LEAVING
    assert script.asked == ["delete", "children"]
    script.answer("delete")
    script.answer("children", [*nodes, *names(two)])
    assert two.state is State.WAITING


# The connection goes.


def test_connection__gone_before_the_write(script: Script) -> None:
    """What was asked and never sent is asked again on the next connection, once."""
    one, two = contend(script), contend(script)
    script.break_connection()
    script.flush()
    assert script.asked == []
    script.reconnect()
    script.flush()
    assert script.asked == ["sync"]
    script.answer("sync")
    script.flush()
    # Neither creation has left either.
    script.answer("children", error=NoNodeError())
    script.flush()
    assert script.asked == ["create", "create", "children"]
    create(script, 5)
    create(script, 6)
    script.answer("children", names(one, two))
    assert (one.state, two.state) == (State.HELD, State.WAITING)


def test_connection__old_questions(script: Script) -> None:
    """A question of an earlier connection is not answered by the next one; one that comes without any has to wait."""
    listing = script.listing("/k")
    notified: list[str] = []
    listing.list_queue(lambda _queue, _refusal: notified.append("before"))
    script.break_connection()
    script.flush()
    listing.list_queue(lambda _queue, _refusal: notified.append("meanwhile"))
    script.flush()
    assert script.asked == []
    script.reconnect()
    listing.list_queue(lambda _queue, _refusal: notified.append("after"))
    script.flush()
    script.answer("children", [other(1)])
    assert (notified, script.asked) == (["meanwhile", "after"], [])


def test_connection__several_queues(script: Script) -> None:
    """One that looks for its nodes in several queues has all lists, also if a neighbour asked for the last first."""
    single = Contender(script, [LockPath("/c")], WRITE, **CALM)  # type: ignore[arg-type]
    single.join()
    places = [LockPath(path, b"") for path in ("/a", "/b", "/c")]
    several = Contender(script, places, WRITE, **CALM)  # type: ignore[arg-type]
    several.join()
    script.flush()
    one = f"{script.requests[0][1].rpartition('/')[2]}0000000004"
    all_of_it = f"{script.requests[1][1][0].rpartition('/')[2]}0000000005"
    script.break_connection()
    script.reconnect()
    script.answer("sync")
    script.flush()
    lists = [what for kind, what, _ in script.requests if kind == "children"]
    assert lists == ["/c", "/a", "/b"]
    script.answer("children", [one, all_of_it])
    script.answer("children", [all_of_it])
    script.answer("children", [all_of_it])
    script.answer_get(one, (b"", stat(50)))
    script.answer_get(all_of_it, (b"", stat(60)))
    for _ in range(2):
        script.answer("confirm")
    assert several.node_paths == {place.path: f"{place.path}/{all_of_it}" for place in places}
    assert "delete" not in script.asked


# The holder.


def test_identify__shared(script: Script) -> None:
    """The owner of the first node is read once for all that want to know, and all are told, also that it is unknown."""
    listing = script.listing("/k")
    found: list[Identity | None] = []
    for answer, host in [((data(host="first"), stat()), "first"), (None, None)]:
        for _ in range(3):
            listing.read_holder(other(1), lambda who, _error: found.append(who))
        script.flush()
        assert script.answer("get", answer, None if answer else NoNodeError()) == f"/k/{other(1)}"
        assert [who and who.host for who in found] == [host] * 3
        assert script.asked == []
        found.clear()


def test_identify__refused_for_now(script: Script) -> None:
    """The owners of a predecessor and the first node are read again after a passing refusal, and never told wrongly."""
    contender = contend(script, WRITE)
    script.flush()
    name = create(script)
    script.answer("children", [other(1), other(2), other(3), name])
    script.flush()
    for owner in (SESSION, OTHERS):
        script.answer("get", (data(), stat(owner=owner)))
    script.answer("get", error=OperationTimeoutError())
    contender.refresh_holder()
    script.flush()
    script.answer("children", error=OperationTimeoutError())
    assert (contender.holder_reads, script.asked) == (0, [])
    script.ask_again()
    script.flush()
    assert script.answer("get", (data("the first"), stat())) == f"/k/{other(1)}"
    assert (contender.holder_reads, contender.holder and contender.holder.host) == (1, "the first")
    script.answer("children", [other(1), name])
    script.flush()
    script.answer("get", (data("still"), stat()))
    assert (contender.holder_reads, contender.holder and contender.holder.host) == (2, "still")


def test_look__shared(script: Script) -> None:
    """Waiters whose timeouts end together look for the holder with one list, and one read."""
    holding, *waiting = joined(script, WRITE, WRITE, WRITE, WRITE)
    script.answer("children", names(holding, *waiting))
    settle_all(script)
    settle_all(script)
    holder_reads = [contender.holder_reads for contender in waiting]
    for contender in waiting:
        contender.refresh_holder()
    script.flush()
    script.answer("children", names(holding, *waiting))
    script.flush()
    assert script.answer("get", (data(host="me"), stat())) == f"/k/{node_of(holding)}"
    assert [contender.holder_reads for contender in waiting] == [before + 1 for before in holder_reads]
    assert script.asked == []


# The one before is a neighbour.


def queue_of_three(script: Script) -> list[Contender]:
    """Return three of our session that stand behind each other, the first of which holds; all is settled."""
    three = joined(script, WRITE, WRITE, WRITE)
    script.answer("children", names(*three))
    settle_all(script)
    assert [each.state for each in three] == [State.HELD, State.WAITING, State.WAITING]
    return three


@pytest.mark.shows("guarantees#first-come-first-served")
def test_neighbour__in_turn(script: Script) -> None:
    """A contender behind one of our own session holds when that lets go, before the server has heard of it."""
    one, two, three = queue_of_three(script)
    assert set(script.watches) == {f"/k/{name}" for name in names(one, two, three)}
    one.leave()
    assert (two.state, three.state, script.asked) == (State.WAITING, State.WAITING, ["delete"])
    script.flush()
    assert (two.state, three.state, script.asked) == (State.HELD, State.WAITING, ["delete"])
    two.leave()
    script.flush()
    assert (three.state, script.asked) == (State.HELD, ["delete", "delete"])
    for each in (one, two):
        script.answer("delete")
        assert each.state is State.GONE


def without_lease(script: Script, _two: Contender) -> None:
    script.lease_expired = True


def not_restored(script: Script, _two: Contender) -> None:
    script.restoring = True


@pytest.mark.shows("guarantees#first-come-first-served")
@pytest.mark.parametrize("unsure", [without_lease, not_restored])
def test_neighbour__without_proof(script: Script, unsure: Callable[[Script, Contender], None]) -> None:
    """What is no proof for an event is none for a neighbour: the queue is read."""
    one, two, _ = queue_of_three(script)
    unsure(script, two)
    script.requests.clear()
    one.leave()
    script.flush()
    asked = [each for each in script.asked if each != "write"]
    assert (two.state, asked) == (State.WAITING, ["delete", "children"])
    script.lease_expired = False
    script.answer("delete")
    if script.asked[0] == "write":
        script.answer("write")
    script.answer("children", names(two))
    assert two.state is State.HELD


def test_neighbour__own_node_unsure(script: Script) -> None:
    """A contender that cannot be sure of its own node waits for the answer of its watch, and reads nothing."""
    one, two, _ = queue_of_three(script)
    script.tell(f"/k/{node_of(two)}", deleted=False)
    one.leave()
    script.flush()
    assert (two.state, script.asked) == (State.WAITING, ["get", "delete"])
    settle_all(script)
    assert (two.state, script.asked) == (State.HELD, ["delete"])


def holder_and_arrival(script: Script) -> tuple[Contender, Contender]:
    """Return a holder, and one that has come after it, with the list under way."""
    one = contend(script, WRITE)
    script.flush()
    create(script, 5)
    script.answer("children", names(one))
    two = contend(script, WRITE)
    script.flush()
    create(script, 6)
    assert (one.state, two.state, script.asked) == (State.HELD, State.JOINING, ["children"])
    return one, two


@pytest.mark.parametrize(
    ("meanwhile", "state", "asked"),
    [
        (None, State.HELD, []),
        # Another client may hold by now.
        ("no lease", State.JOINING, ["write", "children"]),
        # It is watched until it is gone.
        ("lost", State.WAITING, ["get", "get"]),
    ],
)
def test_neighbour__just_released(script: Script, meanwhile: str | None, state: State, asked: list[str]) -> None:
    """A contender whose list still has a neighbour that has let go holds, if that held: no other was before it."""
    one, two = holder_and_arrival(script)
    listed = names(one, two)
    if meanwhile == "lost":
        one.lose("the lease ran out")
    one.leave()
    script.lease_expired = meanwhile == "no lease"
    script.answer("children", listed)
    script.flush()
    assert (two.state, script.asked) == (state, ["delete", *asked])


def test_neighbour__while_away(script: Script) -> None:
    """A release without a connection lets no waiter in: the queue is read on the next one, behind the deletion."""
    one, two, _ = queue_of_three(script)
    script.break_connection()
    script.lease_expired = True
    one.leave()
    script.flush()
    assert (two.state, script.asked) == (State.WAITING, [])
    script.reconnect()
    script.flush()
    assert script.asked == ["delete", "children"]


def test_neighbour__has_lost(script: Script) -> None:
    """A contender that has lost the lock is no proof that no other is before the one behind."""
    one, two, _ = queue_of_three(script)
    one.lose("the connection was suspended")
    one.leave()
    script.flush()
    assert (two.state, script.asked) == (State.WAITING, ["delete", "children"])


def test_neighbour__gives_up(script: Script) -> None:
    """Behind a neighbour that waits and gives up the queue is read, and nothing is heard of what was before that."""
    one, two, three = queue_of_three(script)
    two.leave()
    one.leave()
    script.flush()
    script.answer("delete")
    assert (two.state, three.state) == (State.GONE, State.WAITING)
    assert script.asked == ["delete", "children"]


def test_neighbour__of_several_queues(script: Script) -> None:
    """A contender that waits behind neighbours in several queues holds when the last of them has let go."""
    places = [LockPath(path) for path in ("/k", "/l")]
    first, second = contend(script, WRITE), Contender(script, [LockPath("/l")], WRITE, **CALM)  # type: ignore[arg-type]
    second.join()
    both = Contender(script, places, WRITE, **CALM)  # type: ignore[arg-type]
    both.join()
    script.flush()
    assert script.asked == ["create", "create", "create_all", "children", "children"]
    create(script, 4)
    create(script, 4)
    script.answer("create_all", ([f"{stem.rpartition('/')[2]}0000000005" for stem in script.requests[0][1]], 50))
    for each, place in zip((first, second), both.places, strict=True):
        script.answer("children", [node_of(each) or "", place.node or ""])
    settle_all(script)
    assert (first.state, second.state, both.state) == (State.HELD, State.HELD, State.WAITING)
    second.leave()
    script.flush()
    assert (both.state, script.asked) == (State.WAITING, ["delete"])
    first.leave()
    script.flush()
    assert (both.state, script.asked) == (State.HELD, ["delete", "delete"])


def test_neighbour__lets_others_in(script: Script) -> None:
    """A reader that holds has perhaps other readers before it, and is no proof that none is left."""
    one, two, three, four = joined(script, READ, READ, WRITE, WRITE)
    script.answer("children", names(one, two, three, four))
    settle_all(script)
    assert [each.state for each in (one, two)] == [State.HELD, State.HELD]
    two.leave()
    script.tell(f"/k/{node_of(two)}", deleted=True)
    script.flush()
    assert three.state is State.WAITING


# A look is under way.


def listing_again(script: Script) -> tuple[Contender, str]:
    """Return a contender behind three others, and its node; one of them has gone, and the queue is to be read again."""
    contender = contend(script)
    script.flush()
    name = create(script)
    script.answer("children", [other(1), other(2), other(3), name])
    settle_all(script)
    script.tell(f"/k/{other(2)}", deleted=True)
    return contender, name


def test_change__during_a_look(script: Script) -> None:
    """What happens before a look is answered is in the answer, and so asks for no second one."""
    contender, name = listing_again(script)
    script.flush()
    assert script.asked == ["get", "children"]
    settle_all(script)
    script.tell(f"/k/{other(3)}", deleted=True)
    script.flush()
    assert script.asked == ["children"]
    script.answer("children", [name])
    assert contender.state is State.HELD


def test_change__older_answer(script: Script) -> None:
    """An answer that still has what is gone by now keeps no waiter waiting: one that watches that again is told."""
    contender, name = listing_again(script)
    settle_all(script)
    script.tell(f"/k/{other(3)}", deleted=True)
    script.flush()
    script.answer("children", [other(3), name])
    script.flush()
    assert script.asked == ["get"]
    script.answer_get(other(3), error=NoNodeError())
    script.flush()
    script.answer("children", [name])
    assert contender.state is State.HELD


# Life.


def test_listing__lives_with_its_contenders(script: Script) -> None:
    """Names that were read once are not read again."""
    listing = script.listing("/k")
    queues: list[Queue] = []
    for listed in ([other(2), other(1), "readme"], [other(3), other(2)]):
        listing.list_queue(lambda queue, _refusal: queues.append(queue))
        script.flush()
        script.answer("children", listed)
    first, again = map(list, queues)
    assert [node.sequence for node in first] == [1, 2]
    assert [node.sequence for node in again] == [2, 3]
    assert again[0] is first[1]


def test_session__of_the_neighbours(script: Script) -> None:
    """A leader of a session that is over leads no contender: its node is in no list any more."""
    one, two = joined(script, WRITE, WRITE)
    script.answer("children", names(one, two))
    script.end_session()
    script.reconnect()
    script.flush()
    assert (one.state, two.state, script.id) == (State.GONE, State.JOINING, SESSION + 1)
    create(script, 7)
    script.answer("children", [other(6), node_of(two)])
    script.flush()
    assert two.state is State.WAITING
