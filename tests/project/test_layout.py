"""Tests are where CONTRIBUTING.md says, ``tests/unit`` mirrors the package, and configurations name what exists."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from itertools import product
from pathlib import Path

import pytest

import django_zklock

PACKAGE = Path(django_zklock.__file__).parent
TESTS = Path(__file__).resolve().parents[1]
# Each folder of unit tests, with the package that it mirrors.
MIRRORS = {TESTS / "unit": PACKAGE, TESTS / "testserver" / "unit": PACKAGE / "testing" / "server"}
MODULES = sorted(str(path.relative_to(TESTS)) for unit in MIRRORS for path in unit.rglob("test_*.py"))
# What mirrors no module, and why.
OTHERS = {
    "unit/admin/test_translation.py": "the catalogue of German texts",
}

pytestmark = pytest.mark.once


def mirrored(module: str) -> list[str]:
    """Return the modules and packages that a module of tests can be about: an aspect may follow the name."""
    unit, package = next((unit, package) for unit, package in MIRRORS.items() if unit in (TESTS / module).parents)
    folder = package / (TESTS / module).parent.relative_to(unit)
    words = Path(module).stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    places = [path for name in names for path in (folder / f"{name}.py", folder / f"{name}_.py", folder / name)]
    found = [str(path.relative_to(PACKAGE)) for path in places if path.exists()]
    # A folder's own tests may lie in it.
    return found + [folder.name for name in names if name == folder.name]


def test_unit__mirrors_the_package() -> None:
    """Each module of unit tests is named after a module of the package, or after a package."""
    assert MODULES
    assert [module for module in MODULES if bool(mirrored(module)) == (module in OTHERS)] == []


def test_mirrored() -> None:
    """The name of a module counts, with an aspect or without; another name does not."""
    assert mirrored("unit/test_conf.py") == ["conf.py"]
    assert mirrored("unit/zk/test_queue_rules.py") == ["zk/queue.py"]
    assert mirrored("unit/doctor/test_doctor.py") == ["doctor"]
    assert mirrored("unit/zk/test_nonsense.py") == []
    assert mirrored("testserver/unit/test_faults_of_nodes.py") == ["testing/server/faults.py"]


def test_architecture__says_where_to_change_what() -> None:
    """Each file and folder in the table exists."""
    page = (TESTS.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where to change what")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    cells = [cell for _subject, code, tests in rows for cell in ((PACKAGE, code), (TESTS, tests))]
    paths = [folder / path for folder, cell in cells for path in re.findall(r"`([\w/.]+)`", cell)]
    assert [path for path in paths if not path.exists()] == []


def alternatives(pattern: str) -> list[str]:
    """Return the patterns without braces that a pattern stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(choice) for choice in product(*parts)]


def test_configurations__name_what_there_is() -> None:
    """Each pattern for files in pyproject.toml, and each file without coverage, is of a file."""
    root = TESTS.parent
    ruff = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    setup = ConfigParser(interpolation=None)
    setup.read(root / "setup.cfg", encoding="utf-8")
    omitted = [line for line in setup["coverage:run"]["omit"].splitlines() if line and not line.startswith("#")]
    patterns = [each for pattern in [*ruff["per-file-ignores"], *omitted] for each in alternatives(pattern)]
    assert len(patterns) > 20
    assert [each for each in patterns if not any(root.glob(each))] == []
