"""Which nodes are in the way of which, and what a waiter watches: every rule, without a server.

Queues are written as texts: a letter for each node, first come first. X exclusive, W write, J write of Java, R read,
L lease, a digit for a lease of that limit; the node in question stands behind them all. The limit of an L is 9.
"""

from __future__ import annotations

import itertools
import re

import pytest

from django_zklock.zk.queue import (
    EXCLUSIVE,
    GRANTED,
    READ,
    RULES,
    WRITE,
    Kind,
    Mark,
    Node,
    Queue,
    Rule,
    WatchPlan,
    name_prefix,
    new_guid,
    parse_name,
    rule,
    semaphore,
)
from tests.unit.zk.scripted_session import curators, other

KINDS = {"X": Kind.EXCLUSIVE, "W": Kind.WRITE, "R": Kind.READ, "L": Kind.PERMIT, "J": Kind.WRITE}


def nodes_of(letters: str) -> list[Node]:
    return list(itertools.starmap(node_of, enumerate(letters)))


def node_of(place: int, letter: str) -> Node:
    if letter == "J":
        name = curators(place, Kind.WRITE)
    elif letter.isdigit() or letter == "L":
        name = other(place, Kind.PERMIT, int(letter) if letter.isdigit() else 9)
    else:
        name = other(place, KINDS[letter])
    node = parse_name(name)
    assert node is not None
    return node


def plan_of(of: Rule, before: str, behind: str = "") -> WatchPlan:
    """Return the plan of a node behind ``before`` and in front of ``behind``."""
    own = str(of.limit) if of.limit else next(letter for letter, kind in KINDS.items() if kind is of.kind)
    nodes = nodes_of(before + own + behind)
    return of.evaluate(nodes[len(before)].name, Queue(nodes))


def places(nodes: tuple[Node, ...]) -> list[int]:
    return [node.sequence for node in nodes]


# Alone, and at the head of the queue.


@pytest.mark.parametrize("of", [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2)])
@pytest.mark.parametrize("behind", ["", "X", "WRL"])
def test_plan__first(of: Rule, behind: str) -> None:
    """The first node holds, whatever stands behind it."""
    assert plan_of(of, "", behind) is GRANTED


@pytest.mark.parametrize("of", [EXCLUSIVE, WRITE, READ, semaphore(1)])
def test_plan__not_there(of: Rule) -> None:
    """A node that is not in the queue has no plan."""
    with pytest.raises(LookupError):
        of.evaluate("gone", Queue(nodes_of("XWRL")))


# Which nodes are in the way.


@pytest.mark.parametrize(
    ("of", "before", "blockers"),
    [
        (EXCLUSIVE, "XWRL", [0, 1, 2, 3]),
        (READ, "XRLRW", [0, 2, 4]),
        (READ, "RL", [1]),
        (semaphore(2), "L", []),
        (semaphore(2), "LL", [0, 1]),
        (semaphore(3), "LRLW", [1, 3]),
        # A holder keeps its limit too, and so does a waiter.
        (semaphore(9), "1", [0]),
        (semaphore(9), "3L", []),
        (semaphore(9), "3LL", [0, 1, 2]),
        (semaphore(9), "LL2", [0, 1, 2]),
        (semaphore(9), "L3L", [0, 1, 2]),
        (READ, "J", [0]),
    ],
)
def test_plan__blockers(of: Rule, before: str, blockers: list[int]) -> None:
    """Exclusive holds and writers keep everybody out, readers and leases each other, leases each other by number."""
    seen = plan_of(of, before)
    # The node at the head holds. The first that is in the way may wait for it.
    first = nodes_of(before)[0].name if blockers else ""
    assert (seen is GRANTED, seen.first) == (not blockers, first)
    # A newcomer would have to wait by the same rule.
    assert of.must_wait(Queue(nodes_of(before))) is bool(blockers)
    if blockers:
        # Those that count are watched, or will be; see below for which.
        assert {*places(seen.watch), *places(seen.watch_next)} <= set(blockers)


def test_kinds__conflict_both_ways() -> None:
    """Of two nodes the later one waits, or neither does, whichever of them came first."""
    for one, two in itertools.permutations([EXCLUSIVE, WRITE, READ, semaphore(1)], 2):
        assert (two.kind in one.conflicts) == (one.kind in two.conflicts)


# Which of them are watched.


