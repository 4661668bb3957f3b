"""What must hold while nothing is under way and all reach each other: what waits then, waits for a reason.

A wake-up that is lost shows here at once, although a heartbeat, another event or a new connection may make up for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.node_data import decode_revoke
from django_zklock.zk.queue import RULES, Queue, parse_name, semaphore, sort_by_creation
from tests.simulation.servers import SESSION_TIMEOUT
from tests.simulation.tree import Tree, name_of, parent_of

if TYPE_CHECKING:
    from django_zklock.zk.session import Session
    from tests.simulation.callers import Client
    from tests.simulation.judge import Claim
    from tests.simulation.world import World


def queue_of(tree: Tree, path: str) -> Queue:
    """Return the true queue of a lock."""
    parsed = [(parse_name(name), tree.nodes[f"{path}/{name}"].czxid) for name in tree.nodes[path].children]
    return Queue(sort_by_creation((node, czxid) for node, czxid in parsed if node is not None))


def find_wrong(world: World) -> str | None:
    """Return what is wrong, if nothing is under way and nothing holds anything back; else ``None``."""
    leader = world.ensemble.newest_leader
    if leader is None or leader.is_frozen or world.ensemble.keeps_strays or leader.committed < len(leader.log):
        return None
    if world.network.is_any_cut or any(process.is_stopped for process in world.processes):
        return None
    others = [each for each in world.ensemble.servers if each is not leader]
    # One may be the leader of an earlier epoch, and not know it.
    if any(each.leader is not leader or each.lags or each.is_frozen for each in others):
        return None
    if any(not each.is_linked or each.applied < leader.committed for each in others):
        return None
    return next(_of_sessions(leader.head, world), None) or _of_holders(world) or _of_tries(world)


def find_wrong_here(world: World) -> str | None:
    """Return what is wrong in one of the processes, whatever it reaches, if nothing is under way there."""
    claims = [claim for claim in world.judge.all_claims if _runs(claim.client)]
    found = (_of_told(world, claim) for claim in claims)
    wrong = next((each for each in found if each is not None), None)
    return wrong or next(_of_waiting(world), None) or next(_of_outages(world), None)


def _runs(client: Client) -> bool:
    return not client.process.is_dead and not client.process.is_stopped


def _of_told(world: World, claim: Claim) -> str | None:
    """Look for a hold that is lost, or is to be released, and whose caller was not told."""
    contender, name, held = claim.contender, claim.client.name, claim.held
    is_over = claim.is_released or (held is not None and held.released)
    if contender.lost is not None:
        is_reading = contender.loss_reason_pending and contender.state is not State.GONE
        if held is not None and not is_reading and not claim.told >= {"lost", "when lost"}:
            return f"{name} was not told that its lock is lost"
    elif not is_over:
        if contender.state is not State.HELD:
            return f"the lock of {name} is given up, and not lost"
        # A connection that stands still is found at a heartbeat.
        if claim.client.process.now() > contender.session.lease_end + SESSION_TIMEOUT / 3:
            return f"the lease of {name} has ended, and its lock is not lost"
    if held is not None and not is_over and contender.revoked is not None and "revoked" not in claim.told:
        return f"{name} was not told that a release was requested"
    return None


def _of_waiting(world: World) -> Iterator[str]:
    """Look for callers that wait for what is decided, and for answers for too long."""
    for client in world.judge.acquiring:
        acquisition = client.acquisition
        if acquisition is None or not _runs(client):
            continue
        contender, process = acquisition.contender, client.process
        # The holder of a lock that is taken is read first.
        is_decided = contender.state is State.HELD or contender.error is not None
        if is_decided or (client.cancelling is not None and client.cancelling.cancelled):
            yield f"{client.name} waits, and its wait is over"
        since = world.judge.first_seen.setdefault(contender, process.now())
        is_late = process.now() > since + process.plan.connect_timeout + 1
        is_answered = contender.answered or contender.is_taken
        if is_late and client.plan.way != "gate" and not (acquisition.timeout or is_answered):
            yield f"{client.name} has no answer, and waits for one"


def _of_outages(world: World) -> Iterator[str]:
    """Look for waiters without a deadline that have waited for a connection for too long."""
    for process in world.processes:
        if process.is_dead or process.is_stopped:
            continue
        limit = SESSION_TIMEOUT + process.plan.connect_timeout + 1
        for session in process.pool._started().values():
            wire: Any = session.wire
            if session.connected or process.now() < wire.alone_since + limit:
                continue
            for contender in [each for each in session.listeners if isinstance(each, Contender)]:
                is_waiting = contender.state in {State.JOINING, State.WAITING}
                if is_waiting and contender.answered and not contender.has_deadline:
                    yield f"{process.name} has no connection, and a caller waits for one"


def _of_sessions(tree: Tree, world: World) -> Iterator[str]:
    # A lease is granted by what the client of the one before it writes, or by its end.
    sessions = [each for process in world.processes if not process.is_dead for each in process.pool._started().values()]
    connected = {each.id for each in sessions if each.connected and not each._refused and not each.wire.watches.lost}
    away = {parent_of(path) for path, node in tree.nodes.items() if node.owner and node.owner not in connected}
    # What no client may read, none can watch: it is read again at each heartbeat.
    touched, since = world.judge.touched, world.now - SESSION_TIMEOUT / 3
    untold = {parent_of(path) for path in world.ensemble.forbidden if touched.get(path, 0.0) > since}
    for process in world.processes:
        for name, session in () if process.is_dead else process.pool._started().items():
            # A pause after a refusal ends by a timer.
            if not session.connected or session.wire.watches.lost or session._refused or session.closing:
                continue
            if session._inbox:
                yield f"a call that was posted to session {name} of {process.name} waits"
            yield from _of_contenders(tree, process.name, session, away, untold)


def _of_contenders(tree: Tree, name: str, session: Session, away: set[str], untold: set[str]) -> Iterator[str]:
    for contender in [each for each in session.listeners if isinstance(each, Contender)]:
        places = contender.places
        if contender.state not in {State.JOINING, State.WAITING} or any(place.node is None for place in places):
            continue
        if any(place.path in untold for place in places):
            continue
        gone = [place.node for place in places if f"{place.path}/{place.node}" not in tree.nodes]
        if gone:
            yield f"{name} waits with a node that is gone: {gone[0]}"
        elif contender.rule.limit is not None and any(place.path in away for place in places):
            continue
        elif all(contender.rule.holds(place.node or "", queue_of(tree, place.path)) for place in places):
            yield f"{name} waits although nothing is before it: {places[0].node}"


def _of_holders(world: World) -> str | None:
    """Look for holders that have not learned for heartbeats what was done to their nodes."""
    judge, nodes, since = world.judge, world.ensemble.head.nodes, world.now - SESSION_TIMEOUT / 3
    for claim in judge.claims:
        session, name = claim.session, claim.client.name
        if claim.granted_at > since or any(path in world.ensemble.forbidden for path in claim.paths):
            continue
        if any(judge.touched.get(path, 0.0) > since for path in claim.paths):
            continue
        if not session.connected or session.wire.watches.lost or session._refused or not claim.believes():
            continue
        if any(path not in nodes for path in claim.paths):
            return f"{name} believes in a node that was deleted long ago"
        if claim.contender.revoked is None and any(decode_revoke(nodes[path].data) for path in claim.paths):
            return f"{name} has not learned that a release was requested"
    return None


def _of_tries(world: World) -> str | None:
    """Look for callers that do not want to wait, and do; the holder is not asked for again after a connection."""
    for client in world.judge.acquiring if world.is_calm and not world.was_struck else ():
        sessions = client.process.pool._started().values()
        is_well = bool(sessions) and all(each.connected and not each._refused and not each.closing for each in sessions)
        if is_well and not client.process.is_dead and client.plan.turns[client.turn].timeout == 0.0:
            return f"{client.name} has only tried, and waits"
    return None


def waits_behind_others(tree: Tree, path: str) -> bool:
    """Whether the contender of a node waits, in any of its queues, behind one of another session."""
    own = parse_name(name_of(path))
    if own is None:
        return False
    for above in [each for each, node in tree.nodes.items() if node.children and each.count("/") == 2]:
        queue = queue_of(tree, above)
        mine = next((node for node in queue if node.guid == own.guid), None)
        rule = RULES[own.kind] if own.limit is None else semaphore(own.limit)
        if mine is not None and not rule.holds(mine.name, queue):
            others = queue.before(mine.name, rule.conflicts | {own.kind})
            if any(tree.nodes[f"{above}/{each.name}"].owner != tree.nodes[path].owner for each in others):
                return True
    return False


def is_awaited(tree: Tree, path: str, others: Sequence[str]) -> bool:
    """Whether a call waits before that of a node which runs the same as it, or as one of the others.

    The name of a call that no other one may leave for does not say what it runs.
    """
    queue = queue_of(tree, parent_of(path))
    nodes = {node.name: node for node in queue}
    own, *named = [nodes[name_of(each)] for each in (path, *others)]
    runs = {node.mark.run for node in (own, *named)}
    return any(
        not (RULES[node.kind] if node.limit is None else semaphore(node.limit)).holds(node.name, queue)
        for node in queue.before(own.name, frozenset({own.kind}))
        if node.mark.run in runs
    )
