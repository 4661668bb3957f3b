"""Which nodes of a line stand in whose way, and which of them a waiter watches.

A waiter watches few nodes, so that a release wakes few (ZooKeeper Recipes, "Locks"), and the right ones, so that
the event that ends its wait is also the proof that nobody is left before it. No I/O here.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock.zk.nodes import Kind, Node

# Kinds of which several may hold at once.
SHARED = frozenset({Kind.READ, Kind.LEASE})
NOT_SHARED = frozenset(Kind) - SHARED


@dataclass(frozen=True)
class Outlook:
    """What stands between a contender and its lock.

    ``watched`` are the nodes to watch. If ``armed``, they are all there is: the lock is ours when the last of them
    is gone, and there is nothing to ask. If not, one of them gone means to look again, which is early enough to be
    armed when it counts: the one watched stands before the last in the way. With ``children`` the whole line is to be
    watched instead, because any of several leases may be the one that is given back. If ``relayed``, the one watched is
    the lease right before ours, which says so when it comes in; see :meth:`Rule.hears_in_time`.
    """

    blockers: tuple[Node, ...]
    watched: tuple[Node, ...] = ()
    armed: bool = False
    children: bool = False
    relayed: bool = False


FREE = Outlook(())


@dataclass(frozen=True)
class Rule:
    """When a contender of a kind holds: no node of ``conflicts`` stands before it, and fewer than ``limit`` leases.

    Different callers may give a semaphore different limits; each enforces its own.
    """

    kind: Kind
    conflicts: frozenset[Kind]
    limit: int | None = None

    def is_full(self, line: list[Node]) -> bool:
        """Whether one who joins at the end of ``line`` would have to wait."""
        return not self._admits(line)

    def outlook(self, own: str, line: list[Node]) -> Outlook:
        """Say what stands before ``own`` in ``line``, which is in order; raise ``LookupError`` if it is not there."""
        before = self._before(own, line)
        if self._admits(before):
            return FREE
        blockers = tuple(node for node in before if node.kind in self.conflicts)
        leases = tuple(node for node in before if node.kind is self.kind) if self.limit is not None else ()
        if blockers:
            return _behind(blockers, others=len(leases) >= (self.limit or 1))
        assert self.limit is not None, "only a semaphore is kept out by its own kind"
        # By our own limit the one before us holds if exactly so many are there, and then nobody else wakes us.
        if len(leases) == self.limit:
            return Outlook(leases, children=True)
        return Outlook(leases, leases[-1:], relayed=True)

    def hears_in_time(self, leases: int, limit: int | None) -> bool:
        """Whether it is enough to hear of the last of ``leases`` before us when it comes in, or goes.

        ``limit`` is that of its owner, where known. If it is lower than ours, we may be let in first; and if it
        leaves room for that many, it is in already and has nothing more to say.
        """
        assert self.limit is not None, "only the leases of a semaphore wait for each other"
        return limit is not None and self.limit <= limit < leases

    def holds(self, own: str, line: list[Node]) -> bool:
        """Whether ``own`` holds."""
        return self._admits(self._before(own, line))

    def covers(self, kind: Kind) -> bool:
        """Whether who holds by this rule needs no other node to hold the same key as ``kind``."""
        return self.kind is kind or self.kind in NOT_SHARED

    def _admits(self, before: list[Node]) -> bool:
        if any(node.kind in self.conflicts for node in before):
            return False
        return self.limit is None or sum(node.kind is self.kind for node in before) < self.limit

    def _before(self, own: str, line: list[Node]) -> list[Node]:
        for place, node in enumerate(line):
            if node.name == own:
                return line[:place]
        raise LookupError(own)


def _behind(blockers: tuple[Node, ...], *, others: bool) -> Outlook:
    """Watch the last in the way, with those who hold together with it; or, before it is their turn, who is before them.

    ``others`` says that more than the blockers has to go before the lock is ours.
    """
    size = 1
    if blockers[-1].kind in SHARED:
        while size < len(blockers) and blockers[-size - 1].kind is blockers[-1].kind:
            size += 1
    if size < len(blockers):
        return Outlook(blockers, blockers[-size - 1 : -size])
    return Outlook(blockers, blockers, armed=not others)


EXCLUSIVE = Rule(Kind.EXCLUSIVE, frozenset(Kind))
WRITE = Rule(Kind.WRITE, frozenset(Kind))
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
