"""A world: servers, network, processes and callers as data, in one thread, and one step after the other.

Each step has a name that says all about it. A run draws the names of its steps from a seed, and the same names, given
again, lead to the same world; so a list of steps can be cut down, and told.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from greenlet import getcurrent

from django_zklock.zk import background
from tests.simulation import deliveries, faults, operators
from tests.simulation.callers import Client, Loop
from tests.simulation.judge import Judge, Violation
from tests.simulation.neighbours import Neighbour
from tests.simulation.network import Network
from tests.simulation.processes import ROOT, Process, ProcessPlan, Strand
from tests.simulation.servers import PING_INTERVAL, SESSION_TIMEOUT, Ensemble
from tests.simulation.tree import Change, name_of

if TYPE_CHECKING:
    from tests.simulation.setting import Setting
    from tests.simulation.steps import Step

Told = tuple[float, str, str, str]
"""The time, the sender, the receiver, and what is told."""

# More deliveries than these at one moment never end.
ENDLESS = 20_000
# Session timeouts without any progress after which a caller is stuck.
STUCK = 8
STUCK_BEHIND = 30
MOST_CALM_STEP = round(SESSION_TIMEOUT / 14, 4)
# Where a step is not the usual one, how often it is a fault.
STRIKES_MORE = 0.7
# The step that ends all faults.
END = "end faults"


class Errors(logging.Handler):
    """Keeps the errors that the package has logged with a traceback, and the nodes that waiters have lost."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.lost: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts.append(logging.Formatter().format(record))
        elif "event=place_lost " in (text := record.getMessage()):
            self.lost.append(text.rpartition("node=")[2])


@contextmanager
def quiet() -> Iterator[Errors]:
    """Let the package log errors alone, to the handler that this yields."""
    logger, errors = logging.getLogger("django_zklock"), Errors()
    level, propagates, enabled = logger.level, logger.propagate, gc.isenabled()
    logger.setLevel(logging.ERROR)
    logging.getLogger("django_zklock.contender").setLevel(logging.WARNING)
    logger.addHandler(errors)
    logger.propagate = False
    # What lives on is the same at each run then.
    gc.disable()
    try:
        yield errors
    finally:
        # What it had to say comes late.
        background.flush_log()
        logger.removeHandler(errors)
        logger.setLevel(level)
        logging.getLogger("django_zklock.contender").setLevel(logging.NOTSET)
        logger.propagate = propagates
        if enabled:
            gc.enable()


