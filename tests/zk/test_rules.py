"""Who stands in whose way, and what a waiter watches: every rule, without a server.

Lines are written as texts: a letter for each node, first come first. X exclusive, W write, R read, L lease; the node
in question stands behind them all.
"""

from __future__ import annotations

import itertools

import pytest

from django_zklock.zk.nodes import Kind, Node
from django_zklock.zk.order import Order
from django_zklock.zk.rules import EXCLUSIVE, FREE, READ, WRITE, Outlook, Rule, rule, semaphore
from tests.zk.script import other

KINDS = {"X": Kind.EXCLUSIVE, "W": Kind.WRITE, "R": Kind.READ, "L": Kind.LEASE}


def line_of(letters: str) -> list[Node]:
    return [Node(other(place, KINDS[letter]), KINDS[letter], "", place) for place, letter in enumerate(letters)]


def outlook(of: Rule, before: str, behind: str = "") -> Outlook:
    """Give the outlook of a node behind ``before`` and in front of ``behind``."""
    own = next(letter for letter, kind in KINDS.items() if kind is of.kind)
    line = line_of(before + own + behind)
    return of.outlook(line[len(before)].name, Order(line))


def places(nodes: tuple[Node, ...]) -> list[int]:
    return [node.sequence for node in nodes]


# Alone, and at the head of the line.


@pytest.mark.parametrize("of", [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2)])
@pytest.mark.parametrize("behind", ["", "X", "WRL"])
def test_outlook__first(of: Rule, behind: str) -> None:
    """Who is first holds, whoever stands behind."""
    assert outlook(of, "", behind) is FREE


@pytest.mark.parametrize("of", [EXCLUSIVE, WRITE, READ, semaphore(1)])
def test_outlook__not_there(of: Rule) -> None:
    """A node that is not in the line has no outlook."""
    with pytest.raises(LookupError):
        of.outlook("gone", Order(line_of("XWRL")))


# Which nodes are in the way.


@pytest.mark.parametrize(
    ("of", "before", "blockers"),
    [
        (EXCLUSIVE, "XWRL", [0, 1, 2, 3]),
        (WRITE, "XWRL", [0, 1, 2, 3]),
        (READ, "RR", []),
        (READ, "RWR", [1]),
        (READ, "XRLRW", [0, 2, 4]),
        (semaphore(1), "L", [0]),
        (semaphore(2), "L", []),
        (semaphore(2), "LL", [0, 1]),
        (semaphore(3), "LLXL", [2]),
        (semaphore(3), "LRLW", [1, 3]),
        (semaphore(1), "LRLW", [1, 3]),
    ],
)
def test_outlook__blockers(of: Rule, before: str, blockers: list[int]) -> None:
    """Exclusive holds and writers keep everybody out, readers and leases each other, leases each other by number."""
    seen = outlook(of, before)
    first = other(blockers[0], KINDS[before[blockers[0]]]) if blockers else ""
    assert (seen.blockers, seen.first) == (len(blockers), first)
    if blockers:
        # Those that count are watched, or will be; see below for which.
        assert {*places(seen.watched), *places(seen.then)} <= set(blockers)


def test_kinds__conflict_both_ways() -> None:
    """Of two nodes the later one waits, or neither does, whichever of them came first."""
    for one, two in itertools.permutations([EXCLUSIVE, WRITE, READ, semaphore(1)], 2):
        assert (two.kind in one.conflicts) == (one.kind in two.conflicts)


# Which of them are watched.


@pytest.mark.parametrize(
    ("of", "before", "watched", "armed"),
    [
        # The next in line watches the one that holds; who comes behind that, the one before the last.
        (EXCLUSIVE, "X", [0], True),
        (EXCLUSIVE, "XX", [0], False),
        (EXCLUSIVE, "XXX", [1], False),
        (EXCLUSIVE, "W", [0], True),
        (WRITE, "WX", [0], False),
        # Readers at the head hold together, and all of them have to go.
        (WRITE, "R", [0], True),
        (WRITE, "RRR", [0, 1, 2], True),
        (EXCLUSIVE, "RR", [0, 1], True),
        (WRITE, "WRR", [0], False),
        (WRITE, "RRW", [1], False),
        (WRITE, "RWRR", [1], False),
        (WRITE, "RWWR", [2], False),
        # So do leases.
        (EXCLUSIVE, "LL", [0, 1], True),
        (READ, "LL", [0, 1], True),
        (WRITE, "XLL", [0], False),
        # Readers and leases do not hold together.
        (EXCLUSIVE, "RL", [0], False),
        (EXCLUSIVE, "LLRR", [1], False),
        # What is in nobody's way is not watched.
        (READ, "RW", [1], True),
        (READ, "WRR", [0], True),
        (READ, "RWRW", [1], False),
        (READ, "WRL", [0], False),
        (semaphore(2), "X", [0], True),
        (semaphore(2), "XL", [0], True),
        (semaphore(2), "RRL", [0, 1], True),
        (semaphore(2), "LR", [1], True),
        (semaphore(2), "XLX", [0], False),
    ],
)
def test_outlook__watched(of: Rule, before: str, watched: list[int], armed: bool) -> None:
    """The last in the way is watched, with those that hold together with it, if nobody else is left before them.

    Otherwise the one before them is, so that there is time to get ready.
    """
    seen = outlook(of, before)
    assert (places(seen.watched), seen.armed) == (watched, armed)
    assert not seen.children
    assert not seen.relayed


