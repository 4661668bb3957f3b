"""Which nodes of a line stand in whose way, and which of them a waiter watches.

A waiter watches few nodes, so that a release wakes few (ZooKeeper Recipes, "Locks"), and the right ones, so that
the event that ends its wait is also the proof that nobody is left before it. No I/O here.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock.zk.nodes import Kind, Node
from django_zklock.zk.order import Order

# Kinds of which several may hold at once.
SHARED = frozenset({Kind.READ, Kind.LEASE})
ALL = frozenset(Kind)
NOT_SHARED = ALL - SHARED
LEASES = frozenset({Kind.LEASE})


@dataclass(frozen=True, slots=True)
class Outlook:
    """What stands between a contender and its lock.

    ``first`` of ``blockers`` nodes is the one at their head; more than that is not kept, as lines are long. ``watched``
    are the nodes to watch. If ``armed``, they are all there is: the lock is ours when the last of them is gone, and
    there is nothing to ask. If not, one of them gone means to look again, which is early enough to be armed when it
    counts: the one watched stands before the last in the way, which are ``then`` to be watched. With ``children`` the
    whole line is to be watched instead, because any of several leases may be the one that is given back. If
    ``relayed``, the one watched is the lease right before ours, which says so when it comes in; see
    :meth:`Rule.hears_in_time`.
    """

    blockers: int = 0
    first: str = ""
    watched: tuple[Node, ...] = ()
    then: tuple[Node, ...] = ()
    armed: bool = False
    children: bool = False
    relayed: bool = False


FREE = Outlook()


@dataclass(frozen=True)
class Rule:
    """When a contender of a kind holds: no node of ``conflicts`` stands before it, and fewer than ``limit`` leases.

    Different callers may give a semaphore different limits; each enforces its own.
    """

    kind: Kind
    conflicts: frozenset[Kind]
    limit: int | None = None

    @property
    def excludes_all(self) -> bool:
        """Whether who holds by this rule has nobody before it."""
        return self.conflicts == ALL

    def is_full(self, line: Order) -> bool:
        """Whether one who joins at the end of ``line`` would have to wait."""
        return bool(line.of(self.conflicts)) or self._is_reached(line.of(LEASES))

    def holds(self, own: str, line: Order) -> bool:
        """Whether ``own`` holds; raise ``LookupError`` if it is not in ``line``."""
        return self.outlook(own, line) is FREE

    def outlook(self, own: str, line: Order) -> Outlook:
        """Say what stands before ``own`` in ``line``; raise ``LookupError`` if it is not there."""
        blockers = line.before(own, self.conflicts)
        leases = line.before(own, LEASES) if self.limit is not None else []
        if blockers:
            return _behind(blockers, others=self._is_reached(leases))
        if not self._is_reached(leases):
            return FREE
        # By our own limit the one before us holds if exactly so many are there, and then nobody else wakes us.
        if len(leases) == self.limit:
            return Outlook(len(leases), leases[0].name, children=True)
        return Outlook(len(leases), leases[0].name, (leases[-1],), relayed=True)

    def awaited(self, own: str, line: Order) -> tuple[str, ...]:
        """Give nodes that prove, as long as all of them are there, that another of this kind waits before ``own``.

        None, if nobody does. Whoever came last of those before ``own`` came after all who hold.
        """
        others = line.before(own, frozenset({self.kind}))
        if not others or self.outlook(others[-1].name, line) is FREE:
            return ()
        last = others[-1].name
        blockers = line.before(last, self.conflicts)[:1] or line.before(last, LEASES)[: self.limit]
        return tuple(node.name for node in blockers)

    def hears_in_time(self, leases: int, limit: int | None) -> bool:
        """Whether it is enough to hear of the last of ``leases`` before us when it comes in, or goes.

        ``limit`` is that of its owner, where known. If it is lower than ours, we may be let in first; and if it
        leaves room for that many, it is in already and has nothing more to say.
        """
        assert self.limit is not None, "only the leases of a semaphore wait for each other"
        return limit is not None and self.limit <= limit < leases

    def covers(self, kind: Kind) -> bool:
        """Whether who holds by this rule needs no other node to hold the same key as ``kind``."""
        return self.kind is kind or self.kind in NOT_SHARED

    def _is_reached(self, leases: list[Node]) -> bool:
        return self.limit is not None and len(leases) >= self.limit


def _behind(blockers: list[Node], *, others: bool) -> Outlook:
    """Watch the last in the way, with those who hold together with it; or, before it is their turn, who is before them.

    ``others`` says that more than the blockers has to go before the lock is ours.
    """
    first, last = blockers[0].name, blockers[-1].kind
    size = 1
    if last in SHARED:
        while size < len(blockers) and blockers[-size - 1].kind is last:
            size += 1
    turn = tuple(blockers[-size:])
    if size < len(blockers):
        return Outlook(len(blockers), first, (blockers[-size - 1],), turn)
    return Outlook(len(blockers), first, turn, armed=not others)


EXCLUSIVE = Rule(Kind.EXCLUSIVE, ALL)
WRITE = Rule(Kind.WRITE, ALL)
READ = Rule(Kind.READ, NOT_SHARED | {Kind.LEASE})


def semaphore(limit: int) -> Rule:
    """Give the rule by which at most ``limit`` hold at once."""
    return Rule(Kind.LEASE, NOT_SHARED | {Kind.READ}, limit)


def rule(mode: str = "exclusive", limit: int | None = None) -> Rule:
    """Give the rule of a lock; raise ``TypeError`` or ``ValueError`` for what makes no lock."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    if limit is None:
        return MODES[mode]
    # bool is an int, and a slip.
    if type(limit) is not int or limit < 1:
        raise TypeError(f"limit is how many may hold at once, a positive whole number as in limit=4, got {limit!r}")
    if mode != "exclusive":
        raise TypeError(f"limit={limit} makes a semaphore, which has no mode; leave out mode={mode!r} or the limit")
    return semaphore(limit)


MODES = {"exclusive": EXCLUSIVE, "read": READ, "write": WRITE}
RULES = {each.kind: each for each in MODES.values()}