class World:
    """One world. ``steps`` counts its steps, and ``now`` is its time in seconds."""

    def __init__(self, setting: Setting, *, is_recorded: bool = False) -> None:
        self.setting = setting
        self.now = 0.0
        self.steps = 0
        # From when on nothing can be lost any more.
        self.quiet_from = math.inf
        self.decisions: list[str] = []
        self.is_recorded = is_recorded
        self.story: list[Told] = []
        # What all strands go back to when they wait; and those that run, the innermost last.
        self.hub = getcurrent()
        self.running: list[Strand] = []
        self.is_judging = False
        self.was_wiped = False
        # A calm world loses one server at most.
        self.was_struck = False
        self.is_calm = setting.is_calm
        self.network = Network()
        self.ensemble = Ensemble(setting.servers, self.network, self.note, leader=setting.leader)
        self.ensemble.keeps_strays = setting.keeps_strays
        self.ensemble.sync_limit = setting.sync_limit
        for number, server in enumerate(self.ensemble.servers):
            server.reported_at = -PING_INTERVAL * number / len(self.ensemble.servers)
        self._make_root()
        self.judge = Judge(self)
        self.processes = [Process(self, f"P{number + 1}", plan) for number, plan in enumerate(setting.processes)]
        self.operator: Process | None = None
        if any(kind in setting.weights for kind in operators.BY_CODE):
            self.operator = Process(self, "operator", ProcessPlan())
            self.processes.append(self.operator)
        self.clients_of: dict[Strand, Client] = {}
        self.loops: dict[Process, Loop] = {}
        self.weights = setting.weights
        self._strikes = not setting.is_calm or "lose server" in setting.weights
        self._drains = Random(f"drains {setting.seed}")
        self.clients = [
            Client.ways[plan.way](self, self.processes[plan.process], number + 1, plan)
            for number, plan in enumerate(setting.callers)
        ]
        self.neighbours = [Neighbour(self, number + 1, plan) for number, plan in enumerate(setting.neighbours)]
        for client in self.clients:
            client.start()

    def note(self, who: str, whom: str, what: str) -> None:
        """Tell what happens, if anyone wants to know."""
        if self.is_recorded:
            self.story.append((self.now, who, whom, what))

    def loop_of(self, process: Process) -> Loop:
        """Return the event loop of a process."""
        if process not in self.loops:
            self.loops[process] = Loop(process)
        return self.loops[process]

    def _make_root(self) -> None:
        leader = self.ensemble.newest_leader
        assert leader is not None
        leader.propose([Change("create", ROOT, made=1)])
        first = self.setting.first_number
        if first:
            keys = sorted({key for caller in self.setting.callers for turn in caller.turns for key in turn.keys})
            for key in keys:
                path = f"{ROOT}/{key}"
                leader.propose([Change("create", path, made=1)])
                # As if so many had come before.
                leader.propose([Change("create", f"{path}/other", made=first), Change("delete", f"{path}/other")])
        for each in self.ensemble.servers:
            if each is not leader:
                while len(each.log) < len(leader.log):
                    each.replicate()
                leader.hear(each)
        for each in self.ensemble.servers:
            while each.may_apply:
                each.apply()

    # The run.

    @property
    def is_over(self) -> bool:
        """Whether all callers are."""
        is_done = all(client.is_over or client.process.is_dead for client in self.clients)
        return is_done and all(neighbour.is_over for neighbour in self.neighbours)

    def run(self, steps: int) -> None:
        """Draw so many steps, and come to the end."""
        dice = Random(f"steps {self.setting.seed}")
        haste, is_prompt = self.setting.haste, self.setting.is_prompt
        starved, starves_until = "", 0
        for _ in range(steps):
            if self.is_over:
                break
            found = deliveries.find(self)
            if not found:
                self.judge.check_idle()
            if starved and self.steps < starves_until:
                found = [each for each in found if starved not in each[1]]
            elif found and dice.random() < self.setting.starves:
                starved, starves_until = dice.choice(found)[1].partition(" ")[2], self.steps + dice.randint(5, 200)
            if self.setting.rarely:
                self.take(self._mostly_usual(dice, found))
                continue
            # In a prompt world time goes on when everything has arrived; in others, at any moment.
            if not (found and is_prompt):
                if dice.random() < haste:
                    found = []
                found.append(self._time(dice))
            if self._strikes:
                found += faults.find(self)
            self.take(dice.choices(found, [weight for weight, _, _ in found])[0])
        self.finish()

    def replay(self, decisions: Sequence[str], *, comes_to_end: bool = True) -> None:
        """Take these steps, without those that are not possible, and come to the end, or stop there."""
        for name in decisions:
            if name == END:
                step: Step = 1.0, name, self._end_faults
            elif name.startswith("time "):
                step = 1.0, name, partial(self.pass_time, float(name[5:]))
            else:
                found = [each for each in self.possible() if each[1] == name]
                if not found:
                    continue
                step = found[0]
            self.take(step)
        if comes_to_end:
            self.finish()

    def _mostly_usual(self, dice: Random, found: Sequence[Step]) -> Step:
        """Return the step that comes first, or time if nothing is under way, and rarely another one, mostly a fault."""
        is_other = dice.random() < self.setting.rarely
        strikes = faults.find(self) if self._strikes and is_other else []
        if strikes and dice.random() < STRIKES_MORE:
            return dice.choices(strikes, [weight for weight, _, _ in strikes])[0]
        if is_other or not found:
            return dice.choice([*found, self._time(dice)])
        return found[0]

    def _time(self, dice: Random) -> Step:
        most = MOST_CALM_STEP if self.is_calm else self.setting.stride
        seconds = round(most * dice.choice((0.01, 0.1, 0.5, 1.0)), 4)
        return self.weights["time"], f"time {seconds}", partial(self.pass_time, seconds)

    def take(self, step: Step) -> None:
        """Take a step, and look whether all is well."""
        self.steps += 1
        self.decisions.append(step[1])
        step[2]()
        self.judge.look()

    def pass_time(self, seconds: float) -> None:
        """Let time go on; in a calm world, only after all that is under way has arrived."""
        if self.is_calm:
            self.drain()
            self.judge.check_idle()
        self.advance(seconds)
        self.judge.check_budgets()

    def advance(self, seconds: float) -> None:
        """Let time go on at the clocks, and at the servers."""
        end = self.now + seconds
        for process in self.processes:
            due = process.due
            if due is not None and not process.is_dead and not process.is_stopped:
                end = min(end, max(self.now + 0.0001, process.moment(due)))
        while self.now < end:
            # The end of a session comes at its own moment.
            ends = [each.next_end for each in self.ensemble.servers if each.leads and each.sessions]
            self.now = min([end, self.now + PING_INTERVAL / 1.25, *(each for each in ends if each > self.now)])
            for server in self.ensemble.servers:
                server.report(self.now)
            for server in self.ensemble.servers:
                server.watch_leader(self.now)
                if server.leads and not server.is_frozen:
                    server.expire(self.now)
            self.judge.look()

    def drain(self) -> None:
        """Take all steps that only bring what is under way further."""
        for _ in range(ENDLESS):
            found = deliveries.find(self)
            if not found:
                return
            step = self._drains.choice(found)
            if self.is_calm:
                # A step of time takes these again.
                self.steps += 1
                step[2]()
                self.judge.look()
            else:
                self.take(step)
        raise Violation("it never ends: there is always something under way")

    def finish(self) -> None:
        """End all faults, and let everyone come to the end."""
        self.take((1.0, END, self._end_faults))
        progress, since = None, self.now
        while not self.is_over:
            self.drain()
            self.judge.check_idle()
            signs = [(client.turn, client in self.judge.began, client.is_over) for client in self.clients]
            signs.append((len(self.judge.claims), False, False))
            signs += [(0, neighbour.holds, neighbour.is_over) for neighbour in self.neighbours]
            if signs != progress:
                progress, since = signs, self.now
            # A holder may work for long.
            if self.now - since > (STUCK_BEHIND if self.judge.claims else STUCK) * SESSION_TIMEOUT:
                waiting = [client.name for client in self.clients if not client.is_over]
                held = sorted(self.ensemble.head.ephemerals())
                raise Violation(f"stuck: {', '.join(waiting)}; nodes: {' '.join(held)}")
            self.take(self._calm_time())
        for _ in range(3 * 14):
            self.drain()
            self.take(self._calm_time())
        # A session that a leader without a majority has ended has its nodes until the next leader ends it too.
        while self.now < max(self.quiet_from, self.ensemble.elected_at + SESSION_TIMEOUT) + PING_INTERVAL:
            self.drain()
            self.take(self._calm_time())
        self.drain()
        self.judge.check_end()

    def _calm_time(self) -> Step:
        return 1.0, f"time {MOST_CALM_STEP}", partial(self.pass_time, MOST_CALM_STEP)

    def _end_faults(self) -> None:
        faults.end_all(self)
        self.quiet_from = self.now + SESSION_TIMEOUT
        # No server refuses anything either.
        self.weights = {kind: weight for kind, weight in self.weights.items() if kind in deliveries.KINDS}
        self._strikes = False

    def close(self) -> None:
        """Leave nothing behind."""
        for claim in self.judge.claims:
            if claim.held is not None:
                claim.held.released = True
        self.is_judging = True
        for process in self.processes:
            process.forget()
        for loop in self.loops.values():
            loop.abandon()

    def wake(self, strand: Strand) -> None:
        """Let a strand go on."""
        strand.go_on()
        if strand.is_over:
            strand.process.strands.remove(strand)
        elif (client := self.clients_of.get(strand)) is not None:
            self.judge.check_wait(client, strand)

    def wipe(self) -> None:
        """Let the servers lose their data."""
        self.note("operator", "all", "the servers have lost their data")
        self.was_wiped = True
        self.ensemble.wipe(self.now)
        self._make_root()

    def possible(self) -> list[Step]:
        """Return all steps that are possible now."""
        found = deliveries.find(self)
        if self._strikes:
            found += faults.find(self)
        return found


def check_log(errors: Errors, world: World) -> None:
    """Fail if the package has caught an error and logged it, or has lost a place that nothing has taken."""
    background.flush_log()
    # A server may bring some of its nodes back where it keeps strays. One that leaves for another call may not learn
    # that it has.
    may_skip = any(turn.runs for client in world.clients for turn in client.plan.turns)
    if errors.lost and not (world.was_wiped or world.ensemble.keeps_strays or may_skip):
        gone = {name_of(path) for path in world.judge.broken} | world.ensemble.ended_with_sessions()
        if lost := set(errors.lost) - gone:
            raise Violation(f"a waiter has lost its place, and no operator has deleted its node: {min(lost)}")
    if errors.texts:
        text, errors.texts[:] = errors.texts[0], []
        raise Violation(f"an error was caught: {text.splitlines()[-1]}\n{text}")
