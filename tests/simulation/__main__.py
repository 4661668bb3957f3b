"""``python -m tests.simulation --seconds 3600``: worlds one after the other; ``--seed 728`` tells that one."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation import plants

if TYPE_CHECKING:
    from tests.simulation.search import Failure

# Nothing depends on the order of a set; if that is ever wrong, a seed leads to the same world all the same.
HASHES = "PYTHONHASHSEED"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run worlds for some time; return 1 if something was wrong."""
    if os.environ.get(HASHES) != "0":
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, HASHES: "0"}
        )
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new worlds begin (%(default)s)")
    parser.add_argument("--worlds", type=int, help="how many worlds there are, in place of a time")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one (%(default)s)")
    parser.add_argument("--failures", type=int, default=1, help="how many worlds may go wrong before this ends")
    parser.add_argument("--steps", type=int, help="steps of a world before it comes to its end")
    parser.add_argument("--seed", type=int, help="run this world alone, and tell each step")
    parser.add_argument("--scene", metavar="NAME", help="worlds of this scene alone")
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds to cut a wrong world down (%(default)s)")
    parser.add_argument("--explore", type=int, metavar="N", help="explore small worlds, up to so many deviations")
    parser.add_argument("--small", type=int, metavar="N", help="explore that one of the small worlds alone")
    parser.add_argument("--depth", type=int, default=60, help="among so many first steps (%(default)s)")
    parser.add_argument("--plant", metavar="NAME", help="plant this fault first, which the search is to find")
    parser.add_argument("--plants", action="store_true", help="plant each fault, and find it by the recorded way")
    parser.add_argument("--record", action="store_true", help="record how each fault is found")
    parser.add_argument("--folder", type=Path, help="where pictures of wrong worlds are left")
    arguments = parser.parse_args()
    if arguments.plants:
        return find_all(arguments.seconds, records=arguments.record)
    if arguments.plant is not None:
        plants.plant(arguments.plant)
    # Not before the fault is planted.
    from tests.simulation.search import STEPS, search

    if arguments.explore is not None:
        return explore_all(arguments.explore, arguments.depth, arguments.small)
    steps = arguments.steps or STEPS
    if arguments.seed is not None:
        return tell(arguments.seed, arguments.scene, steps)
    last = None if arguments.worlds is None else arguments.first + arguments.worlds
    seeds = itertools.count(arguments.first) if last is None else range(arguments.first, last)
    seconds = arguments.seconds if last is None else None
    figures = search(seeds, scene=arguments.scene, seconds=seconds, most_failures=arguments.failures, steps=steps)
    planted = f" --plant '{arguments.plant}'" if arguments.plant else ""
    for failure in figures.failures:
        setting = failure.setting
        say(f"{setting.name}: {failure.reason}")
        say(f"""to see all of it: make simulate ARGS="--seed {setting.seed} --scene '{setting.scene}'{planted}\"""")
    say(str(figures))
    if figures.failures and arguments.max_time:
        explain(
            figures.failures[0], arguments.max_time, arguments.folder or Path(tempfile.mkdtemp(prefix="simulation-"))
        )
    return 1 if figures.failures else 0


def explain(failure: Failure, max_time: float, folder: Path) -> None:
    """Cut a wrong world down, and tell and draw what is left of it."""
    from tests.simulation.drawing import as_svg, as_text
    from tests.simulation.search import run
    from tests.simulation.shrink import shrink

    say(f"{len(failure.decisions)} steps are cut down for at most {max_time:.0f} s")
    small = shrink(failure, max_time=max_time, tell=say)
    world, _ = run(small.setting, decisions=small.decisions, comes_to_end=small.comes_to_end, is_recorded=True)
    for number, caller in enumerate(small.setting.callers):
        say(f"caller {number + 1}: {caller}")
    say("\n".join(["steps:", *(f"  {step}" for step in small.decisions)]))
    say(as_text(world.story))
    say(small.reason)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"seed-{failure.setting.seed}.svg"
    picture.write_text(as_svg(world, small.reason.splitlines()[0]), encoding="utf-8")
    say(f"drawn in {picture}")


def explore_all(deviations: int, depth: int, only: int | None) -> int:
    """Explore the small worlds whole, to that depth, or one of them; return 1 if something was wrong."""
    from tests.simulation.explore import explore, small_settings
    from tests.simulation.setting import FAULTS

    wrong = 0
    for number, setting in enumerate(small_settings()):
        if only not in {None, number}:
            continue
        figures = explore(setting, deviations=deviations, depth=depth)
        (kind,) = FAULTS.keys() & setting.weights.keys()
        rules = ", ".join(caller.turns[0].rule for caller in setting.callers)
        for failure in figures.failures:
            wrong = 1
            say(failure.reason)
        say(f"{number}: {kind}; {rules}: {figures}")
    return wrong


def find_all(seconds: float, *, records: bool) -> int:
    """Find each planted fault, by the recorded way or in so many seconds; return 1 if one was missed.

    With ``records`` the list notes how each was found, and those are searched too that were not.
    """
    missed, found = 0, {}
    for each in plants.PLANTS:
        if each.harmless or not (records or each.found_by):
            continue
        way, reason = plants.find(each, seconds)
        if way != each.found_by:
            found[each.name] = way
        missed += not reason
        say(f"{each.name}\t{way}\t{reason}")
    if records:
        plants.record(found)
    return 1 if missed else 0


def tell(seed: int, scene: str | None, steps: int) -> int:
    """Run one world, and tell its story: each message with its sender and receiver, and each belief in a hold."""
    from tests.simulation.drawing import as_text
    from tests.simulation.scenes import draw
    from tests.simulation.search import run

    world, failure = run(draw(seed, scene), steps=steps, is_recorded=True)
    say(as_text(world.story))
    say("nothing is wrong" if failure is None else failure.reason)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