@pytest.mark.parametrize(
    ("of", "before", "watched", "armed"),
    [
        # The next in the queue watches the one that holds; one behind that, the one before the last.
        (EXCLUSIVE, "X", [0], True),
        (EXCLUSIVE, "XX", [0], False),
        (EXCLUSIVE, "XXX", [1], False),
        # Readers at the head hold together, and all of them have to go.
        (WRITE, "RRR", [0, 1, 2], True),
        (WRITE, "WRR", [0], False),
        (WRITE, "RWRR", [1], False),
        (WRITE, "RWWR", [2], False),
        # So do leases.
        (EXCLUSIVE, "LL", [0, 1], True),
        # Readers and leases do not hold together.
        (EXCLUSIVE, "RL", [0], False),
        # What is not in the way is not watched.
        (READ, "RW", [1], True),
        (READ, "WRR", [0], True),
        (READ, "RWRW", [1], False),
        (semaphore(2), "X", [0], True),
        (semaphore(2), "RRL", [0, 1], True),
        # Behind a writer of Java its end proves nothing, for it may go on as a reader.
        (EXCLUSIVE, "J", [0], False),
        (READ, "J", [0], True),
    ],
)
def test_plan__watched(of: Rule, before: str, watched: list[int], armed: bool) -> None:
    """The last in the way is watched, with those that hold together with it, if no other is left before them.

    Otherwise the one before them is, so that there is time to get ready.
    """
    seen = plan_of(of, before)
    assert (places(seen.watch), seen.grants_on_delete) == (watched, armed)
    assert not seen.watch_children
    assert not seen.woken_by_predecessor


@pytest.mark.parametrize("before", ["XLL", "LXL", "RLL", "LLX"])
def test_plan__full_as_well(before: str) -> None:
    """A semaphore that is full behind what is in the way has to be looked at again when that is gone."""
    seen = plan_of(semaphore(2), before)
    assert places(seen.watch) == [before.index("X" if "X" in before else "R")]
    assert not seen.grants_on_delete
    assert not seen.watch_children


def test_plan__armed_means_free() -> None:
    """A waiter that is armed holds when all that it watches is gone, not before; one that is not does not hold then.

    But one that could be armed behind a writer of Java looks once more. Shown for every queue of up to four nodes.
    """
    rules = [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2), semaphore(3)]
    for of, size in itertools.product(rules, range(5)):
        for letters in map("".join, itertools.product("XWRL2J", repeat=size)):
            seen = plan_of(of, letters)
            before = nodes_of(letters)
            gone: list[Node] = []
            for node in seen.watch:
                assert of.must_wait(Queue([each for each in before if each not in gone])), letters
                gone.append(node)
            left_over = of.must_wait(Queue([each for each in before if each not in gone]))
            if seen.grants_on_delete:
                assert seen.watch, letters
                assert not left_over, letters
            elif seen is not GRANTED and not seen.watch_children and not seen.woken_by_predecessor:
                assert seen.watch, letters
                assert left_over or (of is not READ and letters[seen.watch[-1].sequence] == "J"), letters


# Semaphores.


@pytest.mark.parametrize(
    ("limit", "before", "children", "watched"),
    [
        (2, "22", True, []),
        (1, "11", False, [1]),
        (2, "22222", False, [4]),
        # The one before holds, by its limit and by all others.
        (9, "33LL", False, [3]),
        (9, "333", True, []),
        (9, "LL2", False, [2]),
        (9, "LL2L", False, [3]),
    ],
)
def test_plan__leases(limit: int, before: str, children: bool, watched: list[int]) -> None:
    """The first that a semaphore has no room for watches the queue, every other one the lease right before it."""
    seen = plan_of(semaphore(limit), before)
    assert (seen.watch_children, places(seen.watch)) == (children, watched)
    assert seen.woken_by_predecessor is not children
    assert not seen.grants_on_delete


@pytest.mark.shows("faults#callers-name-different-limits")
def test_limits__are_kept() -> None:
    """A holder is never one of more than its limit, no contender overtakes, and no place is left free without need.

    Shown for all limits of up to six leases.
    """
    for size in range(7):
        for letters in map("".join, itertools.product("1234", repeat=size)):
            limits = list(map(int, letters))
            nodes = nodes_of(letters)
            order = Queue(nodes)
            holding = [semaphore(limit).holds(node.name, order) for limit, node in zip(limits, nodes, strict=True)]
            count = sum(holding)
            assert holding == [True] * count + [False] * (size - count), letters
            assert all(count <= limit for limit in limits[:count]), letters
            assert count == size or count + 1 > min(limits[: count + 1]), letters
            # A release wakes one waiter, which wakes the next one if that may hold too.
            seen = [semaphore(limit).evaluate(node.name, order) for limit, node in zip(limits, nodes, strict=True)]
            assert [plan.watch_children for plan in seen[count:]] == [True, *[False] * (size - count)][: size - count]


# Holding.


@pytest.mark.parametrize(
    ("letters", "holding"),
    [
        ("XXW", [0]),
        ("RRWR", [0, 1]),
        ("LLLX", [0, 1]),
        ("LLRL", [0, 1]),
    ],
)
def test_holds(letters: str, holding: list[int]) -> None:
    """A node holds if none before it keeps it out, with a semaphore of two."""
    nodes = nodes_of(letters.replace("L", "2"))
    held = [node.sequence for node in nodes if RULES[node.kind].holds(node.name, Queue(nodes))]
    assert held == holding


