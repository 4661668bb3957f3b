"""The properties: what must hold after every step, and what must hold at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.protocol.serialization import Delete

from django_zklock.exceptions import AlreadyAwaited, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.acquire import HOLDER_READ_GRACE
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held
from django_zklock.zk.wire.requests import EPHEMERAL_SEQUENTIAL, LENGTH_FIELD
from tests.simulation import idle
from tests.simulation.callers import MEANINGS
from tests.simulation.servers import SESSION_TIMEOUT

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
    from django_zklock.zk.queue import Rule
    from django_zklock.zk.session import Session
    from tests.simulation.callers import Client, Turn
    from tests.simulation.processes import Process, Strand
    from tests.simulation.tree import Tree
    from tests.simulation.world import World


class Violation(BaseException):
    """A property does not hold."""


@dataclass(eq=False)
class Claim:
    """A grant: a caller believes in it until it releases it, or can tell that it is lost."""

    client: Client
    turn: Turn
    contender: Contender
    held: Held | None
    rule: Rule
    token: int
    paths: tuple[str, ...]
    granted_at: float
    is_released: bool = False
    # Whether the caller has believed in it at the last look.
    is_believed: bool = False
    # The signals that were sent, and "when lost" for the call that was to come then.
    told: set[str] = field(default_factory=set)

    @property
    def session(self) -> Session:
        """The session that it depends on."""
        return self.contender.session

    def believes(self) -> bool:
        """Whether the caller would be told that it holds, if it asked at this moment."""
        contender = self.contender
        if self.is_released or (self.held is not None and self.held.released):
            return False
        if contender.lost is not None or contender.state is not State.HELD:
            return False
        if self.client.process.is_dead or contender.session.lease_expired:
            return False
        return self.held is None or self.held._possession._seen_loss is None

    def conflicts_with(self, other: Claim) -> bool:
        """Whether both must never hold at once; leases are counted instead."""
        if self.contender is other.contender:
            # One is nested in the other.
            return False
        shares = bool(set(self.turn.keys) & set(other.turn.keys))
        return shares and (other.rule.kind in self.rule.conflicts or self.rule.kind in other.rule.conflicts)


@dataclass
class Judge:
    """Watches one world."""

    world: World
    claims: list[Claim] = field(default_factory=list)
    # With those that are released.
    all_claims: list[Claim] = field(default_factory=list)
    # Of each key: the rule and token of each grant, in order.
    grants: dict[str, list[Claim]] = field(default_factory=dict)
    # When an operator has done something to a node.
    touched: dict[str, float] = field(default_factory=dict)
    # The nodes that an operator has deleted, whose holders may learn of it late; and those that waited then.
    broken: set[str] = field(default_factory=set)
    broken_waiting: set[str] = field(default_factory=set)
    # The sessions of pools that are being closed, and which contenders have held then.
    closing: dict[Session, set[Contender] | None] = field(default_factory=dict)
    # The steps at which a process has created nodes.
    creations: dict[Process, list[int]] = field(default_factory=dict)
    # The moments at which calls of a function have begun to run, and at which calls were skipped for another one.
    runs: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    skipped: list[tuple[tuple[str, ...], int, float, str]] = field(default_factory=list)
    # When a call that others may be skipped for has failed, with an error for its caller.
    failed: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    # The step and the moment at which a caller has begun to acquire.
    began: dict[Client, tuple[int, float]] = field(default_factory=dict)
    # The signals that were sent for each hold that is no nested one.
    signals: dict[Held, set[str]] = field(default_factory=dict)
    # When a contender was first seen while nothing was under way, on the clock of its process.
    first_seen: dict[Contender, float] = field(default_factory=dict)
    # Callers that wait for a lock.
    acquiring: set[Client] = field(default_factory=set)
    # When a process has closed its pool, or was killed.
    ended: list[float] = field(default_factory=list)
    granted_count: int = 0
    refused_count: int = 0

    # What callers tell.

    def begins(self, client: Client, turn: Turn) -> None:
        """A caller begins to acquire."""
        self.world.is_judging = True
        self.acquiring.add(client)
        self.began[client] = self.world.steps, self.world.now
        self.world.note(client.name, client.name, f"wants {turn.rule} of {' '.join(turn.keys)}")
        self.world.is_judging = False

    def granted(self, client: Client, turn: Turn, what: Held | GateAcquisition) -> Claim:
        """A caller was granted what it wanted."""
        self.world.is_judging = True
        self.acquiring.discard(client)
        held = what if isinstance(what, Held) else None
        contender: Any = what._possession.contender if isinstance(what, Held) else what.contender
        paths = tuple(contender.node_paths.values())
        claim = Claim(client, turn, contender, held, MEANINGS[turn.rule], contender.token or 0, paths, self.world.now)
        self.granted_count += 1
        nodes = self.world.ensemble.head.nodes
        if any(nodes[path].czxid != contender.token for path in paths if path in nodes):
            raise Violation(f"{client.name} has a token that is not that of its nodes")
        # Nothing comes between the last look of the package and this one.
        is_sudden = not self.world.setting.is_fine and client.plan.way != "coroutines"
        if (is_sudden or self.world.is_calm) and not claim.believes():
            raise Violation(f"{client.name} was granted what it cannot believe in")
        if claim.believes():
            self.world.note(client.name, client.name, f"believes to hold {' '.join(turn.keys)}")
            for key in turn.keys:
                for earlier in self.grants.setdefault(key, []):
                    # The holder of a node that was deleted may learn of it late.
                    is_late = earlier.token >= claim.token and not self._is_broken(claim)
                    if is_late and claim.conflicts_with(earlier):
                        raise Violation(f"token {claim.token:x} of {client.name} after {earlier.token:x}")
                self.grants[key].append(claim)
        if turn.runs is not None:
            # Its body begins, and may find at once that the lock is lost.
            self.runs.setdefault((*turn.keys, turn.runs), []).append(self.world.steps)
        self.claims.append(claim)
        self.all_claims.append(claim)
        if held is not None:
            claim.told = self.signals.setdefault(held._possession.outermost() or held, claim.told)
            held._when_lost(partial(claim.told.add, "when lost"))
        self.world.is_judging = False
        return claim

    def told(self, event: str, held: Held) -> None:
        """A signal is sent for a hold, maybe before its caller has it."""
        self.signals.setdefault(held, set()).add(event)

    def refused(self, client: Client, turn: Turn, error: BaseException) -> None:
        """A caller was not granted what it wanted."""
        self.acquiring.discard(client)
        self.refused_count += 1
        self.world.note(client.name, client.name, f"gets nothing: {type(error).__name__}")
        if turn.timeout == 0.0 and isinstance(error, LockTimeout):
            self._check_try(client, turn)
        if isinstance(error, AlreadyAwaited):
            assert turn.runs is not None, "only such a call is skipped"
            self.skipped.append(((*turn.keys, turn.runs), *self.began[client], client.name))
        elif turn.runs is not None and turn.timeout is None and turn.gives_up_after is None:
            self.failed.setdefault((*turn.keys, turn.runs), []).append(self.world.now)
        self._check_error(client, turn, error)
        if (
            self.world.is_calm
            and not self.world.was_struck
            and isinstance(error, ZkLockError)
            and not isinstance(error, (LockTimeout, AlreadyAwaited))
        ):
            is_wanted = turn.gives_up_after is not None
            if not is_wanted:
                raise Violation(f"without a fault {client.name} gets {error!r}")

    def _check_error(self, client: Client, turn: Turn, error: BaseException) -> None:
        """No server has refused anything for good; and what the gate waits for no outage ends."""
        if type(error) is ZkLockError and not self.world.ensemble.forbidden and not self.world.was_wiped:
            raise Violation(f"nothing was refused for good, and {client.name} gets {error!r}")
        if client.plan.way == "gate" and isinstance(error, ZooKeeperUnavailable):
            session = client.acquisition.contender.session if client.acquisition is not None else None
            if turn.timeout is None and (session is None or not (session.closing or session.ended is not None)):
                raise Violation(f"an outage has ended the wait of {client.name} at the gate: {error!r}")

    def _check_try(self, client: Client, turn: Turn) -> None:
        """A try for what another one has held all the time leaves no trace."""
        began, moment = self.began[client]
        writes = [step for step in self.creations.get(client.process, ()) if step > began]
        is_alone = sum(each.process is client.process for each in self.world.clients) == 1
        # What an earlier call of this process has sent may arrive now.
        if not writes or not is_alone or client.turn:
            return
        rule = MEANINGS[turn.rule]
        for key in turn.keys:
            found = [each for each in self.claims if key in each.turn.keys and each.granted_at < moment]
            # The holder of a broken node may believe in it still.
            believing = [each for each in found if each.believes() and not self._is_broken(each)]
            limits = [each.rule.limit for each in believing if each.rule.limit is not None]
            is_full = rule.limit is not None and len(limits) >= min([rule.limit, *limits])
            if is_full or any(each.rule.kind in rule.conflicts for each in believing):
                raise Violation(f"{client.name} has only tried, and has created a node")

    def checked(self, claim: Claim) -> None:
        """A caller has made sure that it holds."""
        self.world.is_judging = True
        if not self.world.setting.is_fine and not claim.believes():
            raise Violation(f"the check of {claim.client.name} passes, and its lock is lost")
        self.world.is_judging = False

    def may_confirm(self, claim: Claim) -> bool:
        """Whether a release that waits has something to wait for, and can be confirmed."""
        return claim.contender.state is State.HELD and not claim.turn.is_nested

    def confirmed(self, claim: Claim, waited: float) -> None:
        """A release has returned that has waited for its confirmation."""
        world, session = self.world, claim.session
        timeout = claim.client.process.pool.options.connect_timeout
        if waited >= timeout:
            if world.is_calm and not world.was_struck:
                raise Violation(f"without a fault the release of {claim.client.name} was not confirmed")
            return
        is_excused = session.closing or session.ended is not None or world.was_wiped or world.ensemble.keeps_strays
        nodes = world.ensemble.head.nodes
        if not is_excused and any(path in nodes for path in claim.paths):
            raise Violation(f"{claim.client.name} was told that its node is deleted")

    def dropped(self, name: str, reason: str) -> None:
        """A session has dropped its connection."""
        if self.world.is_calm and not self.world.was_struck:
            raise Violation(f"without a fault {name} drops its connection: {reason}")

    def written(self, process: Process, request: Any, tree: Tree) -> None:
        """A leader, which has this tree, begins to write for a process."""
        parts = getattr(request, "operations", [request])
        calls = any(client.process is process for client in self.world.clients)
        if calls and hasattr(request, "operations") and isinstance(parts[-1], Delete):
            *others, own = [part.path for part in parts]
            if all(path in tree.nodes for path in (*others, own)) and not idle.is_awaited(tree, own, others):
                raise Violation(f"{process.name} skips a call, and no other one waits: {own}")
        if any(getattr(part, "flags", 0) == EPHEMERAL_SEQUENTIAL for part in parts):
            self.creations.setdefault(process, []).append(self.world.steps)

    def breaks(self, path: str, tree: Tree) -> None:
        """An operator is about to delete a node."""
        if idle.waits_behind_others(tree, path):
            self.broken_waiting.add(path)
        self.broken.add(path)
        self.touched[path] = self.world.now

    def lost(self, client: Client, turn: Turn, error: ZkLockError) -> None:
        """A caller has found that its lock is lost."""
        self.world.note(client.name, client.name, f"has lost {' '.join(turn.keys)}")
        if self.world.is_calm:
            raise Violation(f"without a fault {client.name} has lost its lock: {error}")

    def releases(self, claim: Claim) -> None:
        """A caller is about to release."""
        claim.is_released = True
        if claim not in self.claims:
            # Its process was killed.
            return
        self.claims.remove(claim)
        self.world.note(claim.client.name, claim.client.name, f"releases {' '.join(claim.turn.keys)}")

    def killed(self, process: Process) -> None:
        """A process is about to be killed, and what it holds ends with it."""
        self.ended.append(self.world.now)
        for claim in [each for each in self.claims if each.client.process is process]:
            self.claims.remove(claim)
            if claim.held is not None:
                claim.held.released = True

    def ends(self, client: Client, turn: Turn) -> None:
        """A turn is over."""
        self.began.pop(client, None)

    # After each step.

    def look(self) -> None:
        """Look at all clients that believe that they hold."""
        if self.closing:
            self._check_closing()
        if self.broken_waiting:
            self._check_broken()
        believing = []
        for claim in self.claims:
            is_believed = claim.believes()
            is_released = claim.held is not None and claim.held.released
            if claim.is_believed and not is_believed and not is_released:
                self.world.note(claim.client.name, claim.client.name, f"doubts {' '.join(claim.turn.keys)}")
                if self.world.is_calm:
                    raise Violation(f"without a fault {claim.client.name} has lost its lock")
                is_excused = self._is_broken(claim) or claim.session.closing or claim.session.ended is not None
                if self.world.now > self.world.quiet_from and not is_excused:
                    raise Violation(f"long after all faults {claim.client.name} has lost its lock")
            claim.is_believed = is_believed
            if is_believed:
                believing.append(claim)
        if not believing:
            return
        for position, one in enumerate(believing):
            for other in believing[position + 1 :]:
                if one.conflicts_with(other) and not self._is_broken(one) and not self._is_broken(other):
                    raise Violation(f"two hold at once: {one.client.name} and {other.client.name}")
            self._check_leases(one, believing)
            self._check_neighbours(one)
            self._check_server(one)

    def _check_closing(self) -> None:
        """No contender is granted a lock that the end of another session of the pool has freed."""
        for session, held in self.closing.items():
            if session.closing:
                one = [each for each in session.listeners if isinstance(each, Contender) and len(each.places) == 1]
                holding = {each for each in one if each.state is State.HELD}
                if held is None:
                    self.closing[session] = holding
                elif holding - held:
                    raise Violation(f"session {session.name} is being closed, and grants a lock")

    def _check_broken(self) -> None:
        """No contender is granted a lock with a node that was deleted while it waited, not even for a moment."""
        gone = self.broken_waiting - self.world.ensemble.head.nodes.keys()
        for process in [each for each in self.world.processes if not each.is_dead] if gone else ():
            for session in process.pool._started().values():
                contenders = [each for each in session.listeners if isinstance(each, Contender) and each.is_held]
                for contender in contenders:
                    if not gone.isdisjoint(contender.node_paths.values()) and not self.world.was_wiped:
                        raise Violation(f"{process.name} grants a lock with a node that was deleted while it waited")

    def check_idle(self) -> None:
        """Nothing is under way."""
        if (wrong := idle.find_wrong_here(self.world) or idle.find_wrong(self.world)) is not None:
            raise Violation(wrong)

    def _is_broken(self, claim: Claim) -> bool:
        return self.world.was_wiped or any(path in self.broken for path in claim.paths)

    def _check_leases(self, claim: Claim, believing: list[Claim]) -> None:
        limit = claim.rule.limit
        if limit is None or self._is_broken(claim):
            return
        others = [each for each in believing if each.rule.limit is not None and not self._is_broken(each)]
        for key in claim.turn.keys:
            leases = {each.contender: each for each in others if key in each.turn.keys}
            if len(leases) > limit:
                names = ", ".join(each.client.name for each in leases.values())
                raise Violation(f"{len(leases)} hold a lease of {limit}: {names}")

    def _check_neighbours(self, claim: Claim) -> None:
        for each in self.world.neighbours:
            meets = each.holds and each.key in claim.turn.keys and each.kind in claim.rule.conflicts
            is_true = not self._is_broken(claim) and each.path not in self.broken
            if meets and is_true and each.conflicts_with(claim.rule.kind, claim.token):
                raise Violation(f"two hold at once: {claim.client.name} and {each.name}")

    def _check_server(self, claim: Claim) -> None:
        """A client that believes that it holds has a session and nodes that the newest leader knows."""
        leader = self.world.ensemble.newest_leader
        if leader is None or self._is_broken(claim):
            return
        if claim.session.id is not None and claim.session.id not in leader.sessions:
            raise Violation(f"{claim.client.name} believes in a session that is over")
        for path in claim.paths:
            if path not in leader.head.nodes:
                raise Violation(f"{claim.client.name} believes in a node that is not there")
        if claim.client.process.plan.strict and not claim.session.wire.is_live:
            raise Violation(f"{claim.client.name} believes without a connection, and its pool is strict")

    def check_wait(self, client: Client, strand: Strand) -> None:
        """A caller goes to sleep: not beyond its own limit."""
        turn = client.plan.turns[client.turn]
        # One that may stop between any two looks at a clock counts from a later moment than this does.
        if client not in self.acquiring or not turn.timeout or self.world.setting.is_fine:
            return
        # At its end it reads the holder.
        process = client.process
        limit = max(process.at(self.began[client][1]) + turn.timeout, process.now()) + HOLDER_READ_GRACE + 0.001
        if strand.event is not None and (strand.wakes_at is None or strand.wakes_at > limit):
            raise Violation(f"{client.name} sleeps beyond its timeout")

    # From time to time.

    def check_budgets(self) -> None:
        """No session has more nodes than the server can write the end of, unless one lock alone needs them."""
        leader = self.world.ensemble.newest_leader
        if leader is None:
            return
        sizes: dict[int, list[int]] = {}
        for path, owner in leader.head.ephemerals().items():
            sizes.setdefault(owner, []).append(LENGTH_FIELD + len(path.encode()))
        budgets = {wire.session_id: process.plan.budget for process in self.world.processes for wire in process.wires}
        for session, lengths in sizes.items():
            budget = budgets.get(session)
            if budget is not None and sum(lengths) > budget and len(lengths) > self.world.setting.most_keys:
                raise Violation(f"session {session:x} has nodes of {sum(lengths)} bytes, and its budget is {budget}")

    # At the end.

    def check_end(self) -> None:
        """Nothing is left of anyone."""
        world = self.world
        if left := sorted(world.ensemble.head.ephemerals()):
            raise Violation(f"nodes are left: {' '.join(left)}")
        for process in world.processes:
            if process.is_dead:
                continue
            for name, session in process.pool._started().items():
                remains: dict[str, Any] = {
                    "used": session.used,
                    "listeners": len(session.listeners),
                    "watches": len(list(session.wire.watches)),
                    "deleting": len(session.deleting),
                    "refused": len(session._refused),
                }
                if any(remains.values()):
                    raise Violation(f"session {name} of {process.name} keeps {remains}")
            if (strand := next((each for each in process.strands if not each.is_over), None)) is not None:
                raise Violation(f"it never ends: {strand.name}")
        for server in world.ensemble.servers:
            if server.watches:
                raise Violation(f"{server.name} keeps watches: {list(server.watches)}")
        for what, step, began, name in self.skipped:
            # Documented: one that was waited for may fail, and its node stays as long as its session.
            failed = [*self.failed.get(what, ()), *self.ended]
            is_excused = any(each > began - 2 * SESSION_TIMEOUT for each in failed)
            if not is_excused and not any(run > step for run in self.runs.get(what, ())):
                raise Violation(f"{name} was skipped, and no call has run since")
