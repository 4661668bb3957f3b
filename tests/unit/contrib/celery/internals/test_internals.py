"""The table of what is used of Celery, kombu and billiard, checked with the installed versions and with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import celery
import pytest

from django_zklock.contrib.celery import internals

pytestmark = [pytest.mark.celery, pytest.mark.oldest]

PACKAGE = Path(internals.__file__).parent
TESTS = Path(__file__).parents[4]


class Row(NamedTuple):
    """What uses names of modules of Celery, and the module of tests that notices when they change."""

    here: str
    names: str
    test: str


def rows(text: str) -> Iterator[Row]:
    """Yield the rows of the tables in ``text``; a line without a first cell belongs to the row before."""
    rule = next(line for line in text.splitlines() if line.startswith("==="))
    columns = list(pairwise([0, *(each.end() for each in re.finditer("=+ ?", rule))]))
    lines = [line for table in text.split(f"{rule}\nHere")[1:] for line in table.split(rule)[1].splitlines() if line]
    found: list[list[str]] = []
    for line in lines:
        cells = [line[start:end] for start, end in columns]
        if cells[0].strip():
            found.append(cells)
        else:
            found[-1] = list(map(" ".join, zip(found[-1], cells, strict=True)))
    for cells in found:
        here, names, _without, test = (" ".join(cell.split()) for cell in cells)
        yield Row(here, names, test)


def names_of(row: Row) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
    """Yield each module of a row, its names, and the version from which on it has them."""
    for part in row.names.split("; "):
        module, names, version = re.fullmatch(r"([\w.]+): ([\w ]+?)(?: \(([\d.]+)\))?", part).groups()  # type: ignore[union-attr]
        module = module if module.startswith(("kombu.", "billiard.")) else f"celery.{module}"
        yield module, names.split(), tuple(map(int, (version or "0").split(".")))


def identifiers(path: Path) -> set[str]:
    """Return the names in the code of a module, and the texts that could be names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


ROWS = list(rows(internals.__doc__ or ""))
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def test_rows() -> None:
    """The tables are read whole: each module of the package is there."""
    assert sorted({row.here.partition(".")[0] for row in ROWS}) == MODULES
    assert len(ROWS) > 35


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.here} {row.names.split(';')[0]}")
def test_row(row: Row) -> None:
    """What the row names is in the installed Celery, in the package and among the tests."""
    module, _, function = row.here.partition(".")
    assert hasattr(import_module(f"{internals.__name__}.{module}"), function)
    folders = (TESTS / "unit" / "contrib" / "celery", TESTS / "integration" / "celery")
    assert [path for folder in folders for path in folder.rglob(f"{row.test}.py")], row.test
    for name, names, since in names_of(row):
        spec = find_spec(name) if celery.VERSION[:2] >= since else None
        assert spec is not None or celery.VERSION[:2] < since, name
        assert spec is None or set(names) <= identifiers(Path(spec.origin or "")), name


def private(names: Iterable[str]) -> set[str]:
    return {name for name in names if re.fullmatch(r"_[a-z]\w*|__then__", name)}


@pytest.mark.parametrize("module", MODULES)
def test_private_names__are_in_the_table(module: str) -> None:
    """Each private name that a module uses, and has not defined itself, is in its rows."""
    path = PACKAGE / f"{module}.py"
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    listed = {
        name for row in ROWS for _, names, _ in names_of(row) for name in names if row.here.startswith(f"{module}.")
    }
    assert private(identifiers(path)) - own - listed == set()


def test_private_names__nowhere_else() -> None:
    """No other module uses a private name of Celery: ruff finds those that are not marked."""
    modules = [path for path in PACKAGE.parent.rglob("*.py") if path.parent != PACKAGE]
    assert len(modules) > 10
    marks = ("SLF001", "celery._", '"_orig_run"')
    assert [path.name for path in modules for mark in marks if mark in path.read_text(encoding="utf-8")] == []
