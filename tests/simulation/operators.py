"""What operators do: they delete nodes, request releases, forbid to read a node, and lose the data of all servers.

Some do it as the command and the admin do, by the operations of the package in a process of their own; others, as with
ZooKeeper's own command line, at the newest leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.exceptions import ZkLockError
from django_zklock.zk.node_data import decode_revoke, encode_revoke
from django_zklock.zk.ops import actions
from tests.simulation.judge import Violation
from tests.simulation.tree import Change, parent_of

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.servers import Server
    from tests.simulation.steps import Step
    from tests.simulation.tree import Znode
    from tests.simulation.world import World

BY_CODE = ("break by code", "revoke by code")


def find(world: World, leader: Server) -> Iterator[Step]:
    """Return what is possible in this world."""
    weights, numbers = world.weights, dict[str, int]()
    kinds = {"break", "revoke", "forbid", "reap", *BY_CODE} & weights.keys()
    for path, node in list(leader.head.nodes.items()) if kinds else ():
        queue = parent_of(path)
        if node.owner:
            numbers[queue] = number = numbers.get(queue, 0) + 1
            steps = {
                "break": partial(_break, world, leader, path),
                "revoke": partial(_revoke, world, leader, path),
                "forbid": partial(_forbid, world, path),
                **{kind: partial(_begin, world, kind, path, node) for kind in BY_CODE},
            }
            yield from ((weights[kind], f"{kind} {queue} {number}", steps[kind]) for kind in steps if kind in kinds)
        elif "reap" in kinds and node.is_container and node.made and not node.children:
            yield weights["reap"], f"reap {path}", partial(_reap, world, leader, path)
    if (weight := weights.get("wipe")) and not world.was_wiped:
        yield weight, "wipe all", world.wipe


def _break(world: World, leader: Server, path: str) -> None:
    world.note("operator", leader.name, f"deletes {path}")
    world.judge.breaks(path, leader.head)
    leader.propose([Change("delete", path)])


def _revoke(world: World, leader: Server, path: str) -> None:
    world.note("operator", leader.name, f"asks for {path}")
    world.judge.touched[path] = world.now
    leader.propose([Change("set", path, encode_revoke(leader.head.nodes[path].data, "please"))])


def _forbid(world: World, path: str) -> None:
    world.note("operator", "all", f"lets nobody read {path}")
    world.ensemble.forbidden.add(path)


def _reap(world: World, leader: Server, path: str) -> None:
    world.note(leader.name, leader.name, f"deletes the empty {path}")
    leader.propose([Change("delete", path)])


# By the operations of the package.


def _begin(world: World, kind: str, path: str, node: Znode) -> None:
    process = world.operator
    if process is None or process.is_dead:
        return
    world.note(process.name, process.name, f"begins to {kind.partition(' ')[0]} {path}")
    if kind == "break by code":
        # From now on the node may be gone.
        world.judge.broken.add(path)
    world.judge.touched[path] = world.now
    process.spawn(f"operator {world.steps}", partial(_carry_out, world, process, kind, path, node.czxid))


def _carry_out(world: World, process: Process, kind: str, path: str, token: int) -> None:
    act = actions.break_lock if kind == "break by code" else actions.revoke
    try:
        act(process.pool, path, token=token, why="for the world", timeout=None)
    except ZkLockError:
        return
    world.judge.touched[path] = world.now
    node = world.ensemble.head.nodes.get(path)
    if node is not None and (act is actions.break_lock or not decode_revoke(node.data)) and not world.was_wiped:
        raise Violation(f"an operator was told that this was done: {kind} {path}")
