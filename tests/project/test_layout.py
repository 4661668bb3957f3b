"""The tests are where CONTRIBUTING.md says: ``tests/unit`` mirrors the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import django_zklock

PACKAGE = Path(django_zklock.__file__).parent
UNIT = Path(__file__).resolve().parents[1] / "unit"
MODULES = sorted(str(path.relative_to(UNIT)) for path in UNIT.rglob("test_*.py"))
# What mirrors no module, and why.
OTHERS = {
    "admin/test_translation.py": "the catalogue of German texts",
}

pytestmark = pytest.mark.once


def mirrored(module: str) -> list[str]:
    """Return the modules and packages that a module of tests can be about: an aspect may follow the name."""
    folder = PACKAGE / Path(module).parent
    words = Path(module).stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    places = [path for name in names for path in (folder / f"{name}.py", folder / f"{name}_.py", folder / name)]
    found = [str(path.relative_to(PACKAGE)) for path in places if path.exists()]
    # A folder's own tests may lie in it.
    return found + [folder.name for name in names if name == folder.name]


@pytest.mark.parametrize("module", MODULES)
def test_unit__mirrors_the_package(module: str) -> None:
    """A module of unit tests is named after a module of the package, or after a package."""
    assert bool(mirrored(module)) != (module in OTHERS), f"tests/unit/{module} is named after no module"


def test_mirrored() -> None:
    """The name of a module counts, with an aspect or without; another name does not."""
    assert mirrored("test_conf.py") == ["conf.py"]
    assert mirrored("zk/test_queue_rules.py") == ["zk/queue.py"]
    assert mirrored("doctor/test_doctor.py") == ["doctor"]
    assert mirrored("zk/test_nonsense.py") == []
