"""The steps that strike: connections cut, servers and processes stopped, killed and cut off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import OperationTimeoutError

from tests.simulation import operators

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.servers import Server
    from tests.simulation.steps import Step
    from tests.simulation.wire import SimulatedWire
    from tests.simulation.world import World


def find(world: World) -> list[Step]:
    """Return those that are possible in this world."""
    found: list[Step] = []
    for process in world.processes:
        if not process.is_dead:
            found += _of_process(world, process)
    for server in world.ensemble.servers:
        found += _of_server(world, server)
        found += _refusals(world, server)
    leader = world.ensemble.newest_leader
    if leader is not None and not leader.is_frozen:
        found += operators.find(world, leader)
    return found


def end_all(world: World) -> None:
    """Let everything run and reach everything."""
    world.network.heal_all()
    for server in world.ensemble.servers:
        server.is_frozen = server.lags = False
    for process in world.processes:
        process.is_stopped = False
    world.note("all", "all", "no fault any more")


# Processes.


def _of_process(world: World, process: Process) -> Iterator[Step]:
    weights, name = world.weights, process.name
    if weight := weights.get("cut"):
        for wire in process.wires:
            if wire.link is not None:
                yield from _cuts(weight, wire)
    yield from _parts(world, name)
    yield from _ends(world, process)


def _parts(world: World, name: str) -> Iterator[Step]:
    weights, servers = world.weights, [each.name for each in world.ensemble.servers]
    if weight := weights.get("part client"):
        yield weight, f"part {name} all", partial(_part, world, name, servers)
        if len(servers) > 1:
            for server in servers:
                yield weight, f"part {name} {server}", partial(_part, world, name, [server])
    if (weight := weights.get("lose server")) and not world.was_struck:
        for server in servers:
            yield weight, f"lose {name} {server}", partial(_lose_server, world, name, server)
    if world.network.is_cut(name):
        yield weights["heal"], f"heal {name}", partial(_heal, world, name)


def _ends(world: World, process: Process) -> Iterator[Step]:
    weights, name = world.weights, process.name
    if process.is_stopped:
        yield weights["continue"], f"continue {name}", partial(_stop, world, process, is_stopped=False)
    elif weight := weights.get("stop"):
        yield weight, f"stop {name}", partial(_stop, world, process, is_stopped=True)
    if (weight := weights.get("close")) and not process.is_stopped:
        yield weight, f"close {name}", partial(_close, world, process)
    if weight := weights.get("kill"):
        for noticed in (False, True):
            yield weight / 2, f"kill {name} {int(noticed)}", partial(_kill, world, process, is_noticed=noticed)


def _cuts(weight: float, wire: SimulatedWire) -> Iterator[Step]:
    assert wire.link is not None
    under_way = len(wire.link.to_server)
    for arrived in sorted({0, under_way // 2, under_way}):
        for noticed in (False, True):
            step = partial(wire.lose, arrived=arrived, is_noticed=noticed)
            yield weight / 4, f"cut {wire.name} {arrived} {int(noticed)}", step


def _part(world: World, one: str, others: list[str]) -> None:
    for other in others:
        world.note(one, other, "is cut off")
        world.network.cut(one, other)


def _lose_server(world: World, name: str, server: str) -> None:
    """Cut a process off from one of the servers, once: no lock may be lost by that."""
    world.was_struck = True
    _part(world, name, [server])


def _split(world: World, server: Server, process: Process) -> None:
    """Cut one server and one process off from all other servers."""
    others = [each.name for each in world.ensemble.servers if each is not server]
    _part(world, server.name, others)
    _part(world, process.name, others)


def _heal(world: World, one: str) -> None:
    world.note(one, one, "is reached again")
    world.network.heal(one)


def _stop(world: World, process: Process, *, is_stopped: bool) -> None:
    world.note(process.name, process.name, "is stopped" if is_stopped else "goes on")
    process.is_stopped = is_stopped


def _close(world: World, process: Process) -> None:
    world.note(process.name, process.name, "closes its pool")
    world.judge.ended.append(world.now)
    world.judge.closing |= dict.fromkeys(process.pool._started().values())
    process.spawn(f"{process.name} closing {world.steps}", process.pool.close)


def _kill(world: World, process: Process, *, is_noticed: bool) -> None:
    world.note(process.name, process.name, "is killed")
    world.judge.killed(process)
    process.kill()
    for wire in process.wires:
        if wire.link is not None:
            link, wire.link = wire.link, None
            link.close_client(arrived=len(link.to_server), is_noticed=is_noticed)


# Servers.


def _of_server(world: World, server: Server) -> Iterator[Step]:
    weights, name = world.weights, server.name
    others = [each.name for each in world.ensemble.servers if each is not server]
    if others and (weight := weights.get("part servers")):
        for other in others:
            yield weight, f"part {name} {other}", partial(_part, world, name, [other])
        yield weight, f"part {name} others", partial(_part, world, name, others)
    if others and (weight := weights.get("split")):
        for process in world.processes:
            if any(wire.link is not None and wire.link.server is server for wire in process.wires):
                yield weight, f"split {name} {process.name}", partial(_split, world, server, process)
    if world.network.is_cut(name):
        yield weights["heal"], f"heal {name}", partial(_heal, world, name)
    if server.lags:
        yield weights["catch up"], f"catch up {name}", partial(_lag, world, server, lags=False)
    elif (weight := weights.get("lag")) and server.leader is not None and not server.leads:
        yield weight, f"lag {name}", partial(_lag, world, server, lags=True)
    if server.is_frozen:
        yield weights["thaw"], f"thaw {name}", partial(_freeze, world, server, is_frozen=False)
    elif weight := weights.get("freeze"):
        yield weight, f"freeze {name}", partial(_freeze, world, server, is_frozen=True)
    # It is started again, or has lost its leader before that knows.
    if (weight := weights.get("leave leader")) and server.leader is not None and not server.is_frozen:
        yield weight, f"leave {name}", server.look


def _refusals(world: World, server: Server) -> Iterator[Step]:
    """Refuse a request for now, after it was done or not."""
    refuses, done = world.weights.get("refuse"), world.weights.get("refuse done")
    for link in server.links if refuses or done else ():
        if link.may_serve and link.session is not None and link.to_server[0][0] > 0:
            error = OperationTimeoutError()
            if refuses:
                yield refuses, f"refuse {link.name}", partial(link.refuse, error, is_done=False)
            if done:
                yield done, f"refuse done {link.name}", partial(link.refuse, error, is_done=True)


def _lag(world: World, server: Server, *, lags: bool) -> None:
    world.note(server.name, server.name, "falls behind" if lags else "catches up")
    server.lags = lags


def _freeze(world: World, server: Server, *, is_frozen: bool) -> None:
    world.note(server.name, server.name, "stands still" if is_frozen else "goes on")
    server.is_frozen = is_frozen
