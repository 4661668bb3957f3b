"""Scenes: small worlds in which few things meet that belong together, and of which a few steps are not the usual ones.

What goes wrong needs two or three things at the right moments. The fewer steps a world has besides, the likelier they
meet; so a scene has few callers, and one or two kinds of faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from random import Random
from typing import Any

from django_zklock.zk.queue import SEQUENCE_END, SEQUENCE_MARGIN
from tests.simulation import swarm
from tests.simulation.callers import CallerPlan, Turn
from tests.simulation.neighbours import RECIPES, NeighbourPlan
from tests.simulation.processes import ProcessPlan
from tests.simulation.servers import PING_INTERVAL, SESSION_TIMEOUT, SYNC_LIMIT
from tests.simulation.setting import ENDS, FAULTS, NORMAL, Setting

EXCLUSIVE = ("exclusive",)
READERS = ("read", "read", "write")
PERMITS = ("lease of 1", "lease of 2", "lease of 2", "lease of 3")
MIXED = ("exclusive", "read", "write", "lease of 1", "lease of 2")
ANY = (EXCLUSIVE, EXCLUSIVE, READERS, PERMITS, MIXED)
# How long a hold lasts, in seconds.
SHORT = (0.05, 0.2)
LONG = (SESSION_TIMEOUT / 2, 1.7 * SESSION_TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One kind of small world: what its callers ask for, and what strikes."""

    kinds: Sequence[str]
    # How many of these strike, and how much more often than in a swarm.
    strikes: Sequence[int] = (1, 1, 2)
    rates: Sequence[float] = (1.0,)
    rules: Sequence[Sequence[str]] = ANY
    keys: Sequence[tuple[str, ...]] = (("a",),)
    processes: Sequence[int] = (1, 2, 2, 3)
    callers: Sequence[int] = (2, 3, 3, 4)
    turns: Sequence[int] = (1, 1, 2)
    servers: Sequence[int] = (1, 1, 3)
    lasts: tuple[float, float] = SHORT
    pauses: Sequence[float] = (0.0, 0.0, 0.01, 0.1, 0.3)
    # What holds for each turn, by the names of its fields, and what is drawn for it.
    turn: dict[str, Sequence[Any]]
    process: dict[str, Sequence[Any]]
    setting: dict[str, Sequence[Any]]
    # Whether another caller of the first process takes a lock of its own again and again.
    is_busy: bool = False


def _scene(kinds: str, *, turn: Any = (), process: Any = (), setting: Any = (), **facts: Any) -> Scene:
    return Scene(kinds=tuple(kinds.split(", ")) if kinds else (), turn=dict(turn), process=dict(process),
                 setting=dict(setting), **facts)  # fmt: skip


FUNCTIONS = {"runs": ("f", "f", "f", "g", None)}
MAY_END = {**FUNCTIONS, "gives_up_after": (None, 0.1, 0.3)}
IMPATIENT = {"timeout": (None, 0.0, 0.05, 0.5), "gives_up_after": (None, 0.0, 0.01, 0.1, 1.0)}
STRAYS = {"keeps_strays": (True,), "sync_limit": (PING_INTERVAL,)}
FAR = {"leader": (0, 2, 2), "sync_limit": (PING_INTERVAL, SYNC_LIMIT)}
NUMBERS = {"first_number": (SEQUENCE_END - SEQUENCE_MARGIN - 2, SEQUENCE_END - 2)}
ALONE = (EXCLUSIVE,)
BOTH = (("a", "b"), ("a", "b"), ("a",), ("b",), ("a", "b", "c"))

NEIGHBOURS = [
    tuple(
        NeighbourPlan(recipe=recipe, comes_at=comes_at, work=work, becomes_reader=comes_at < 0.1)
        for recipe, comes_at, work in zip(pair, moments, (0.3, 1.0), strict=True)
    )
    for pair in combinations_with_replacement(RECIPES, 2)
    for moments in ((0.0, 0.02), (0.02, 0.3), (0.3, 0.0))
]

