"""The queue of a lock: the names of its nodes, their order, and which of them block which contender. No I/O here.

The names are Apache Curator's (``InterProcessMutex``, ``InterProcessReadWriteLock``, protection prefix
``_c_<guid>-``); those of kazoo (``<uuid>__lock__``, ``<uuid>__rlock__``) count as contenders too.

A name tells more than the kind. Curator's GUIDs are UUIDs of version 4 and ours of version 8 (RFC 9562: for custom
use), so a node of ours is recognized without a read. A permit of ours has the limit of its caller in its name,
``_c_<guid>-4-lease-``, so that every contender can keep the limits of all holders. The GUID of a call for which others
may be skipped contains a :class:`Mark`.

A waiter watches few nodes, so that a release wakes few waiters (ZooKeeper Recipes, "Locks"). It watches those whose
deletion also proves that no blocker is left, so that it is granted the lock without another request.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

SEQUENCE_END = 2**31 - 1
# Sequence numbers are trusted as far as this from the end of the 32-bit counter. Beyond the end, ZooKeeper 3.6 and
# newer assign the same number repeatedly (ZOOKEEPER-2719; Programmer's Guide, "Sequence Nodes").
SEQUENCE_MARGIN = 2**20
# Of more nodes than these that block together it is not asked whether they really exist.
MAX_BLOCKERS = 128
# A larger limit is no limit in practice, and would make the name longer.
MAX_LIMIT = 10**9 - 1


class Kind(enum.Enum):
    """What a contender asks for."""

    # Enum's own is a Python function.
    __hash__ = object.__hash__

    EXCLUSIVE = "exclusive"
    WRITE = "write"
    READ = "read"
    # Curator's and our users' word is lease; the lease of a session is another thing.
    PERMIT = "lease"


_INFIXES = {Kind.EXCLUSIVE: "lock-", Kind.WRITE: "__WRIT__", Kind.READ: "__READ__", Kind.PERMIT: "lease-"}
_KINDS = {infix: kind for kind, infix in _INFIXES.items()} | {
    "__lock__": Kind.EXCLUSIVE,
    "__rlock__": Kind.READ,
}
# Java's "%010d" counts the minus sign of a sequence number that has wrapped around.
_NAME = re.compile(
    r"(?:_c_(?P<guid>[0-9a-f-]{36})-(?:(?P<limit>[1-9][0-9]{0,8})-(?=lease-))?)?"
    r"(?P<infix>lock-|lease-|__WRIT__|__READ__)(?P<sequence>[0-9]{10}|-[0-9]{9,10})"
    r"|(?P<uuid>[0-9a-f]{32})(?P<kazoo>__lock__|__rlock__)(?P<number>[0-9]{10}|-[0-9]{9,10})",
)


class Mark(NamedTuple):
    """What the GUID of a waiter says, so that a call of the same function may be skipped for it (``"coalesce"``).

    ``run`` is a hash of what will run, in the last 12 digits of the GUID. ``call`` is one of the call, in the first 8;
    the deliveries of one task have the same.
    """

    run: str
    call: str

    @classmethod
    def of(cls, run: str, call: str) -> Mark:
        """Return the mark of a call that runs what ``run`` names; ``call`` names the call."""
        # A producer of tasks may choose an id that is no valid Unicode.
        of_run, of_call = (hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest() for text in (run, call))
        return cls(of_run[:12], of_call[:8])


class Node(NamedTuple):
    """One node of a queue, as far as its name tells. ``limit`` is the limit of a permit of ours."""

    name: str
    kind: Kind
    guid: str
    sequence: int
    limit: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this package has created it."""
        return self.guid[13:15] == "-8"

    @property
    def mark(self) -> Mark:
        """Its mark; if it has none, one that equals no other, as its digits are random."""
        return Mark(self.guid[24:], self.guid[:8])

    @property
    def may_downgrade(self) -> bool:
        """Whether its client may become a reader, by a read node of the same sequence (Curator 5.5, CURATOR-621).

        The read node is then a predecessor of every node behind this one, although it is created later than they are.
        """
        return self.kind is Kind.WRITE and not self.is_ours

    @property
    def may_be_downgraded(self) -> bool:
        """Whether it may be the read node of a writer that has become a reader."""
        return self.kind is Kind.READ and not self.is_ours


