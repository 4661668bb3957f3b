"""Faults to be planted into the package, as changes to its text: the search must find each of them.

``plants.txt`` has them, and the world that finds each. Those with a commit were in the package until that one mended
them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# The first steps of small worlds that are explored.
DEPTH = 60

PACKAGE = Path(__file__).resolve().parents[2] / "django_zklock"


@dataclass(frozen=True)
class Plant:
    """One fault: in a file of the package, some lines in the place of others, which may be parts of lines."""

    name: str
    file: str
    old: str
    new: str
    # The commit that has mended it, if it was there once.
    mended_by: str = ""
    # Why no world can find it, if that is so.
    harmless: str = ""
    # How it is found: "seed 728", "seed 728 of leases", or "small world 3".
    found_by: str = ""

    @property
    def module(self) -> str:
        """The name of the module that it is in."""
        return "django_zklock." + self.file.removesuffix(".py").replace("/", ".")


def _read(text: str) -> Iterator[Plant]:
    """Read the faults: a name, facts, and the lines that go (``-``) and come (``+``)."""
    for block in text.split("\n# ")[1:]:
        name, *lines = block.rstrip().split("\n")
        facts = {
            key: line[len(key) + 1 :]
            for line in lines
            for key in ("mended by", "harmless:", "found by", "in")
            if line.startswith(f"{key} ")
        }
        old, new = ("\n".join(line[1:] for line in lines if line[:1] == sign) for sign in "-+")
        rest = [facts.get(key, "") for key in ("mended by", "harmless:", "found by")]
        yield Plant(name, facts["in"], old, new, *rest)


LIST = Path(__file__).with_name("plants.txt")
PLANTS = tuple(_read("\n" + LIST.read_text(encoding="utf-8")))


def get(name: str) -> Plant:
    """Return the plant with that name."""
    return next(each for each in PLANTS if each.name == name)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with a fault, and keeps no bytecode of it."""

    plant: Plant

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        if self.plant.old not in text:
            raise LookupError(f"{self.plant.file} does not have the text of {self.plant.name!r} any more")
        return text.replace(self.plant.old, self.plant.new, 1).encode()

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError(path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._plant.module:
            return None
        loader = _Loader(fullname, str(PACKAGE / self._plant.file))
        loader.plant = self._plant
        return importlib.util.spec_from_loader(fullname, loader)


def plant(name: str) -> None:
    """Let this process have that fault. The package must not be imported yet."""
    planted = get(name)
    if planted.module in sys.modules:
        raise RuntimeError(f"{planted.module} is imported already")
    sys.meta_path.insert(0, _Finder(planted))


# The search for each. A process can have one fault only, so each has a process of its own.


def find(planted: Plant, seconds: float) -> tuple[str, str]:
    """Return how a fault is found, by the recorded way or else within so many seconds of search, and the reason.

    Both say "not found in … worlds" and nothing if it is not.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            plant(planted.name)
            os.write(writer, "\n".join(_find(planted.found_by, seconds)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as printed:
        found, _, reason = printed.read().partition("\n")
    os.waitpid(child, 0)
    return found or "ended without a word", reason


def _find(way: str, seconds: float) -> tuple[str, str]:
    # Not before the fault is planted.
    from tests.simulation.explore import explore, small_settings
    from tests.simulation.search import search

    recorded, _, scene = way.partition(" of ")
    kind, _, number = recorded.rpartition(" ")
    if kind == "small world":
        figures = explore(list(small_settings())[int(number)], deviations=1, depth=DEPTH)
    elif kind == "seed":
        figures = search([int(number)], scene=scene)
    if way and figures.failures:
        return way, figures.failures[0].reason.split("\n", 1)[0]
    ends = time.monotonic() + seconds
    # Others of its scene are the likeliest.
    figures = search(itertools.count(), scene=scene or None, seconds=seconds / 2)
    if not figures.failures:
        figures = search(itertools.count(), seconds=seconds / 2)
    if figures.failures:
        return figures.failures[0].setting.name, figures.failures[0].reason.split("\n", 1)[0]
    for position, setting in enumerate(small_settings()):
        small = explore(setting, deviations=1, depth=DEPTH, seconds=ends - time.monotonic())
        if small.failures:
            return f"small world {position}", small.failures[0].reason.split("\n", 1)[0]
    return f"not found in {figures.worlds} worlds", ""


def record(found: dict[str, str]) -> None:
    """Note in the list how each of these faults is found, by its name."""
    blocks = LIST.read_text(encoding="utf-8").split("\n# ")
    for number, block in enumerate(blocks):
        name, *lines = block.removeprefix("# ").split("\n")
        if name in found:
            lines = [line for line in lines if not line.startswith(("found by ", "not found in "))]
            fact = found[name] if found[name].startswith("not") else f"found by {found[name]}"
            blocks[number] = "\n".join([("# " if not number else "") + name, fact, *lines])
    LIST.write_text("\n# ".join(blocks), encoding="utf-8")
