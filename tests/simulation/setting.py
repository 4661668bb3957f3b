"""The settings of worlds, drawn from a seed: who is there, what they want, and which kinds of faults strike.

A world has few kinds of faults, at high rates: with all of them at once nothing gets far enough to go wrong. It gives
each kind of step a weight of its own, so that in some worlds the answers of a server are rare, and in others the
steps of callers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from django_zklock.zk.queue import SEQUENCE_END, SEQUENCE_MARGIN
from tests.simulation.callers import CallerPlan, Turn
from tests.simulation.processes import ProcessPlan
from tests.simulation.servers import PING_INTERVAL, SESSION_TIMEOUT, SYNC_LIMIT

# What strikes, and how often, beside a step that nothing hinders. A world draws some of these.
FAULTS = {
    "cut": 0.03,
    "part client": 0.01,
    "part servers": 0.012,
    "split": 0.02,
    "freeze": 0.006,
    "leave leader": 0.008,
    "stop": 0.01,
    "kill": 0.002,
    "close": 0.004,
    "break": 0.006,
    "revoke": 0.006,
    "reap": 0.2,
    "refuse": 0.03,
    "refuse done": 0.03,
    "wipe": 0.0007,
}
# Kinds that belong together. A world draws one to three of one family, so that few kinds of faults meet often.
FAMILIES = {
    "lease": ("split", "part client", "part servers", "leave leader", "freeze", "stop"),
    "servers": ("part servers", "leave leader", "freeze", "split", "cut"),
    "answers": ("cut", "refuse done", "refuse", "leave leader", "part client"),
    "operators": ("break", "revoke", "reap", "cut", "refuse"),
    "processes": ("kill", "close", "stop", "cut"),
    "all": tuple(FAULTS),
}
# These end by a step of their own.
ENDS = {"heal": 0.015, "thaw": 0.05, "continue": 0.05}
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

THEMES = (
    "exclusive", "readers", "leases", "several", "several", "coalesce", "coalesce", "mixed", "nested",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One world, before its first step."""

    seed: int
    servers: int = 1
    processes: tuple[ProcessPlan, ...] = (ProcessPlan(),)
    callers: tuple[CallerPlan, ...] = ()
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
    patience: float = SYNC_LIMIT
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
    def most_keys(self) -> int:
        """The most keys of one lock."""
        return max((len(turn.keys) for caller in self.callers for turn in caller.turns), default=1)


def draw(seed: int, ways: tuple[str, ...] | None = None) -> Setting:
    """Draw a setting."""
    dice = Random(f"setting {seed}")
    theme = dice.choice(THEMES)
    family = dice.choice(
        ("calm", "lease", "lease", "lease", "servers", "answers", "answers", "operators", "processes", "all")
    )
    is_calm = family == "calm"
    faults = {} if is_calm else _faults(dice, family)
    sways = {kind: 10 ** dice.uniform(-1.0, 1.0) if dice.random() < 0.4 else 1.0 for kind in NORMAL}
    weights = {kind: weight * sways[kind] for kind, weight in {**NORMAL, **ENDS}.items() if kind in sways}
    weights |= {kind: weight * 10 ** dice.uniform(-0.7, 0.7) for kind, weight in ENDS.items()}
    weights |= faults
    is_strict = dice.random() < 0.1
    count = dice.choice((2, 2, 3) if family == "lease" else (1, 2, 2, 2, 3))
    # Closing matters where one key has contenders in several sessions.
    small = dice.random() < (0.5 if "close" in faults else 0.15)
    processes = tuple(
        ProcessPlan(
            rate=dice.choice((1.0, 1.0, 0.981, 1.019)),
            size=dice.choice((1, 1, 1, 2)) if theme != "several" else 1,
            strict=is_strict,
            budget=dice.choice((130, 180, 260)) if small else 500_000,
        )
        for _ in range(count)
    )
    is_long = family == "lease" or dice.random() < 0.3
    callers = tuple(
        CallerPlan(
            process=dice.randrange(count),
            way=dice.choice(ways or ("blocking", "blocking", "coroutines", "gate")),
            turns=tuple(
                _turn(dice, theme, is_long) for _ in range(dice.choice((1, 2) if family == "lease" else (1, 2, 3)))
            ),
        )
        for _ in range(dice.choice((2, 2, 3) if family == "lease" else (2, 3, 3, 4, 5)))
    )
    near_end = (SEQUENCE_END - SEQUENCE_MARGIN - 2, SEQUENCE_END - 2)
    return Setting(
        seed=seed,
        servers=1 if dice.random() < 0.2 and family not in {"lease", "servers"} else 3,
        processes=processes,
        callers=callers,
        weights=weights,
        is_calm=is_calm,
        is_fine=dice.random() < 0.3,
        is_prompt=dice.random() < (0.7 if family == "lease" else 0.4),
        rarely=0.0 if is_calm else dice.choice((0.0, 0.0, 0.005, 0.02)),
        leader=0,
        starves=dice.choice((0.0, 0.0, 0.005, 0.02)),
        keeps_strays=family == "servers" and dice.random() < 0.5,
        patience=dice.choice((SYNC_LIMIT, PING_INTERVAL, PING_INTERVAL)),
        first_number=dice.choice(near_end) if dice.random() < 0.08 else 0,
        haste=dice.choice((0.0, 0.02, 0.1, 0.3)),
        stride=dice.choice((0.1, 0.5, 1.5, SESSION_TIMEOUT / 3)),
    )


def _faults(dice: Random, family: str) -> dict[str, float]:
    kinds = dice.sample(FAMILIES[family], dice.choice((1, 2, 2, 3)))
    return {kind: FAULTS[kind] * 10 ** dice.uniform(-0.3, 0.7) for kind in kinds}


def _turn(dice: Random, theme: str, is_long: bool) -> Turn:
    rules = {
        "exclusive": ["exclusive"],
        "readers": ["read", "read", "write"],
        "leases": ["lease of 1", "lease of 2", "lease of 2", "lease of 3"],
        "several": ["exclusive", "exclusive", "read"],
        "coalesce": ["exclusive", "exclusive", "exclusive", "lease of 2"],
        "mixed": ["exclusive", "read", "write", "lease of 1", "lease of 2"],
        "nested": ["exclusive", "write"],
    }[theme]
    keys: tuple[str, ...] = ("a",)
    if theme == "several":
        keys = dice.choice((("a",), ("b",), ("a", "b"), ("a", "b"), ("a", "b", "c")))
    lasts = dice.choice((SESSION_TIMEOUT, 3 * SESSION_TIMEOUT)) if is_long else 0.2
    # Who holds for long is to be waited for.
    timeouts = (
        (None, None, None, None, None, 0.0, 2 * SESSION_TIMEOUT) if is_long else (None, None, None, 0.0, 0.05, 3.0)
    )
    return Turn(
        keys=keys,
        rule=dice.choice(rules),
        timeout=dice.choice(timeouts),
        pause=dice.choice((0.0, 0.0, 0.5, SESSION_TIMEOUT / 5)),
        work=tuple(lasts * dice.uniform(0.3, 1.0) for _ in range(dice.choice((1, 2)))),
        is_nested=theme == "nested" and dice.random() < 0.7,
        is_released_elsewhere=dice.random() < 0.3,
        confirms=dice.random() < 0.2,
        runs=dice.choice(("f", "f", "g", None)) if theme == "coalesce" else None,
        gives_up_after=dice.uniform(0.0, SESSION_TIMEOUT / 2) if dice.random() < 0.15 else None,
    )
