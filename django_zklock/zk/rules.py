"""Which nodes of a queue block which contender, and which of them a waiter watches. No I/O here.

A waiter watches few nodes, so that a release wakes few waiters (ZooKeeper Recipes, "Locks"). It watches those whose
deletion also proves that no blocker is left, so that it is granted the lock without another request.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock.zk.queue import LEASES, MAX_LIMIT, Kind, Mark, Node, Queue

# Kinds of which several may hold at once.
SHARED = frozenset({Kind.READ, Kind.LEASE})
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
    - With ``watch_children`` the whole queue is watched instead, because any of several leases may be released first.
    - With ``woken_by_predecessor`` the watched node is the lease right before ours. It waits too, and its client writes
      to it when it is granted.
    """

    first: str = ""
    watch: tuple[Node, ...] = ()
    watch_next: tuple[Node, ...] = ()
    grants_on_delete: bool = False
    watch_children: bool = False
    woken_by_predecessor: bool = False


GRANTED = WatchPlan()


@dataclass(frozen=True)
class Rule:
    """When a contender holds: no node of ``conflicts`` is before it, and a lease has room.

    Callers may give one semaphore different ``limit``s, and the limit of every holder is kept. So for each lease the
    lowest limit up to it counts, and no lease overtakes another.
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
        lowest = queue.lowest_limit
        return len(queue.of(LEASES)) >= (self.limit if lowest is None else min(lowest, self.limit))

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
        leases = queue.before(own, LEASES)
        # If the lease before ours holds, or its client does not write when it is granted, only the children wake us.
        if len(leases) == queue.room or leases[-1].limit is None:
            return WatchPlan(queue.first, watch_children=True)
        return WatchPlan(queue.first, (leases[-1],), woken_by_predecessor=True)

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
        # While the holding leases exist, the first waiting lease waits, and so does every lease behind it.
        blockers = queue.before(waiter, self.conflicts)[-1:] or queue.before(waiter, LEASES)[: queue.room + 1]
        return (*(node.name for node in blockers), waiter)

    def covers(self, rule: Rule) -> bool:
        """Whether holding a key by this rule includes holding it by ``rule``, so that a nested lock needs no node."""
        if self.kind in NOT_SHARED:
            return True
        # Other holders may exceed a limit that is lower than ours.
        return self.kind is rule.kind and (self.limit or 0) <= (rule.limit or 0)

    def has_room(self, own: str, queue: Queue) -> bool:
        """Whether the limits of the leases leave room for ``own``; always true for other kinds."""
        return self.limit is None or queue.count_before(own, LEASES) < queue.room

    def _plan_for(self, first: str, blockers: list[Node], *, others: bool) -> WatchPlan:
        """Return the plan to watch the last blocker and those that hold together with it, or first the one before them.

        ``others`` says that deleting the blockers is not enough, because there is no room for a lease either.
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
READ = Rule(Kind.READ, NOT_SHARED | {Kind.LEASE})


def semaphore(limit: int) -> Rule:
    """Return the rule by which at most ``limit`` hold at once."""
    return Rule(Kind.LEASE, NOT_SHARED | {Kind.READ}, limit)


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
# The rule for a node of each kind; the limit of a lease is in its name.
RULES = {each.kind: each for each in (*MODES.values(), semaphore(MAX_LIMIT))}
