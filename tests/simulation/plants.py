"""Faults to be planted into the package, as changes to its text: the search must find each of them.

``plants.txt`` has them. Those with a commit were in the package until that commit mended them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

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
            for key in ("mended by", "harmless:", "in")
            if line.startswith(f"{key} ")
        }
        old, new = ("\n".join(line[1:] for line in lines if line[:1] == sign) for sign in "-+")
        yield Plant(name, facts["in"], old, new, facts.get("mended by", ""), facts.get("harmless:", ""))


PLANTS = tuple(_read("\n" + Path(__file__).with_name("plants.txt").read_text(encoding="utf-8")))


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
