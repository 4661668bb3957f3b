"""Swarms: settings drawn at random, with few kinds of faults at high rates.

With all kinds at once nothing gets far enough to go wrong. Each kind of step has a weight of its own in each world, so
that in some worlds the answers of a server are rare, and in others the steps of callers.
"""

from __future__ import annotations

from random import Random

from django_zklock.zk.queue import SEQUENCE_END, SEQUENCE_MARGIN
from tests.simulation.callers import CallerPlan, Turn
from tests.simulation.processes import ProcessPlan
from tests.simulation.servers import PING_INTERVAL, SESSION_TIMEOUT, SYNC_LIMIT
from tests.simulation.setting import ENDS, FAULTS, NORMAL, Setting

# Kinds that belong together. A world draws one to three of one family, so that few kinds of faults meet often.
FAMILIES = {
    "lease": ("split", "part client", "part servers", "leave leader", "freeze", "stop"),
    "servers": ("part servers", "leave leader", "freeze", "split", "cut", "lag"),
    "answers": ("cut", "refuse done", "refuse", "leave leader", "part client", "lag"),
    "operators": ("break", "revoke", "break by code", "revoke by code", "reap", "forbid", "cut", "refuse"),
    "processes": ("kill", "close", "stop", "cut"),
    "all": tuple(kind for kind in FAULTS if kind != "lose server"),
}

THEMES = (
    "exclusive", "readers", "leases", "several", "several", "coalesce", "coalesce", "mixed", "nested",
)  # fmt: skip


def draw(seed: int) -> Setting:
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
            way=dice.choice(("blocking", "blocking", "coroutines", "gate")),
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
        sync_limit=dice.choice((SYNC_LIMIT, PING_INTERVAL, PING_INTERVAL)),
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
    # A long hold is to be waited for.
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