def new_guid(mark: Mark | None = None, urandom: Callable[[int], bytes] = os.urandom) -> str:
    """Return an id for one creation: a UUID of version 8, with 122 random bits, or with ``mark`` and 42."""
    digits = urandom(16).hex()
    if mark is not None:
        digits = f"{mark.call}{digits[8:20]}{mark.run}"
    # The variant is in the two highest bits of a digit.
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def name_prefix(guid: str, kind: Kind, limit: int | None = None) -> str:
    """Return the name of a node before ZooKeeper appends the sequence."""
    number = f"{min(limit, MAX_LIMIT)}-" if limit is not None else ""
    return f"_c_{guid}-{number}{_INFIXES[kind]}"


def parse_name(name: str) -> Node | None:
    """Parse a node's name; return ``None`` if it belongs to no lock recipe that is known here."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    infix = found["infix"] or found["kazoo"]
    guid = found["guid"] or found["uuid"] or ""
    limit = int(found["limit"]) if found["limit"] else None
    return Node(name, _KINDS[infix], guid, int(found["sequence"] or found["number"]), limit)


_SEQUENCE = attrgetter("sequence")


def sort_by_sequence(nodes: Iterable[Node]) -> tuple[list[Node], bool]:
    """Sort by sequence number; return also whether that is the true order. If not, use :func:`sort_by_creation`.

    The read node of a writer that became a reader comes behind its write node.
    """
    ordered = sorted(nodes, key=_SEQUENCE)
    is_true = not ordered or (ordered[0].sequence >= 0 and ordered[-1].sequence < SEQUENCE_END - SEQUENCE_MARGIN)
    if len(ordered) > 1 and len({node.sequence for node in ordered}) < len(ordered):
        ordered.sort(key=lambda node: (node.sequence, node.kind is Kind.READ))
        is_true = is_true and all(
            later.may_be_downgraded and (earlier.may_downgrade or earlier.may_be_downgraded)
            for earlier, later in pairwise(ordered)
            if earlier.sequence == later.sequence
        )
    return ordered, is_true


def sort_by_creation(created: Iterable[tuple[Node, int]]) -> list[Node]:
    """Sort nodes by the transaction that created each.

    The read node of a writer that became a reader is sorted by its sequence number: before the nodes with later ones.
    """
    nodes: list[Node] = []
    for node, _czxid in sorted(created, key=itemgetter(1)):
        position = len(nodes)
        # The counter has 32 bits, and no node stays in the queue while half of them are used.
        while (
            node.may_be_downgraded and position and 0 < (nodes[position - 1].sequence - node.sequence) % 2**32 < 2**31
        ):
            position -= 1
        nodes.insert(position, node)
    return nodes


PERMITS = frozenset({Kind.PERMIT})


class Queue:
    """The nodes of one queue in their true order, from one listing.

    Many contenders of a session can share it, so what is computed for one is kept for the others.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = list(nodes)
        self._positions = {node.name: position for position, node in enumerate(nodes)}
        # The nodes of some kinds, not of all, and their positions.
        self._of: dict[frozenset[Kind], tuple[Sequence[int], list[Node]]] = {}

    def __repr__(self) -> str:
        return f"<Queue {' '.join(node.name for node in self._nodes)}>"

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __contains__(self, name: str) -> bool:
        return name in self._positions

    @property
    def first(self) -> str:
        """The name of the node at the head, which holds."""
        return self._nodes[0].name

    def of(self, kinds: frozenset[Kind]) -> list[Node]:
        """Return the nodes of these kinds."""
        return self._nodes if len(kinds) == len(Kind) else self._select(kinds)[1]

    def before(self, name: str, kinds: frozenset[Kind]) -> list[Node]:
        """Return the nodes of these kinds before the one with that name; raise ``LookupError`` if it is missing.

        The write node of a writer that became a reader is left out: both nodes belong to one client.
        """
        return self.of(kinds)[: self.count_before(name, kinds)]

    def count_before(self, name: str, kinds: frozenset[Kind]) -> int:
        """Return how many nodes :meth:`before` returns."""
        count = position = self._positions[name]
        nodes = self._nodes
        if len(kinds) < len(Kind):
            positions, nodes = self._select(kinds)
            count = bisect_left(positions, position)
        if not count:
            return 0
        own, last = self._nodes[position], nodes[count - 1]
        is_one_client = own.sequence == last.sequence and own.may_be_downgraded and last.may_downgrade
        return count - is_one_client

    @cached_property
    def room(self) -> int:
        """How many of the first permits may hold together, so that the limit of each of them is kept.

        A permit whose name has no limit is not ours and sets none.
        """
        limit: int | None = None
        for position, node in enumerate(self.of(PERMITS)):
            if node.limit is not None and (limit is None or node.limit < limit):
                limit = node.limit
            if limit is not None and position >= limit:
                return position
        return len(self.of(PERMITS))

    def _select(self, kinds: frozenset[Kind]) -> tuple[Sequence[int], list[Node]]:
        if kinds not in self._of:
            positions = [position for position, node in enumerate(self._nodes) if node.kind in kinds]
            self._of[kinds] = positions, [self._nodes[position] for position in positions]
        return self._of[kinds]


