"""The state machine against a server whose every answer is written in the test."""

from __future__ import annotations

from functools import partial

import pytest
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError, OperationTimeoutError

from django_zklock.zk.contender import MAX_ENSURES, Contender, SessionUnavailable, State
from django_zklock.zk.place import LockPath
from django_zklock.zk.queue import EXCLUSIVE, Kind, Rule, semaphore
from tests.toolbox.locks.contenders import is_next
from tests.unit.zk.scripted_session import (
    Script,
    contend,
    create,
    curators,
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


def test_join__nobody_ahead(script: Script) -> None:
    """Create and list together are enough."""
    contender = contend(script)
    assert script.asked == ["create", "children"]
    name = create(script)
    script.answer("children", [name, other(6), "readme"])
    assert (contender.state, contender.token, script.asked) == (State.HELD, 50, [])


def test_join__abandoned_before_it_began(script: Script) -> None:
    """A contender that leaves before joining is gone, and a late join does nothing."""
    contender = Contender(script, [LockPath("/k")], EXCLUSIVE, data=b"", wait=True, notify=lambda: None)  # type: ignore[arg-type]
    contender.leave()
    contender.join()
    assert (contender.state, script.asked, script.listeners) == (State.GONE, [], {})


# Full sessions.


@pytest.fixture
def moving(script: Script) -> tuple[Contender, Script]:
    """Return a contender whose session is full, and the session to which it moves; both keep what is posted."""
    elsewhere = Script()
    script.full, script.next_session = True, elsewhere
    contender = Contender(script, [LockPath("/k")], EXCLUSIVE, data=b"", wait=True, notify=lambda: None)  # type: ignore[arg-type]
    script.hold_back()
    elsewhere.hold_back()
    script.post(contender.join)
    return contender, elsewhere


def test_join__full_again(script: Script, moving: tuple[Contender, Script]) -> None:
    """If others have filled the next session meanwhile, the contender moves on."""
    contender, elsewhere = moving
    third = Script()
    elsewhere.full, elsewhere.next_session = True, third
    script.flush()
    elsewhere.flush()
    assert (contender.state, third.asked) == (State.JOINING, ["create", "children"])
    assert (script.used, elsewhere.used, third.used) == (0, 0, 1)


def test_leave__arrives_first(script: Script, moving: tuple[Contender, Script]) -> None:
    """A contender that leaves after the move and before it joins there is gone, and joins nowhere."""
    contender, elsewhere = moving
    script.flush()
    contender.post(contender.leave)
    assert elsewhere.posted is not None
    elsewhere.posted.reverse()
    elsewhere.flush()
    assert (contender.state, elsewhere.asked, elsewhere.used) == (State.GONE, [], 0)


@pytest.mark.parametrize("error", [ConnectionError("the session was closed"), RuntimeError("can't start new thread")])
def test_join__no_other_session(script: Script, error: Exception) -> None:
    """If no other session can be had the contender fails, with the reason."""
    script.full, script.next_session = True, error
    contender = contend(script)
    assert (contender.state, script.used) == (State.GONE, 0)
    assert isinstance(contender.error, SessionUnavailable)
    assert str(contender.error) == str(error)


def test_used__creation_in_doubt(script: Script) -> None:
    """A node that may exist counts, until it is known that it does not."""
    contender = contend(script)
    script.break_connection()
    contender.leave()
    script.reconnect()
    script.answer("sync")
    assert (contender.state, script.used) == (State.LEAVING, 1)
    script.answer("children", [])
    assert (contender.state, script.used) == (State.GONE, 0)


@pytest.mark.parametrize("error", [None, NoAuthError()])
def test_used__deletion(script: Script, error: Exception | None) -> None:
    """A node counts until its deletion is confirmed, and one that no client may delete as long as the session lives."""
    contender, _name = hold(script)
    contender.leave()
    assert script.used == 1
    script.answer("delete", error=error)
    assert (contender.state, script.used) == (State.GONE, 0 if error is None else 1)


# Joining.


@pytest.mark.parametrize("error", [None, NodeExistsError(), NoAuthError()])
def test_create__unknown_queue(script: Script, error: Exception | None) -> None:
    """The first use of a queue creates its parent in the same write; it may exist, and we may not be allowed to."""
    script.known_queues = set()
    contender = contend(script)
    assert script.asked == ["ensure_last", "create", "children"]
    script.answer("ensure_last", "/k", error=error)
    name = create(script)
    script.answer("children", [name])
    assert contender.state is State.HELD
    # From now on it is known.
    contend(script)
    assert script.asked == ["create", "children"]
    script.answer("create", error=NoNodeError())
    # The server has deleted it, because it was empty.
    contend(script)
    assert script.asked[-3:] == ["ensure_last", "create", "children"]


def test_create__unknown_queue_again(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many queues are known; then the next use of each asks for its parent once more."""
    monkeypatch.setattr("django_zklock.zk.contender.MAX_KNOWN_QUEUES", 2)
    script.known_queues = {"/a", "/b"}
    contend(script)
    script.answer("ensure_last", "/k")
    create(script)
    assert script.known_queues == {"/k"}


def test_create__unknown_queue_of_many(script: Script) -> None:
    """The contenders that join before the answer rely on the request of the first, which is before theirs."""
    script.known_queues = set()
    for _ in range(3):
        contend(script)
    assert script.asked.count("ensure_last") == 1
    assert script.asked.count("create") == 3


def test_create__parent_never_there(script: Script) -> None:
    """Parents that are never there, although they are made, are given up after a bounded number of tries."""
    contender = contend(script)
    for _ in range(MAX_ENSURES):
        script.answer("create", error=NoNodeError())
        script.answer("children", error=NoNodeError())
        script.answer("ensure", "/k")
    script.answer("create", error=NoNodeError())
    script.answer("children", error=NoNodeError())
    assert isinstance(contender.error, NoNodeError)
    assert (contender.state, script.asked, script.listeners) == (State.GONE, [], {})


def test_create__parent_refused(script: Script) -> None:
    """Parents that may not be made are given up at once, with what the server said about them."""
    contender = contend(script)
    script.answer("create", error=NoNodeError())
    script.answer("children", error=NoNodeError())
    script.answer("ensure", error=NoAuthError())
    script.answer("create", error=NoNodeError())
    script.answer("children", error=NoNodeError())
    assert isinstance(contender.error, NoAuthError)
    assert (contender.state, script.asked, script.listeners) == (State.GONE, [], {})


def test_is_held(script: Script) -> None:
    """What a strict session would lose with its connection: no wait, however near its end, and nothing lost before."""
    contender, _name = wait_behind(script, other(3))
    assert (contender.needs_lease, contender.is_held) == (True, False)
    script.tell(f"/k/{other(3)}", deleted=True)
    assert (contender.state, contender.is_held) == (State.HELD, True)
    contender.lose("for the test")
    assert not contender.is_held


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_create__reply_lost_of_one_server(script: Script) -> None:
    """A node that the leader does not know, as one that a server has brought back, is never adopted.

    Two contenders held one lock: the server of the first one alone had kept what the leader before had written without
    a majority.
    """
    contend(script)
    name = f"{script.requests[0][1].rpartition('/')[2]}0000000005"
    script.break_connection()
    script.reconnect()
    script.answer("sync")
    script.answer("children", [name])
    script.answer("get", (b"me", stat(50)))
    assert script.answer("confirm", error=NoNodeError()) == (f"/k/{name}",)
    assert script.answer("delete", error=NoNodeError()) == f"/k/{name}"
    assert script.asked == ["create", "children"]


def test_waiting__predecessor_gone(script: Script) -> None:
    """The one before the last is watched; when it goes the queue is read again, and the last is watched as well."""
    contender, name = join_behind(script, other(1), other(3), other(4))
    assert set(script.watches) == {f"/k/{name}", f"/k/{other(3)}"}
    settle(script, name)
    script.tell(f"/k/{other(3)}", deleted=True)
    assert script.asked == ["get", "children"]
    settle(script, name)
    script.answer("children", [other(1), other(4), name])
    assert set(script.watches) == {f"/k/{name}", f"/k/{other(1)}"}
    settle(script, name)
    script.tell(f"/k/{other(1)}", deleted=True)
    settle(script, name)
    script.answer("children", [other(4), name])
    assert set(script.watches) == {f"/k/{name}", f"/k/{other(4)}"}
    assert is_next(contender)
    script.tell(f"/k/{other(4)}", deleted=True)
    assert (contender.state, script.asked) == (State.HELD, [])


@pytest.mark.shows("faults#a-writer-of-curator-becomes-a-reader")
def test_waiting__writer_gone(script: Script) -> None:
    """Behind a writer of Curator a list follows its end, for it may go on as a reader, which has its number."""
    contender, name = wait_behind(script, curators(1, Kind.WRITE))
    script.tell(f"/k/{curators(1, Kind.WRITE)}", deleted=True)
    assert script.asked == ["children"]
    script.answer("children", [name, curators(1, Kind.READ)])
    settle(script, name)
    assert is_next(contender)
    script.tell(f"/k/{curators(1, Kind.READ)}", deleted=True)
    assert contender.state is State.HELD


END = 2**31 - 1


def rival(number: int) -> str:
    """Return the name of another node with the last number there is."""
    return f"_c_0f8fad5b-d9cb-469f-a165-7086772895{number:02}-lock-{END:010d}"


def answer_gets(script: Script, czxids: dict[str, int]) -> None:
    """Answer with a stat for each node, and for those that are not named with a refusal."""
    while script.requests and script.asked[0] == "get" and not script.watches:
        czxid = czxids.get(script.requests[0][1].rpartition("/")[2])
        if czxid is None:
            script.answer("get", error=NoAuthError())
        else:
            script.answer("get", (b"", stat(czxid)))


def test_sequence_end__by_czxid(script: Script) -> None:
    """At the end of the counter the order is that of the creating transactions."""
    contender = contend(script)
    name = create(script, END, czxid=60)
    czxids = {rival(1): 50, rival(2): 70, name: 60}
    script.answer("children", list(czxids))
    answer_gets(script, czxids)
    assert contender.state is State.WAITING
    assert f"/k/{rival(1)}" in script.watches


def test_sequence_end__own_node_gone(script: Script) -> None:
    """If our node is gone when the order is looked up, we queue up anew."""
    contender = contend(script)
    name = create(script, END, czxid=60)
    script.answer("children", [rival(1), name])
    for path in (f"/k/{rival(1)}", f"/k/{name}"):
        assert script.requests[0][1] == path
        script.answer("get", error=NoNodeError())
    script.answer("children", [])
    assert script.asked == ["create", "children"]
    assert contender.state is State.JOINING


def deleted_while_read(script: Script, rule: Rule = EXCLUSIVE) -> tuple[Contender, str]:
    """Return a contender, and its node, whose only predecessor was deleted after the list; the queue is read again."""
    contender = contend(script, rule)
    name = create(script, END, czxid=60)
    script.answer("children", [rival(1), name])
    script.answer("get", error=NoNodeError())
    script.answer("get", (b"", stat(60)))
    assert (contender.state, script.asked) == (State.JOINING, ["children"])
    return contender, name


def test_sequence_end__listed_again(script: Script) -> None:
    """What the second list has besides the first is read, and the queue is what that list shows."""
    contender, name = deleted_while_read(script, semaphore(1))
    late = other(END, Kind.PERMIT, 1)
    script.answer("children", [name, late])
    assert script.answer("get", (b"", stat(70))) == f"/k/{late}"
    assert contender.state is State.HELD
    # The waiter behind us has seen our predecessor, and relies on us.
    assert script.asked == ["set"]


@pytest.mark.parametrize("found", [[], [rival(2)]], ids=["nothing new", "a node that is deleted too"])
def test_sequence_end__listed_again_and_deleted(script: Script, found: list[str]) -> None:
    """A second list that has nothing new needs no reads; what is deleted too is left out, without a third list."""
    contender, name = deleted_while_read(script)
    script.answer("children", [*found, name])
    for _ in found:
        script.answer("get", error=NoNodeError())
    assert (contender.state, script.asked) == (State.HELD, [])


def test_sequence_end__second_list_refused(script: Script) -> None:
    """A refusal of the second list is that of the first."""
    contender, name = deleted_while_read(script)
    script.answer("children", error=OperationTimeoutError())
    assert (contender.state, script.asked) == (State.JOINING, [])
    script.ask_again()
    script.answer("children", [name])
    script.answer("get", (b"", stat(60)))
    assert contender.state is State.HELD


def test_sequence_end__unreadable(script: Script) -> None:
    """A node that we may not read, and that may be before us, is a refusal, not a node that is not there."""
    contender = contend(script)
    name = create(script, END, czxid=60)
    script.answer("children", [rival(1), name])
    answer_gets(script, {name: 60})
    assert isinstance(contender.error, NoAuthError)
    assert contender.state is State.LEAVING
    assert script.answer("delete") == f"/k/{name}"


def test_sequence_end__unreadable_and_reply_lost(script: Script) -> None:
    """What a creation with a lost reply has made is found by name and deleted: otherwise nothing would know of it."""
    contender = contend(script)
    name = f"{script.requests[0][1].rpartition('/')[2]}{END:010d}"
    script.break_connection()
    script.reconnect()
    script.answer("sync")
    for _look in range(2):
        script.answer("children", [rival(1), name])
        script.answer("get", error=NoAuthError())
        script.answer("get", (b"", stat(60)))
        if "confirm" in script.asked:
            script.answer("get", (b"me", stat(60)))
            script.answer("confirm")
    assert isinstance(contender.error, NoAuthError)
    assert script.answer("delete") == f"/k/{name}"
    assert (contender.state, contender.session.used, contender.session.left_behind) == (State.GONE, 0, 0)


def test_sequence_end__who_holds(script: Script) -> None:
    """A caller that is told that the lock is taken is told the name of the one that holds it, not of another."""
    contender = contend(script, wait=False)
    script.answer("children", [rival(1), rival(2)])
    for czxid in (70, 50):
        script.answer("get", (b"", stat(czxid)))
    assert contender.is_taken
    contender.refresh_holder()
    script.answer("children", [rival(1), rival(2)])
    for czxid in (70, 50):
        script.answer("get", (b"", stat(czxid)))
    assert contender.holder_reads == 0
    assert script.answer("get", (b"", stat(50))) == f"/k/{rival(2)}"
    assert contender.holder_reads == 1


def test_when_followed(script: Script) -> None:
    """A holder learns of those that wait behind it, except of the nodes that it names."""
    contender, name = hold(script)
    followed: list[str] = []
    for ours in ([], [f"/k/{other(6)}"], [f"/k/{other(6)}", f"/k/{other(7)}"]):
        contender.post(partial(contender.when_followed, ours, partial(followed.append, f"all but {len(ours)}")))
        script.answer("children", [other(4, Kind.READ), name, other(6), other(7)])
    contender.post(partial(contender.when_followed, [], partial(followed.append, "none")))
    script.answer("children", [name])
    assert followed == ["all but 0", "all but 1"]


def test_grant__lease_renewed(script: Script) -> None:
    """A grant that is read after the lease has ended, as in an idle session, comes one round trip later."""
    contender = contend(script)
    name = create(script)
    script.lease_expired = True
    script.answer("children", [name])
    assert (contender.state, script.asked) == (State.JOINING, ["write", "children"])
    script.lease_expired = False
    script.answer("write")
    script.answer("children", [name])
    assert (contender.state, script.asked) == (State.HELD, [])


def test_unavailable__patient(script: Script) -> None:
    """A waiter that has a deadline waits until then, unless there will be no other session."""
    contender, _ = join_behind(script, other(3))
    contender.has_deadline = True
    contender.unavailable("away")
    assert (contender.state, contender.error) == (State.WAITING, None)
    script.ended = "closed"
    contender.unavailable("closed")
    assert isinstance(contender.error, SessionUnavailable)
