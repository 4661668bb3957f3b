"""Several locks by one transaction, against a server whose every answer is written in the test."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from django_zklock.zk.contender import Contender, SessionUnavailable, State
from django_zklock.zk.node_data import LockNodeData, Removal
from django_zklock.zk.place import LockPath
from django_zklock.zk.queue import EXCLUSIVE, Rule
from tests.unit.zk.scripted_session import OTHERS, SESSION, Script, data, other, settle, stat

PATHS = ("/b", "/a", "/c")


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def notified() -> list[None]:
    """Return a list that grows with each notification."""
    return []


def contend(
    script: Script, rule: Rule = EXCLUSIVE, *, wait: bool = True, notified: list[None] | None = None
) -> Contender:
    """Return an attempt at all the queues that has sent what it sends first."""
    notes = [] if notified is None else notified
    session: Any = script
    places = [LockPath(path, path.encode()) for path in PATHS]
    several = Contender(session, places, rule, data=b"me", wait=wait, notify=lambda: notes.append(None))
    several.join()
    return several


def create(script: Script, *, token: int = 50, sequence: int = 5) -> dict[str, str]:
    """Answer the creation; return the name of each node by its queue."""
    stems = script.requests[0][1]
    names = [f"{stem.rpartition('/')[2]}{sequence:010d}" for stem in stems]
    script.answer("create_all", (names, token))
    return {stem.rpartition("/")[0]: name for stem, name in zip(stems, names, strict=True)}


def list_all(script: Script, names: dict[str, str], **before: str) -> None:
    """Answer the lists, with a contender ``before`` us in the queues that are named by their letters."""
    for path in PATHS:
        assert script.answer("children", [names[path], *filter(None, [before.get(path[1:])])]) == path


def hold(script: Script, notified: list[None] | None = None) -> tuple[Contender, dict[str, str]]:
    """Return an attempt that holds, and its nodes."""
    several = contend(script, notified=notified)
    names = create(script)
    list_all(script, names)
    assert several.state is State.HELD
    return several, names


def wait_in(script: Script, *letters: str) -> tuple[Contender, dict[str, str]]:
    """Return an attempt that waits for one other in these queues, and its nodes."""
    several = contend(script)
    names = create(script)
    list_all(script, names, **dict.fromkeys(letters, other(1)))
    settle(script, "", dict.fromkeys(names.values(), SESSION))
    assert several.state is State.WAITING
    return several, names


def nodes_of(names: dict[str, str]) -> list[str]:
    return [f"{path}/{names[path]}" for path in PATHS]


def answer_deletes(script: Script) -> list[str]:
    """Answer the deletes that are asked for first; return what they delete."""
    deleted = []
    while script.asked[:1] == ["delete"]:
        deleted.append(script.answer("delete"))
    return deleted


# Getting in.


def test_join__all_free(script: Script, notified: list[None]) -> None:
    """One creation and a list of each queue are enough; nothing is held before the last is, by one token."""
    several = contend(script, notified=notified)
    assert script.asked == ["create_all", "children", "children", "children"]
    stems = script.requests[0][1]
    assert [stem.rpartition("/")[0] for stem in stems] == list(PATHS)
    assert len({stem.rpartition("/")[2] for stem in stems}) == 1
    names = create(script, token=4711)
    for path in PATHS:
        assert several.state is State.JOINING
        assert script.answer("children", [names[path]]) == path
    assert (several.state, several.token, script.asked) == (State.HELD, 4711, [])
    assert several.node_paths == dict(zip(PATHS, nodes_of(names), strict=True))
    assert notified


@pytest.mark.shows("faults#more-keys-than-a-server-reads")
def test_join__many() -> None:
    """The work for each of many keys does not grow with their number: four times the keys make four times the calls."""

    def calls(keys: int) -> int:
        script, count = Script(), 0
        session: Any = script
        places = [LockPath(f"/{number}", b"") for number in range(keys)]
        several = Contender(session, places, EXCLUSIVE, data=b"me", wait=True, notify=lambda: None)
        several.join()
        stems = script.requests[0][1]
        names = [f"{stem.rpartition('/')[2]}{5:010d}" for stem in stems]

        def seen(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(seen)
        try:
            script.answer("create_all", (names, 50))
            for name in names:
                script.answer("children", [name])
            several.leave()
            while script.asked:
                script.answer("delete")
        finally:
            sys.setprofile(None)
        assert (several.token, several.state) == (50, State.GONE)
        return count

    assert calls(240) < 6 * calls(60)


def test_join__without_connection(script: Script) -> None:
    """A contender that joins while there is no connection is in the queues as soon as there is one."""
    script.connected = False
    several = contend(script)
    assert (several.state, script.asked) == (State.JOINING, [])
    script.reconnect()
    list_all(script, create(script))
    assert several.state is State.HELD


def test_wait__holder(script: Script, notified: list[None]) -> None:
    """A contender that waits knows the holder that is in the way in one of the queues."""
    several = contend(script, notified=notified)
    names = create(script)
    list_all(script, names, c=other(1))
    notified.clear()
    script.answer_get(names["/c"], (data(), stat()))
    script.answer_get(other(1), (data(host="in the way"), stat(owner=OTHERS)))
    assert (several.state, several.holder_reads) == (State.WAITING, 1)
    assert several.holder is not None
    assert several.holder.host == "in the way"
    assert notified
    settle(script, "", dict.fromkeys(names.values(), SESSION))
    several.refresh_holder()
    assert script.answer("children", [names["/c"], other(1)]) == "/c"
    script.answer("get", (data(host="still there"), stat(owner=OTHERS)))
    assert (several.holder_reads, several.holder.host) == (2, "still there")


def test_wait__holder_of_the_refreshed(script: Script) -> None:
    """The holder that was read last is named, also if another member has begun to wait before."""
    several = contend(script)
    several.wants_holder = False
    names = create(script)
    # A listing of a long queue may wait for the one before it.
    order = ["/c", "/b", "/a"]
    script.requests.sort(key=lambda request: order.index(request[1]))
    waiters = [other(1), other(2), other(3)]
    assert script.answer("children", [names["/c"], *waiters]) == "/c"
    assert script.answer("children", [names["/b"], *waiters]) == "/b"
    assert script.answer("children", [names["/a"]]) == "/a"
    for path in order[:2]:
        script.answer_get(names[path], (data(), stat()))
        script.answer_get(other(2), (data(host="a waiter"), stat(owner=OTHERS)))
    settle(script, names["/a"])
    several.refresh_holder()
    assert script.answer("children", [names["/b"], *waiters]) == "/b"
    assert script.answer("get", (data(host="the holder"), stat(owner=OTHERS))) == f"/b/{other(1)}"
    assert several.holder_reads == 1
    assert several.holder is not None
    assert several.holder.host == "the holder"


def test_create__no_parents(script: Script) -> None:
    """Missing parents are made, all of them, with the next creation right behind."""
    several = contend(script)
    first = script.requests[0][1]
    script.answer("create_all", error=NoNodeError())
    for _ in PATHS:
        script.answer("children", error=NoNodeError())
    assert script.asked == ["ensure"] * 3 + ["create_all"] + ["children"] * 3
    for error in (None, NodeExistsError(), NoAuthError()):
        assert script.answer("ensure", error=error) is True
    assert script.requests[0][1] != first
    list_all(script, create(script))
    assert several.state is State.HELD


def test_create__refused(script: Script, notified: list[None]) -> None:
    """A refusal is the outcome."""
    several = contend(script, notified=notified)
    script.answer("create_all", error=NoAuthError())
    for _ in PATHS:
        script.answer("children", error=NoAuthError())
    assert isinstance(several.error, NoAuthError)
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})
    assert notified


def test_member__refused(script: Script) -> None:
    """If one queue cannot be read, none is waited for."""
    several = contend(script)
    names = create(script)
    script.answer("children", [names["/b"]])
    script.answer("children", error=NoAuthError())
    assert isinstance(several.error, NoAuthError)
    script.answer("children", [names["/c"]])
    assert sorted(answer_deletes(script)) == sorted(nodes_of(names))
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})


# Not to wait.


def test_try__free(script: Script) -> None:
    """A try looks at every queue before it creates anything."""
    several = contend(script, wait=False)
    assert script.asked == ["children"] * 3
    script.answer("children", [])
    script.answer("children", error=NoNodeError())
    script.answer("children", ["readme"])
    list_all(script, create(script))
    assert several.state is State.HELD


@pytest.mark.parametrize("full", [0, 1, 2])
def test_try__busy(script: Script, full: int, notified: list[None]) -> None:
    """A try that meets one full queue creates nothing, and can name the holder there."""
    several = contend(script, wait=False, notified=notified)
    for number in range(3):
        script.answer("children", [other(1)] if number == full else [])
    assert (several.is_taken, several.state, script.asked, script.listeners) == (True, State.GONE, [], {})
    assert notified
    several.refresh_holder()
    assert script.answer("children", [other(1)]) == PATHS[full]
    assert script.answer("get", (data(host="there"), stat(owner=OTHERS))) == f"{PATHS[full]}/{other(1)}"
    assert several.holder_reads == 1
    assert several.holder is not None
    assert several.holder.host == "there"


def test_try__overtaken(script: Script) -> None:
    """A try that is overtaken in one queue between list and creation takes all its nodes away again."""
    several = contend(script, wait=False)
    for _ in PATHS:
        script.answer("children", [])
    names = create(script)
    list_all(script, names, a=other(1))
    assert several.is_taken
    assert sorted(answer_deletes(script)) == sorted(nodes_of(names))
    assert (several.state, script.listeners) == (State.GONE, {})
    several.refresh_holder()
    assert script.answer("children", [other(1)]) == "/a"


def test_try__refused(script: Script) -> None:
    """A queue that cannot be read is an error, told once."""
    several = contend(script, wait=False)
    script.answer("children", [])
    script.answer("children", error=NoAuthError())
    script.answer("children", [other(1)])
    assert isinstance(several.error, NoAuthError)
    assert (several.is_taken, several.state, script.asked) == (False, State.GONE, [])


def test_try__connection_lost(script: Script) -> None:
    """The queues that were not seen when the connection broke are looked at on the next one."""
    several = contend(script, wait=False)
    script.answer("children", [])
    script.break_connection()
    script.reconnect()
    assert script.asked == ["children"] * 2
    for _ in PATHS[1:]:
        script.answer("children", [])
    list_all(script, create(script))
    assert several.state is State.HELD


# The answer to the creation is lost.


def lose_reply(script: Script) -> dict[str, str]:
    """Break the connection with the creation under way; return the names that the nodes have, if there are any."""
    stems = script.requests[0][1]
    script.break_connection()
    script.reconnect()
    assert script.asked == ["sync"]
    return {stem.rpartition("/")[0]: f"{stem.rpartition('/')[2]}0000000005" for stem in stems}


def answer_search(script: Script, names: dict[str, str], found: str) -> None:
    script.answer("sync")
    for path in PATHS:
        assert script.answer("children", [other(1), *([names[path]] if path[1:] in found else [])]) == path


def test_reply_lost__found(script: Script) -> None:
    """Nodes that are there, and of this session, are ours, with the transaction that their stat tells."""
    several = contend(script)
    names = lose_reply(script)
    answer_search(script, names, "abc")
    assert script.answer("get", (b"me", stat(4711))) in nodes_of(names)
    script.answer("confirm")
    assert script.asked == ["children"] * 3
    list_all(script, names)
    assert (several.state, several.token) == (State.HELD, 4711)
    assert several.node_paths == dict(zip(PATHS, nodes_of(names), strict=True))


def test_reply_lost__never_created(script: Script) -> None:
    """If no node is there, new ones are created, with another GUID."""
    several = contend(script)
    before = script.requests[0][1]
    answer_search(script, lose_reply(script), "")
    assert script.asked == ["create_all"] + ["children"] * 3
    assert not set(script.requests[0][1]) & set(before)
    list_all(script, create(script))
    assert several.state is State.HELD


def test_reply_lost__some_removed_and_cut_again(script: Script) -> None:
    """The rest is taken away even if the connection breaks before that is done: it would stand in our own way."""
    contend(script)
    names = lose_reply(script)
    answer_search(script, names, "a")
    assert script.asked == ["delete"]
    script.break_connection()
    script.reconnect()
    assert answer_deletes(script) == [f"/a/{names['/a']}"]
    assert script.asked == ["create_all", *["children"] * 3]


@pytest.mark.parametrize(
    ("value", "error"),
    [((b"me", stat(50, owner=SESSION - 1)), None), (None, NoNodeError())],
    ids=["of a session that is over", "gone while looking"],
)
def test_reply_lost__not_ours(script: Script, value: Any, error: Exception | None) -> None:
    """Nodes of a session that is over, and what vanishes while it is looked for, are deleted and never adopted."""
    several = contend(script)
    names = lose_reply(script)
    answer_search(script, names, "abc")
    script.answer("get", value, error)
    script.answer("confirm")
    assert answer_deletes(script) == nodes_of(names)
    list_all(script, create(script, sequence=6))
    assert several.state is State.HELD


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_reply_lost__search_refused(script: Script, refused: int, caplog: pytest.LogCaptureFixture) -> None:
    """If one queue cannot be read then, that is the outcome; what is found is taken away, and nothing created.

    A node may be left in that queue, where it keeps everybody out: that is logged, and it counts in the budget.
    """
    several = contend(script)
    names = lose_reply(script)
    script.answer("sync")
    for number, path in enumerate(PATHS):
        if number == refused:
            script.answer("children", error=NoAuthError())
        else:
            script.answer("children", [names[path]])
    expected = [node for number, node in enumerate(nodes_of(names)) if number != refused]
    assert answer_deletes(script) == expected
    assert isinstance(several.error, NoAuthError)
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})
    assert caplog.text.count("event=leave_refused") == 1
    assert script.used == len(PATHS)
    gone: list[None] = []
    several.when_deleted(lambda: gone.append(None))
    assert gone == []


def test_reply_lost__found_and_not_to_be_deleted(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    """What is left of a lost creation and cannot be taken away is logged, and counts in the budget."""
    several = contend(script)
    names = lose_reply(script)
    script.answer("sync")
    for path in PATHS:
        script.answer("children", [names[path]] if path == "/b" else [])
    script.answer("delete", error=NoAuthError())
    assert caplog.text.count("event=leave_refused") == 1
    list_all(script, create(script))
    assert (several.state, script.used) == (State.HELD, 1 + len(PATHS))


@pytest.mark.parametrize("how_far", [0, 1, 2, 3, 4])
def test_reply_lost__cut_while_looking(script: Script, how_far: int) -> None:
    """A search that breaks off goes on with what was not answered: no server that knows less takes the session."""
    several = contend(script)
    names = lose_reply(script)
    for _ in range(how_far):
        name, path, _ = script.requests[0]
        script.answer(name, [names[path]] if name == "children" else None)
    left = script.asked
    script.break_connection()
    script.reconnect()
    assert script.asked == left
    if left == ["sync"]:
        script.answer("sync")
    while script.asked[0] == "children":
        script.answer("children", [names[script.requests[0][1]]])
    script.answer("get", (b"me", stat(50)))
    script.answer("confirm")
    list_all(script, names)
    assert several.state is State.HELD


def test_reply_lost__session_ended(script: Script) -> None:
    """In a new session nothing has to be looked for: all is created anew."""
    several = contend(script)
    script.break_connection()
    script.end_session()
    script.reconnect()
    assert script.asked == ["create_all"] + ["children"] * 3
    list_all(script, create(script))
    assert several.state is State.HELD


def test_list__reply_lost(script: Script, notified: list[None]) -> None:
    """When only the lists were lost, the nodes are kept."""
    several = contend(script, notified=notified)
    names = create(script)
    script.answer("children", [names["/b"]])
    script.break_connection()
    script.reconnect()
    # The one that was seen to be first is watched.
    assert [(name, what) for name, what, _ in script.requests] == [
        ("children", "/a"),
        ("children", "/c"),
        ("get", f"/b/{names['/b']}"),
    ]
    for path in PATHS[1:]:
        script.answer("children", [names[path]])
    assert not notified
    script.answer("get", (b"me", stat(50)))
    assert notified
    assert several.state is State.HELD


# A place is lost.


def test_place_lost__seen_in_the_list(script: Script) -> None:
    """A node that is not in the list is a place lost."""
    several = contend(script)
    names = create(script)
    script.answer("children", [names["/b"]])
    script.answer("children", [other(1)])
    script.answer("children", [names["/c"]])
    answer_deletes(script)
    list_all(script, create(script, sequence=6))
    assert several.state is State.HELD


def test_place_lost__first_in_queue(script: Script) -> None:
    """A place at the head of a queue can be lost too, as long as another lock is waited for; that is no loss yet."""
    several = contend(script)
    names = create(script)
    for path in ("/b", "/a"):
        script.answer("children", [names[path]])
    # A heartbeat comes before all are listed.
    script.heartbeat()
    assert [what for name, what, _ in script.requests if name == "get"] == [f"/b/{names['/b']}", f"/a/{names['/a']}"]
    script.answer("children", [names["/c"], other(1)])
    script.answer_get(names["/a"], error=NoNodeError())
    assert (several.state, several.lost) == (State.JOINING, None)
    settle(script, names["/b"])
    answer_deletes(script)
    list_all(script, create(script, sequence=6))
    assert (several.state, several.lost) == (State.HELD, None)


@pytest.mark.parametrize("there", [True, False])
def test_place_lost__before_it_is_watched(script: Script, there: bool) -> None:
    """A contender that has got the last of the locks waits until the watches on its other nodes are set."""
    several = contend(script)
    names = create(script)
    list_all(script, names, a=other(1))
    script.answer_get(names["/a"], (data(), stat()))
    script.answer_get(other(1), (data(), stat(owner=OTHERS)))
    script.tell(f"/a/{other(1)}", deleted=True)
    script.answer_get(names["/b"], (data(), stat()))
    assert (several.state, script.asked) == (State.WAITING, ["get"])
    if there:
        script.answer_get(names["/c"], (data(), stat()))
        assert (several.state, script.asked) == (State.HELD, [])
    else:
        script.answer_get(names["/c"], error=NoNodeError())
        assert (several.state, several.lost) == (State.JOINING, None)


def test_place_lost__first_in_queue_and_unreadable(script: Script) -> None:
    """Whose node at the head of a queue cannot be watched leaves: it would not learn that the node is gone."""
    several = contend(script)
    names = create(script)
    list_all(script, names, a=other(1))
    script.answer_get(names["/b"], error=NoAuthError())
    assert (several.state, type(several.error)) == (State.LEAVING, NoAuthError)


def test_place_lost__first_in_queue_and_away(script: Script) -> None:
    """One that gets the last lock after a reconnect waits until the watches on its other nodes are set again."""
    several, names = wait_in(script, "a")
    script.break_connection()
    script.restoring = True
    script.reconnect()
    script.tell(f"/a/{other(1)}", deleted=True)
    script.answer("children", list(names.values()))
    assert (several.state, script.asked) == (State.WAITING, [])
    script.restored()
    assert several.state is State.HELD


def test_place__kept_over_a_suspension(script: Script) -> None:
    """A place at the head of a queue is no hold: where suspension is loss, it is kept all the same."""
    several, names = wait_in(script, "a")
    script.break_connection()
    for listener in list(script.listeners):
        listener.lose("the connection was suspended")
    assert (several.state, several.lost) == (State.WAITING, None)
    script.reconnect()
    script.tell(f"/a/{other(1)}", deleted=True)
    assert (several.state, several.token) == (State.HELD, 50)
    script.heartbeat()
    script.tell(f"/b/{names['/b']}", deleted=False)
    script.answer("get", (b'{"v":1,"revoke":"maintenance"}', stat(50)))
    assert (several.lost, several.revoked) == (None, "maintenance")


# The session ends.


def test_session_ended__waiting(script: Script) -> None:
    """A contender that waits queues up anew in the next session."""
    several, names = wait_in(script, "a")
    script.break_connection()
    script.end_session()
    assert several.state is State.JOINING
    assert list(script.listeners) == [several]
    script.reconnect()
    assert script.asked == ["create_all"] + ["children"] * 3
    list_all(script, create(script, token=60, sequence=6))
    assert (several.state, several.token, several.lost) == (State.HELD, 60, None)
    assert not set(several.node_paths.values()) & set(nodes_of(names))


@pytest.mark.shows("faults#it-loses-all-its-locks-at-once-and-no-thread-can-be-started")
def test_session_ended__holding_many() -> None:
    """The work for the loss of each of many keys does not grow with their number, though every change is looked at."""

    def steps(keys: int) -> int:
        script, count = Script(), 0
        session: Any = script
        places = [LockPath(f"/{number}", b"") for number in range(keys)]

        def look() -> None:
            assert several.revoked is None

        several = Contender(session, places, EXCLUSIVE, data=b"me", wait=True, notify=look)
        several.join()
        names = [f"{stem.rpartition('/')[2]}{5:010d}" for stem in script.requests[0][1]]
        script.answer("create_all", (names, 50))
        for name in names:
            script.answer("children", [name])
        assert several.state is State.HELD

        def seen(frame: FrameType, event: str, _argument: object) -> Any:
            # A loop over all members need not call anything.
            nonlocal count
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            count += event == "opcode"
            return seen

        before = sys.gettrace()
        sys.settrace(seen)
        try:
            script.end_session("expired")
        finally:
            sys.settrace(before)
        assert several.lost == "expired"
        return count

    assert steps(240) < 6 * steps(60)


def test_session_ended__leaving(script: Script) -> None:
    """With the session all nodes are gone."""
    several, _ = hold(script)
    several.leave()
    script.end_session()
    assert (several.state, script.listeners) == (State.GONE, {})


@pytest.mark.parametrize("holding", [False, True])
def test_unavailable(script: Script, holding: bool) -> None:
    """A waiter gives up when ZooKeeper is away for too long, and its nodes go after the reconnect; a holder stays."""
    several, names = hold(script) if holding else wait_in(script, "a")
    script.break_connection()
    for listener in list(script.listeners):
        listener.unavailable("away")
    assert isinstance(several.error, SessionUnavailable) is not holding
    assert several.state is (State.HELD if holding else State.LEAVING)
    script.reconnect()
    if holding:
        assert script.asked == ["get"] * 3
    else:
        assert sorted(answer_deletes(script)) == sorted(nodes_of(names))
        assert (several.state, script.listeners) == (State.GONE, {})


@pytest.mark.parametrize("is_answered", [True, False])
def test_unavailable__after_the_session(script: Script, is_answered: bool) -> None:
    """A waiter without a deadline gives up also if its session has ended, unless it was never answered."""
    several = contend(script)
    several.wants_holder = False
    if is_answered:
        names = create(script)
        list_all(script, names, a=other(1))
        assert (several.state, several.holder_reads) == (State.WAITING, 0)
    script.break_connection()
    script.end_session()
    assert (several.state, several.answered) == (State.JOINING, is_answered)
    several.unavailable("away")
    assert isinstance(several.error, SessionUnavailable) is is_answered


# Holding.


def test_node_deleted__holding(script: Script, notified: list[None]) -> None:
    """If one node is removed all is lost, since the others alone are not what was asked for; they stay till the end."""
    several, names = hold(script, notified)
    notified.clear()
    script.heartbeat()
    assert [what for _, what, _ in script.requests] == nodes_of(names)
    script.answer("get", (b"me", stat(50)))
    script.answer("get", error=NoNodeError())
    script.answer("get", (b"me", stat(50)))
    # Lost at once, and told when it is known why.
    assert (several.state, several.lost, several.loss_reason_pending) == (State.HELD, "its node was deleted", True)
    assert [what for _, what, _ in script.requests] == ["/a"]
    removal = Removal(node=names["/a"], why="broken by ada")
    script.answer("get", (LockNodeData(removal=removal).encode(), stat(50)))
    assert (several.state, several.loss_reason_pending) == (State.HELD, False)
    assert several.lost == "its node was deleted: broken by ada"
    assert notified
    assert script.asked == []
    several.leave()
    assert answer_deletes(script) == [f"/b/{names['/b']}", f"/c/{names['/c']}"]
    assert (several.state, script.listeners) == (State.GONE, {})


def test_node_deleted__and_let_go(script: Script) -> None:
    """A contender that lets go before it is known why one node was removed is told of the loss all the same."""
    several, names = hold(script)
    script.heartbeat()
    script.answer("get", error=NoNodeError())
    script.answer("get", (b"me", stat(50)))
    script.answer("get", (b"me", stat(50)))
    several.leave()
    script.answer("get", (LockNodeData().encode(), stat(50)))
    assert answer_deletes(script) == nodes_of(names)[1:]
    assert (several.state, several.lost, several.loss_reason_pending) == (State.GONE, "its node was deleted", False)


# Getting out.


def test_leave__creation_refused(script: Script) -> None:
    """If there is nothing to delete, that is all."""
    several = contend(script)
    several.leave()
    script.answer("create_all", error=NoNodeError())
    for _ in PATHS:
        script.answer("children", error=NoNodeError())
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})


def test_leave__before_the_lists(script: Script) -> None:
    """A contender that leaves with the nodes just created is not granted by the lists that come after."""
    several = contend(script)
    names = create(script)
    several.leave()
    list_all(script, names)
    assert answer_deletes(script) == nodes_of(names)
    assert (several.state, script.listeners) == (State.GONE, {})


def test_leave__looking(script: Script) -> None:
    """A try that is given up while it looks creates nothing."""
    several = contend(script, wait=False)
    several.leave()
    for _ in PATHS:
        script.answer("children", [])
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})


def test_leave__waiting(script: Script) -> None:
    """A contender that gives up waiting takes its watches off, and leaves every queue."""
    several, names = wait_in(script, "a", "b")
    several.leave()
    assert set(script.watches) == set(nodes_of(names))
    assert answer_deletes(script) == nodes_of(names)
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})


def test_leave__holding(script: Script, notified: list[None]) -> None:
    """All nodes are deleted, in the order of the queues; it is over when the last is confirmed."""
    several, names = hold(script, notified)
    gone: list[None] = []
    several.when_deleted(lambda: gone.append(None))
    several.leave()
    several.leave()
    assert [what for _, what, _ in script.requests] == nodes_of(names)
    script.answer("delete")
    script.answer("delete", error=NoNodeError())
    assert (several.state, gone) == (State.LEAVING, [])
    notified.clear()
    script.answer("delete")
    assert (several.state, gone, script.listeners) == (State.GONE, [None], {})
    assert notified
    several.when_deleted(lambda: gone.append(None))
    assert len(gone) == 2


def test_leave__while_away(script: Script) -> None:
    """A release without a connection is done after the reconnect, each delete until it is confirmed."""
    several, names = hold(script)
    script.break_connection()
    several.leave()
    assert script.asked == []
    script.reconnect()
    assert script.answer("delete") == nodes_of(names)[0]
    script.break_connection()
    script.reconnect()
    assert answer_deletes(script) == nodes_of(names)[1:]
    assert (several.state, script.asked, script.listeners) == (State.GONE, [], {})
