"""The steps that bring further what is under way: messages, timers, threads, and what servers tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.servers import Server
    from tests.simulation.steps import Step
    from tests.simulation.wire import SimulatedWire
    from tests.simulation.world import World

KINDS = frozenset(
    ("connect", "serve", "receive", "flush", "timer", "call", "wake", "loop", "replicate", "ack", "apply", "fail",
     "elect", "join", "forget")
)  # fmt: skip
# A message that was sent before two servers were cut off from each other may arrive late; mostly it does not.
LATE = 0.1
# So many messages arrive at once, or one.
MANY = 5


def find(world: World) -> list[Step]:
    """Return those that are possible."""
    found: list[Step] = []
    for process in world.processes:
        if not process.is_stopped and not process.is_dead:
            for wire in process.wires:
                found += _of_wire(world, wire)
            found += _of_process(world, process)
    for neighbour in world.neighbours:
        found += neighbour.find()
    for server in world.ensemble.servers:
        found += _of_links(world, server)
        if not server.is_frozen:
            found += _of_server(world, server)
    return found


def _of_wire(world: World, wire: SimulatedWire) -> Iterator[Step]:
    weights, link, name = world.weights, wire.link, wire.name
    if link is None:
        if wire.may_connect:
            for server in world.ensemble.servers:
                if wire.would_try(server):
                    yield weights["connect"], f"connect {name} {server.name}", partial(wire.connect, server)
        return
    if wire.may_receive:
        yield weights["receive"], f"receive {name} 1", wire.receive
        if len(link.to_client) > 1:
            yield weights["receive"], f"receive {name} {MANY}", partial(wire.receive, MANY)
    if wire.may_flush:
        yield weights["flush"], f"flush {name}", wire.flush
    if wire.may_ping:
        yield weights["flush"], f"ping {name}", wire.ping
    if wire.is_dropped or wire.attempt_is_over:
        yield weights["fail"], f"fail {name}", wire.lose


def _of_process(world: World, process: Process) -> Iterator[Step]:
    weights, name, due = world.weights, process.name, process.due
    if due is not None and due <= process.now():
        yield weights["timer"], f"timer {name}", process.run_timer
    for calls in process.calls:
        if calls.waiting:
            yield weights["call"], f"call {name} {calls.name}", partial(process.make_call, calls)
    for strand in process.strands:
        if strand.is_ready:
            yield weights["wake"], f"wake {strand.name}", partial(world.wake, strand)
    loop = world.loops.get(process)
    if loop is not None and loop.is_ready:
        yield weights["loop"], f"loop {name}", loop.step


def _of_links(world: World, server: Server) -> Iterator[Step]:
    weights = world.weights
    for link in server.links:
        if link.may_serve:
            yield weights["serve"], f"serve {link.name}", link.serve
        elif link.is_orphan and link.arrives and not server.is_frozen:
            yield weights["forget"], f"forget {link.name}", link.close_server


def _of_server(world: World, server: Server) -> Iterator[Step]:
    weights, ensemble, name, leader = world.weights, world.ensemble, server.name, server.leader
    if leader is None:
        if ensemble.may_elect(server):
            yield weights["elect"], f"elect {name}", partial(ensemble.elect, server, world.now)
        elif (other := ensemble.leader_for(server)) is not None:
            yield weights["join"], f"join {name}", partial(ensemble.join, server, other)
    elif leader is not server:
        is_linked = server.is_linked
        if server.lags:
            return
        if is_linked and len(server.log) < len(leader.log):
            yield weights["replicate"], f"replicate {name}", server.replicate
        leads = leader.leads and leader.epoch == server.epoch and not leader.is_frozen
        if leads and leader.acked.get(name, 0) < len(server.log):
            weight = weights["ack"] * (1.0 if is_linked else LATE)
            yield weight, f"ack {name}", partial(leader.hear, server)
        if is_linked and server.may_apply:
            yield weights["apply"], f"apply {name}", server.apply