SCENES = {
    "queue": _scene("cut, break, revoke, refuse, refuse done, part client, reap"),
    "operators": _scene("break, revoke, break by code, revoke by code", processes=(1, 2), lasts=(0.1, 1.0)),
    "unseen": _scene(
        "break, revoke, part client", strikes=(3,), processes=(2,), callers=(2, 3), servers=(1,), lasts=(0.3, 4.0),
        rules=(EXCLUSIVE, READERS), turns=(1,), setting={"rarely": (0.05, 0.1)},
    ),
    "outages": _scene("cut, part client", processes=(2,), lasts=(0.2, 1.0), servers=(1,)),
    "untold": _scene(
        "revoke, cut, part client, refuse", strikes=(3, 4), processes=(1, 2), callers=(1, 2), rules=ALONE, servers=(1,),
        lasts=(1.0, 8.0), setting={"rarely": (0.05, 0.1)},
    ),
    "leases": _scene("revoke, break, cut, kill", rules=(PERMITS,), callers=(3, 4, 5), lasts=(0.2, 2.0)),
    "keys": _scene(
        "cut, break, part client, refuse", strikes=(2,), rules=ALONE, callers=(2, 3), keys=BOTH, lasts=(0.1, 1.0),
    ),
    "half": _scene(
        "cut, break", strikes=(1, 2), rates=(1.0, 100.0), rules=ALONE, callers=(2,), processes=(2,),
        keys=(("a", "b"), ("a",), ("b",)), servers=(1,), turns=(2, 5), lasts=(0.0, 0.3),
        setting={"rarely": (0.05, 0.1, 0.2, 0.4)},
    ),
    "skip": _scene(
        "part client, break, kill", rules=ALONE, turn=FUNCTIONS, callers=(3, 4), processes=(2,),
        setting={"starves": (0.0, 0.02, 0.05)},
    ),
    "may end": _scene("cut", rules=(EXCLUSIVE, ("lease of 1",)), turn=MAY_END, callers=(3, 4), lasts=(0.1, 0.5)),
    "nested": _scene(
        "", callers=(1, 2), rules=(EXCLUSIVE, ("write",)), setting={"is_fine": (True, True, False)},
        turn={"is_nested": (True,), "is_released_elsewhere": (True, True, False)},
    ),
    "impatient": _scene("cut, refuse, part client, refuse done", turn=IMPATIENT),
    "tries": _scene(
        "revoke, cut", rules=(EXCLUSIVE, READERS), turn={"timeout": (None, 0.0)}, lasts=(0.3, 2.0), strikes=(0, 1),
    ),
    "long": _scene(
        "split, part client, stop, freeze, leave leader", rules=ALONE, servers=(3,), lasts=LONG, callers=(2,),
        processes=(2,), turns=(1,), process={"rate": (1.0, 0.981, 1.019)}, setting=FAR,
    ),
    "busy": _scene(
        "split", rules=ALONE, servers=(3,), lasts=LONG, callers=(2,), processes=(2,), turns=(1,), setting=FAR,
        is_busy=True,
    ),
    "strays": _scene(
        "split, part servers, leave leader", servers=(3,), processes=(2,), setting=STRAYS, lasts=(0.1, 1.0),
    ),
    "strict": _scene("cut, part client, leave leader", process={"strict": (True,)}),
    "full": _scene(
        "close, cut, refuse, kill", process={"budget": (130, 180, 260), "size": (1, 1, 2)}, processes=(1, 1, 2),
        callers=(3, 4, 5), turn={"gives_up_after": (None, None, 0.0, 0.1)},
    ),
    "calm": _scene(
        "", lasts=(0.1, 1.6 * SESSION_TIMEOUT), callers=(2, 3, 4), processes=(2, 3), turns=(1,),
        keys=(("a",), ("a",), ("a", "b")),
    ),
    "lost server": _scene("lose server", lasts=LONG, servers=(3,), processes=(2,), callers=(2,), turns=(1,)),
    "numbers": _scene("cut, break, kill", setting=NUMBERS),
    "ends": _scene("close, kill", process={"size": (1, 2)}, lasts=(0.1, 2.0)),
    "asleep": _scene("stop", callers=(2, 3), lasts=(0.1, SESSION_TIMEOUT), processes=(2,)),
    "behind": _scene(
        "lag, cut, refuse", strikes=(2, 3, 3), servers=(3,), callers=(1, 2, 3), rules=(READERS, PERMITS, EXCLUSIVE),
        setting={"leader": (0, 2, 2), "rarely": (0.02, 0.05, 0.1)},
    ),
    "refusals": _scene("refuse, refuse done"),
    "forbidden": _scene("forbid, cut"),
    "neighbours": _scene(
        "cut, part client, revoke, break", rules=(EXCLUSIVE, READERS, MIXED), strikes=(0, 1), callers=(1, 2, 3),
        lasts=(0.1, 1.0), setting={"neighbours": tuple(NEIGHBOURS)},
    ),
    "nested kinds": _scene(
        "", callers=(2, 3), rules=(MIXED,), lasts=(0.1, 1.0), turn={"is_nested": (True,), "inner": MIXED},
    ),
    "many tries": _scene(
        "", rules=(PERMITS, EXCLUSIVE), keys=BOTH, turn={"timeout": (None, 0.0)}, lasts=(0.3, 2.0),
    ),
    "shared keys": _scene(
        "revoke, cut, refuse", rules=(READERS, EXCLUSIVE), keys=BOTH, strikes=(1, 2), callers=(3, 4), processes=(2,),
        servers=(1,), lasts=(0.1, 1.0), setting={"rarely": (0.05, 0.1, 0.2)},
    ),
    "unreadable": _scene("forbid, break, revoke", strikes=(2, 3), lasts=(1.0, 8.0), processes=(2,), turns=(1,)),
    "skip leases": _scene(
        "cut, break", rules=(PERMITS,), turn={"runs": ("f", "f", "g")}, callers=(4, 5), strikes=(0, 1),
    ),
    "skip strays": _scene(
        "split, part servers, leave leader", rules=ALONE, turn=FUNCTIONS, callers=(3, 4), servers=(3,), processes=(2,),
        setting=STRAYS, lasts=(0.1, 1.0),
    ),
    "overflow": _scene(
        "", process={"budget": (130, 180, 260)}, processes=(1, 1, 2), callers=(3, 4), turns=(1,),
        lasts=(2 * SESSION_TIMEOUT, 9 * SESSION_TIMEOUT),
    ),
    "refused": _scene("refuse, refuse done, cut", lasts=LONG, processes=(2,), turns=(1,), servers=(1,)),
    "hidden strays": _scene(
        "split, part servers, leave leader, refuse", strikes=(2, 3), servers=(3,), processes=(2,), setting=STRAYS,
        lasts=(0.1, 1.0),
    ),
    "last numbers": _scene(
        "break", rules=(READERS,), strikes=(0, 1), callers=(2, 3), lasts=(0.1, 1.0),
        # Others go by the numbers, which are in order there still.
        setting={"first_number": (SEQUENCE_END - SEQUENCE_MARGIN - 2,), "neighbours": tuple(NEIGHBOURS)},
    ),
    "idle": _scene(
        "cut, part client, part servers, split, leave leader, freeze, stop, refuse", servers=(3,), processes=(1, 2),
        callers=(2, 3), rules=(EXCLUSIVE, READERS, PERMITS), keys=(("a",), ("a",), ("a", "b")), turns=(2, 3),
        pauses=(0.0, *(factor * SESSION_TIMEOUT for factor in (4.2, 4.5, 5.0))), lasts=(0.1, SESSION_TIMEOUT / 2),
        setting=FAR,
    ),
}  # fmt: skip