@pytest.mark.parametrize(
    ("of", "covered"),
    [
        (EXCLUSIVE, [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2), semaphore(3)]),
        (WRITE, [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2), semaphore(3)]),
        (READ, [READ]),
        (semaphore(2), [semaphore(2), semaphore(3)]),
    ],
)
def test_covers(of: Rule, covered: list[Rule]) -> None:
    """A hold that keeps all others out covers what any other kind allows; a shared one, only what allows as many."""
    rules = [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2), semaphore(3)]
    assert [rule for rule in rules if of.covers(rule)] == covered


# Making rules.


def test_rule() -> None:
    """Each mode has its rule, and a limit makes a semaphore."""
    assert rule() is EXCLUSIVE
    assert (rule("exclusive"), rule("read"), rule("write")) == (EXCLUSIVE, READ, WRITE)
    assert rule(limit=3) == semaphore(3)
    assert rule("exclusive", 1) == semaphore(1)


@pytest.mark.parametrize("mode", ["shared", "", "READ", None, 1])
def test_rule__unknown_mode(mode: str) -> None:
    """A mode that there is not is refused, with those that there are."""
    with pytest.raises(ValueError, match=f"mode must be one of 'exclusive', 'read', 'write', got {mode!r}"):
        rule(mode)


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "2"])
def test_rule__bad_limit(limit: int) -> None:
    """A limit is a whole number above 0, and nothing that only counts as one."""
    with pytest.raises(TypeError, match=f"a positive whole number as in limit=4, got {limit!r}"):
        rule(limit=limit)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_rule__limit_and_mode(mode: str) -> None:
    """A semaphore has no mode."""
    with pytest.raises(TypeError, match=f"limit=2 makes a semaphore.* leave out mode='{mode}' or the limit"):
        rule(mode, 2)


# The waiter for which a call may be skipped.


def proof_in(of: Rule, letters: str) -> list[int]:
    """Return the places of the nodes that prove that another call waits which runs the same as ours, the last one.

    A letter in round brackets is a node of a call that runs the same; in square brackets, of a delivery of our own
    call.
    """
    mark = Mark.of("work", "ours")
    marks = {"(": Mark.of("work", "another"), "[": mark, "": None}
    nodes = []
    for place, (bracket, letter) in enumerate(re.findall(r"([(\[]?)(\w)[)\]]?", letters)):
        kind, limit = (Kind.PERMIT, int(letter)) if letter.isdigit() else (KINDS[letter], None)
        nodes.append(parse_name(name_prefix(new_guid(marks[bracket]), kind, limit) + f"{place:010d}"))
    queue = Queue([node for node in nodes if node is not None])
    proof = of.proof_of_waiter(list(queue)[-1].name, queue, mark)
    return [place for place, node in enumerate(queue) if node.name in proof]


@pytest.mark.parametrize(
    ("of", "letters", "proof"),
    [
        # The one that waits, and a node for which it waits.
        (EXCLUSIVE, "X(X)[X]", [0, 1]),
        (EXCLUSIVE, "(X)(X)[X]", [0, 1]),
        (EXCLUSIVE, "R(X)[X]", [0, 1]),
        # Wherever it is; the first one, as those behind it may leave for it.
        (EXCLUSIVE, "XX(X)XR[X]", [1, 2]),
        (EXCLUSIVE, "XX(X)(X)[X]", [1, 2]),
        # One that holds began too early; one without the mark, or of another kind, does something else.
        (EXCLUSIVE, "(X)[X]", []),
        (EXCLUSIVE, "(X)X[X]", []),
        (EXCLUSIVE, "XX[X]", []),
        (EXCLUSIVE, "X(W)[X]", []),
        # Behind an earlier delivery of its own call it stays, but not if that one holds.
        (EXCLUSIVE, "X[X][X]", []),
        (EXCLUSIVE, "X(X)[X][X]", []),
        (EXCLUSIVE, "X[X](X)[X]", []),
        (EXCLUSIVE, "[X](X)[X]", [0, 1]),
        (READ, "R(R)W[R]", []),
        (READ, "RW(R)W[R]", [1, 2]),
        (semaphore(2), "2(2)[2]", []),
        (semaphore(2), "22(2)[2]", [0, 1, 2]),
        (semaphore(2), "2(2)(2)[2]", [0, 1, 2]),
        (semaphore(2), "2X(2)[2]", [1, 2]),
        # The low limit keeps out those behind it too.
        (semaphore(9), "991(9)[9]", [0, 1, 2, 3]),
    ],
)
def test_proof_of_waiter(of: Rule, letters: str, proof: list[int]) -> None:
    """A call is skipped for the first one that waits and runs the same, while these nodes exist."""
    assert proof_in(of, letters) == proof