# The rules.

# Kinds of which several may hold at once.
SHARED = frozenset({Kind.READ, Kind.PERMIT})
ALL = frozenset(Kind)
NOT_SHARED = ALL - SHARED


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """What a contender watches while it waits, or :data:`GRANTED`.

    ``first`` is the first node of the queue, which holds: the first of those that block a reader may be a writer that
    waits itself. ``watch`` has the nodes to watch.

    - With ``grants_on_delete`` these are all blockers: the lock is granted when the last of them is deleted.
    - Otherwise the deletion of a watched node means: list again. The watched node is the one before the last blockers,
      so this happens before the last ones are deleted; ``watch_next`` has these.
    - With ``watch_children`` the whole queue is watched instead, because any of several permits may be released first:
      ``permits`` has these, as far as that is of use.
    - With ``woken_by_predecessor`` the watched node is the permit right before ours. It waits too, and its client
      writes to it when it is granted.
    """

    first: str = ""
    watch: tuple[Node, ...] = ()
    watch_next: tuple[Node, ...] = ()
    grants_on_delete: bool = False
    watch_children: bool = False
    woken_by_predecessor: bool = False
    permits: tuple[Node, ...] = ()


GRANTED = WatchPlan()


@dataclass(frozen=True)
class Rule:
    """When a contender holds: no node of ``conflicts`` is before it, and a permit has room.

    Callers may give one semaphore different ``limit``s, and the limit of every holder is kept. So for each permit the
    lowest limit up to it counts, and no permit overtakes another.
    """

    kind: Kind
    conflicts: frozenset[Kind]
    limit: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.limit is None else f"{self.kind.value} of {self.limit}"

    def must_wait(self, queue: Queue) -> bool:
        """Whether a contender that joins at the end of ``queue`` would have to wait."""
        if queue.of(self.conflicts):
            return True
        if self.limit is None:
            return False
        permits = queue.of(PERMITS)
        return len(permits) >= min([self.limit, *(node.limit for node in permits if node.limit is not None)])

    def blockers(self, queue: Queue) -> list[Node]:
        """Return nodes for which :meth:`must_wait` is true: without them it may be false."""
        return queue.of(self.conflicts)[:1] or queue.of(PERMITS)[:MAX_BLOCKERS]

    def holds(self, own: str, queue: Queue) -> bool:
        """Whether the node ``own`` holds; raise ``LookupError`` if it is not in ``queue``."""
        return not queue.count_before(own, self.conflicts) and self.has_room(own, queue)

    def evaluate(self, own: str, queue: Queue) -> WatchPlan:
        """Return what the contender of the node ``own`` does now; raise ``LookupError`` if it is not in ``queue``."""
        count = queue.count_before(own, self.conflicts)
        has_room = self.limit is None or self.has_room(own, queue)
        if count:
            return self._plan_for(queue.first, queue.of(self.conflicts)[:count], others=not has_room)
        if has_room:
            return GRANTED
        permits = queue.before(own, PERMITS)
        # If the permit before ours holds, or its client does not write when it is granted, only the children wake us.
        if len(permits) == queue.room or permits[-1].limit is None:
            return WatchPlan(queue.first, watch_children=True, permits=tuple(permits[:MAX_BLOCKERS]))
        return WatchPlan(queue.first, (permits[-1],), woken_by_predecessor=True)

    def proof_of_waiter(self, own: str, queue: Queue, mark: Mark) -> tuple[str, ...]:
        """Return nodes whose existence proves that a contender waits which will run what ``mark`` names, if one does.

        The one of ``own`` may leave while all of them exist. It stays if an earlier delivery of its own task waits: the
        process of that delivery may be dead. Scenario: the tasks T1 and T2 wait, and the processes of both die. If the
        second delivery of each left for the node that is left of the other task, neither would run.
        """
        waiters = [
            node
            for node in queue.before(own, frozenset({self.kind}))
            if node.mark.run == mark.run and not self.holds(node.name, queue)
        ]
        if not waiters or any(node.mark.call == mark.call for node in waiters):
            return ()
        # The others may be about to leave, for this one.
        waiter = waiters[0].name
        # While the holding permits exist, the first waiting permit waits, and so does every permit behind it.
        blockers = queue.before(waiter, self.conflicts)[-1:] or queue.before(waiter, PERMITS)[: queue.room + 1]
        return (*(node.name for node in blockers), waiter)

    def covers(self, rule: Rule) -> bool:
        """Whether holding a key by this rule includes holding it by ``rule``, so that a nested lock needs no node."""
        if self.kind in NOT_SHARED:
            return True
        # Other holders may exceed a limit that is lower than ours.
        return self.kind is rule.kind and (self.limit or 0) <= (rule.limit or 0)

    def has_room(self, own: str, queue: Queue) -> bool:
        """Whether the limits of the permits leave room for ``own``; always true for other kinds."""
        return self.limit is None or queue.count_before(own, PERMITS) < queue.room

    def _plan_for(self, first: str, blockers: list[Node], *, others: bool) -> WatchPlan:
        """Return the plan to watch the last blocker and those that hold together with it, or first the one before them.

        ``others`` says that deleting the blockers is not enough, because there is no room for a permit either.
        """
        last = blockers[-1].kind
        size = 1
        if last in SHARED:
            while size < len(blockers) and blockers[-size - 1].kind is last:
                size += 1
        last_blockers = tuple(blockers[-size:])
        if size < len(blockers):
            return WatchPlan(first, (blockers[-size - 1],), last_blockers)
        # A writer that becomes a reader still blocks us when its write node is deleted.
        stays = Kind.READ in self.conflicts and any(node.may_downgrade for node in last_blockers)
        return WatchPlan(first, last_blockers, grants_on_delete=not others and not stays)


