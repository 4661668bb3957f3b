"""Clients of kazoo and of Curator in the same queues, by the names and rules of their recipes.

Each makes its node, waits as its recipe does, holds for a while and deletes the node; a writer of Curator may become a
reader in between. A neighbour is always with a server that has a majority, and its session does not end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk.queue import Kind
from tests.simulation.tree import ROOT, Change, name_of

if TYPE_CHECKING:
    from tests.simulation.servers import Server
    from tests.simulation.steps import Step
    from tests.simulation.world import World

KAZOO = "0123456789abcdef0123456789abcd"
CURATOR = "_c_01234567-89ab-4cde-8f01-2345678901"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a neighbour calls its node, what it asks for, and which names before its own it waits for.

    ``respects`` has the kinds of ours that are among these, see ``docs/howto/interoperate.md``.
    """

    prefix: str
    infix: str
    kind: Kind
    waits_for: tuple[str, ...]
    respects: frozenset[Kind]


RECIPES = {
    # With the patterns that the manual demands.
    "kazoo lock": Recipe(
        prefix=KAZOO, infix="__lock__", kind=Kind.EXCLUSIVE, respects=frozenset(Kind),
        waits_for=("__lock__", "__rlock__", "-lock-", "__WRIT__", "__READ__", "-lease-"),
    ),
    "kazoo reader": Recipe(
        prefix=KAZOO, infix="__rlock__", kind=Kind.READ, respects=frozenset(Kind) - {Kind.READ},
        waits_for=("__lock__", "-lock-", "__WRIT__", "-lease-"),
    ),
    "mutex": Recipe(
        prefix=CURATOR, infix="-lock-", kind=Kind.EXCLUSIVE, respects=frozenset({Kind.EXCLUSIVE}), waits_for=("lock-",),
    ),
    "reader": Recipe(
        prefix=CURATOR, infix="-__READ__", kind=Kind.READ, respects=frozenset({Kind.WRITE}), waits_for=("__WRIT__",),
    ),
    "writer": Recipe(
        prefix=CURATOR, infix="-__WRIT__", kind=Kind.WRITE, respects=frozenset({Kind.READ, Kind.WRITE}),
        waits_for=("__WRIT__", "__READ__"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NeighbourPlan:
    """What one does: it comes at a time, and holds for as long; both are seconds."""

    recipe: str
    key: str = "a"
    comes_at: float = 0.0
    work: float = 0.2
    becomes_reader: bool = False


class Neighbour:
    """One of them, with one node."""

    def __init__(self, world: World, number: int, plan: NeighbourPlan) -> None:
        self._world = world
        self._plan = plan
        self._recipe = RECIPES[plan.recipe]
        self._number = number
        self._queue = f"/r/{plan.key}"
        self.name = f"{plan.recipe} {number}"
        self.key = plan.key
        self.kind = self._recipe.kind
        # Its node, its token, and when it has begun to hold.
        self.path = ""
        self.token = 0
        self._since: float | None = None
        self._is_leaving = False
        self.is_over = False

    @property
    def holds(self) -> bool:
        """Whether it believes to hold."""
        return self._since is not None and not self._is_leaving

    def conflicts_with(self, kind: Kind, token: int) -> bool:
        """Whether a holder of ours must wait for this one, or this one for it, by their nodes."""
        return self.token < token or kind in self._recipe.respects

    def find(self) -> Iterator[Step]:
        """Return the step that it can take, if there is one."""
        leader = self._world.ensemble.newest_leader
        if leader is None or leader.is_frozen or self.is_over:
            return
        act = self._act(leader)
        if act is not None:
            yield self._world.weights["wake"], f"wake {self.name}", act

    def _act(self, leader: Server) -> partial[None] | None:
        now, plan, is_there = self._world.now, self._plan, self.path in leader.head.nodes
        if self._is_leaving and is_there:
            return partial(self._leave, leader)
        if (self._is_leaving or self.path in self._world.judge.broken) and self.path not in leader.tree.nodes:
            return partial(self._end)
        if self._is_leaving or self._since is None:
            return None if self._is_leaving else self._before(leader, is_there=is_there)
        if plan.becomes_reader and self.kind is Kind.WRITE and now >= self._since + plan.work / 2:
            return partial(self._become_reader, leader)
        return partial(self._leave, leader) if now >= self._since + plan.work else None

    def _before(self, leader: Server, *, is_there: bool) -> partial[None] | None:
        if not is_there:
            return partial(self._join, leader) if self._world.now >= self._plan.comes_at else None
        return partial(self._hold, leader) if self._is_first(leader) else None

    def _join(self, leader: Server) -> None:
        nodes, changes, number = leader.head.nodes, [], 0
        if self._queue in nodes:
            number = nodes[self._queue].made
        else:
            changes.append(Change("create", self._queue, made=nodes[ROOT + "r"].made + 1))
        self.path = f"{self._queue}/{self._recipe.prefix}{self._number:02d}{self._recipe.infix}{number:010d}"
        self._world.note(self.name, leader.name, f"creates {self.path}")
        leader.propose([*changes, Change("create", self.path, b"them", 0xC000 + self._number, made=number + 1)])

    def _is_first(self, leader: Server) -> bool:
        """Whether a majority has its node, and nothing that it waits for is before it."""
        nodes = leader.tree.nodes
        if self.path not in nodes:
            return False
        names = [name for name in nodes[self._queue].children if any(part in name for part in self._recipe.waits_for)]
        return all(name[-10:] >= self.path[-10:] for name in names)

    def _hold(self, leader: Server) -> None:
        self._since, self.token = self._world.now, leader.tree.nodes[self.path].czxid
        self._world.note(self.name, self.name, "believes to hold")

    def _become_reader(self, leader: Server) -> None:
        """Take the read lock with the number of the write lock, and release that (CURATOR-621)."""
        self._world.note(self.name, leader.name, "becomes a reader")
        old, self.path, self.kind = self.path, self.path.replace("__WRIT__", "__READ__"), Kind.READ
        made = leader.head.nodes[self._queue].made
        leader.propose([Change("create", self.path, b"them", 0xC000 + self._number, made=made)])
        leader.propose([Change("delete", old)])

    def _leave(self, leader: Server) -> None:
        self._is_leaving = True
        self._world.note(self.name, leader.name, f"deletes {name_of(self.path)}")
        leader.propose([Change("delete", self.path)])

    def _end(self) -> None:
        self._is_leaving = self.is_over = True
