"""The setting of a world: its servers and processes, what its callers want, and which kinds of faults strike."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.callers import CallerPlan
from tests.simulation.neighbours import NeighbourPlan
from tests.simulation.processes import ProcessPlan
from tests.simulation.servers import SYNC_LIMIT

# What strikes, and how often, beside a step that nothing hinders. A world draws some of these.
FAULTS = {
    "cut": 0.03,
    "part client": 0.01,
    "part servers": 0.012,
    "split": 0.02,
    "freeze": 0.006,
    "leave leader": 0.008,
    "lag": 0.01,
    "stop": 0.01,
    "kill": 0.002,
    "close": 0.004,
    "break": 0.006,
    "revoke": 0.006,
    "break by code": 0.006,
    "revoke by code": 0.006,
    "reap": 0.2,
    "forbid": 0.01,
    "refuse": 0.03,
    "refuse done": 0.03,
    "wipe": 0.0007,
    # In a calm world too.
    "lose server": 0.02,
}
# These end by a step of their own.
ENDS = {"heal": 0.015, "thaw": 0.05, "continue": 0.05, "catch up": 0.015}
NORMAL = {
    "connect": 2.0,
    "serve": 6.0,
    "receive": 6.0,
    "flush": 6.0,
    "timer": 4.0,
    "call": 4.0,
    "wake": 3.0,
    "loop": 5.0,
    "replicate": 4.0,
    "ack": 4.0,
    "apply": 4.0,
    "elect": 1.0,
    "join": 1.0,
    "fail": 2.0,
    "forget": 0.3,
    "time": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One world, before its first step."""

    seed: int
    # The name of the scene, if it is one.
    scene: str = ""
    servers: int = 1
    processes: tuple[ProcessPlan, ...] = (ProcessPlan(),)
    callers: tuple[CallerPlan, ...] = ()
    neighbours: tuple[NeighbourPlan, ...] = ()
    # The weights of all kinds of steps that happen.
    weights: dict[str, float] = field(default_factory=dict)
    # Nothing strikes, and what is sent arrives before time goes on: then no lock may be lost.
    is_calm: bool = False
    # Callers stop at each look at a clock.
    is_fine: bool = False
    keeps_strays: bool = False
    # The number of the first leader among the servers.
    leader: int = 0
    # Seconds after which a server that does not hear its leader looks for another one.
    sync_limit: float = SYNC_LIMIT
    # Time goes on only when all that is under way has arrived, but for what is starved.
    is_prompt: bool = False
    # If it is not 0, how likely a step is that is not the usual one; no weight of a delivery counts then.
    rarely: float = 0.0
    # How likely it is, at each step, that one link, server, process or caller is starved for a number of steps.
    starves: float = 0.0
    # The number of the first node in each queue; and how likely time goes on although there is something to do.
    first_number: int = 0
    haste: float = 0.1
    # The longest step of time, in seconds.
    stride: float = 1.0

    @property
    def name(self) -> str:
        """What finds this world again: its seed, and its scene."""
        return f"seed {self.seed}" + (f" of {self.scene}" if self.scene else "")

    @property
    def most_keys(self) -> int:
        """The most keys of one lock."""
        return max((len(turn.keys) for caller in self.callers for turn in caller.turns), default=1)