EXCLUSIVE = Rule(Kind.EXCLUSIVE, ALL)
WRITE = Rule(Kind.WRITE, ALL)
READ = Rule(Kind.READ, NOT_SHARED | {Kind.PERMIT})


def semaphore(limit: int) -> Rule:
    """Return the rule by which at most ``limit`` hold at once."""
    return Rule(Kind.PERMIT, NOT_SHARED | {Kind.READ}, limit)


def rule(mode: str = "exclusive", limit: int | None = None) -> Rule:
    """Return the rule of a lock; raise ``TypeError`` or ``ValueError`` for wrong arguments."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    if limit is None:
        return MODES[mode]
    # bool is an int, and True a mistake.
    if type(limit) is not int or limit < 1:
        raise TypeError(f"limit is how many may hold at once, a positive whole number as in limit=4, got {limit!r}")
    if mode != "exclusive":
        raise TypeError(f"limit={limit} makes a semaphore, which has no mode; leave out mode={mode!r} or the limit")
    return semaphore(limit)


MODES = {"exclusive": EXCLUSIVE, "read": READ, "write": WRITE}
# The rule for a node of each kind; the limit of a permit is in its name.
RULES = {each.kind: each for each in (*MODES.values(), semaphore(MAX_LIMIT))}


def waiting_behind(own: str, queue: Queue) -> list[Node]:
    """Return the nodes behind the ``own`` one that wait for it or for another one; none if it is not in the queue."""
    nodes = list(queue)
    position = next((number for number, node in enumerate(nodes) if node.name == own), len(nodes))
    return [node for node in nodes[position + 1 :] if not RULES[node.kind].holds(node.name, queue)]