def scene_of(seed: int) -> str:
    """Return the name of the scene that a seed leads to, empty if it leads to a swarm."""
    return tuple(SCENES)[seed // 2 % len(SCENES)] if seed % 2 else ""


def draw(seed: int, scene: str | None = None) -> Setting:
    """Draw a setting: of this scene, or of a swarm if it is empty; by itself each odd seed leads to a scene."""
    name = scene_of(seed) if scene is None else scene
    return _draw(Random(f"scene {seed}"), seed, name) if name else swarm.draw(seed)


def _draw(dice: Random, seed: int, name: str) -> Setting:
    scene = SCENES[name]
    count = dice.choice(scene.processes)
    kinds = dice.sample(scene.kinds, min(dice.choice(scene.strikes), len(scene.kinds)))
    # In a calm world one server may be lost.
    is_calm = not kinds or kinds == ["lose server"]
    # Of one rate nothing is drawn.
    rate = dice.choice(scene.rates) if len(scene.rates) > 1 else scene.rates[0]
    weights = {**NORMAL, **ENDS, **{kind: rate * FAULTS[kind] for kind in kinds}}
    rules = dice.choice(scene.rules)
    process = {field: dice.choice(values) for field, values in scene.process.items()}
    callers = [
        CallerPlan(
            process=number if number < count else dice.randrange(count),
            way="blocking" if name == "nested" else dice.choice(("blocking", "blocking", "coroutines", "gate")),
            turns=tuple(_turn(dice, scene, rules) for _ in range(dice.choice(scene.turns))),
        )
        for number in range(dice.choice(scene.callers))
    ]
    if scene.is_busy:
        turn = Turn(keys=("b",), pause=dice.uniform(0.05, 0.5), work=(0.05,))
        callers.append(CallerPlan(process=0, turns=(turn,) * 15))
    setting = Setting(
        seed=seed,
        scene=name,
        servers=dice.choice(scene.servers),
        processes=(ProcessPlan(**process),) * count,
        callers=tuple(callers),
        weights=weights,
        is_calm=is_calm,
        rarely=0.0 if is_calm else dice.choice((0.01, 0.02, 0.05)),
        starves=dice.choice((0.0, 0.0, 0.02)),
        stride=dice.choice((0.5, SESSION_TIMEOUT / 7, SESSION_TIMEOUT / 3)),
    )
    return replace(setting, **{field: dice.choice(values) for field, values in scene.setting.items()})


def _turn(dice: Random, scene: Scene, rules: Sequence[str]) -> Turn:
    turn = Turn(
        keys=dice.choice(scene.keys),
        rule=dice.choice(rules),
        pause=dice.choice(scene.pauses),
        work=tuple(dice.uniform(*scene.lasts) for _ in range(dice.choice((1, 2)))),
        confirms=dice.random() < 0.1,
    )
    return replace(turn, **{field: dice.choice(values) for field, values in scene.turn.items()})