@pytest.mark.parametrize("before", ["XLL", "LXL", "RLL", "LLX"])
def test_outlook__full_as_well(before: str) -> None:
    """A semaphore that is full behind what is in the way has to be looked at again when that is gone."""
    seen = outlook(semaphore(2), before)
    assert places(seen.watched) == [before.index("X" if "X" in before else "R")]
    assert not seen.armed
    assert not seen.children


def test_outlook__armed_means_free() -> None:
    """Who is armed holds when all that it watches is gone, and not before; who is not armed does not hold then.

    Shown for every line of up to four nodes.
    """
    rules = [EXCLUSIVE, WRITE, READ, semaphore(1), semaphore(2), semaphore(3)]
    for of, size in itertools.product(rules, range(5)):
        for letters in map("".join, itertools.product(KINDS, repeat=size)):
            seen = outlook(of, letters)
            before = line_of(letters)
            gone: list[Node] = []
            for node in seen.watched:
                assert of.is_full(Order([each for each in before if each not in gone])), letters
                gone.append(node)
            left_over = of.is_full(Order([each for each in before if each not in gone]))
            if seen.armed:
                assert seen.watched, letters
                assert not left_over, letters
            elif seen is not FREE and not seen.children:
                assert seen.watched, letters
                assert left_over, letters


# Semaphores.


@pytest.mark.parametrize(
    ("limit", "before", "children", "watched"),
    [(1, "L", True, []), (2, "LL", True, []), (1, "LL", False, [1]), (2, "LLL", False, [2]), (2, "LLLLL", False, [4])],
)
def test_outlook__leases(limit: int, before: str, children: bool, watched: list[int]) -> None:
    """The first that a semaphore has no room for watches the line, every other one the lease right before it."""
    seen = outlook(semaphore(limit), before)
    assert (seen.children, places(seen.watched)) == (children, watched)
    assert seen.relayed is not children
    assert not seen.armed


@pytest.mark.parametrize(
    ("ours", "theirs", "leases", "in_time"),
    [
        # As many as ours, and not in yet: it comes in before we could, and says so.
        (2, 2, 3, True),
        (2, 2, 9, True),
        # More than ours, and not in yet.
        (2, 3, 4, True),
        # More than ours, and in already: it has nothing more to say.
        (2, 3, 3, False),
        (2, 9, 5, False),
        # Fewer than ours: we may be let in first.
        (3, 2, 4, False),
        # Not known.
        (2, None, 3, False),
    ],
)
def test_hears_in_time(ours: int, theirs: int | None, leases: int, in_time: bool) -> None:
    """The lease before ours tells in time if it is still to come in, and does so no later than we."""
    assert semaphore(ours).hears_in_time(leases, theirs) is in_time


# Holding.


@pytest.mark.parametrize(
    ("letters", "holding"),
    [
        ("XXW", [0]),
        ("WRR", [0]),
        ("RRWR", [0, 1]),
        ("LLLX", [0, 1]),
        ("RLR", [0]),
        ("LRL", [0]),
        ("LLRL", [0, 1]),
    ],
)
def test_holds(letters: str, holding: list[int]) -> None:
    """Those hold whom nobody before them keeps out, with a semaphore of two."""
    rules = {Kind.EXCLUSIVE: EXCLUSIVE, Kind.WRITE: WRITE, Kind.READ: READ, Kind.LEASE: semaphore(2)}
    line = line_of(letters)
    held = [node.sequence for node in line if rules[node.kind].holds(node.name, Order(line))]
    assert held == holding


@pytest.mark.parametrize(
    ("of", "letters", "full"),
    [
        (EXCLUSIVE, "", False),
        (EXCLUSIVE, "R", True),
        (WRITE, "L", True),
        (READ, "RRR", False),
        (READ, "RL", True),
        (READ, "RW", True),
        (semaphore(2), "L", False),
        (semaphore(2), "LL", True),
        (semaphore(2), "R", True),
    ],
)
def test_is_full(of: Rule, letters: str, full: bool) -> None:
    """Whether a newcomer would have to wait, by the same rule."""
    assert of.is_full(Order(line_of(letters))) is full


@pytest.mark.parametrize(
    ("of", "covered"),
    [
        (EXCLUSIVE, {Kind.EXCLUSIVE, Kind.WRITE, Kind.READ, Kind.LEASE}),
        (WRITE, {Kind.EXCLUSIVE, Kind.WRITE, Kind.READ, Kind.LEASE}),
        (READ, {Kind.READ}),
        (semaphore(2), {Kind.LEASE}),
    ],
)
def test_covers(of: Rule, covered: set[Kind]) -> None:
    """Who keeps everybody out may do within it what any other kind allows; who shares, only the same again."""
    assert {kind for kind in Kind if of.covers(kind)} == covered


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
