"""The documents name tests: each of them exists, and every fault has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "_build" not in page.parts)
NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FAULTS = re.split(r"^### ", (DOCS / "explanation" / "faults.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_"))


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [
        f"{path}::{test}"
        for path, test in NAME.findall(text)
        if not (ROOT / path).exists() or test not in names_in(path)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_pages__name_tests_that_exist(page: str) -> None:
    """Each test that a page names exists."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert missing(text) == []
    # No test is named in another form, which would be overlooked.
    assert text.count(".py::") == len(NAME.findall(text))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.partition("\n")[0] for fault in FAULTS])
def test_faults__each_is_shown(fault: str) -> None:
    """Every fault says what the lock does, and which tests show it."""
    _heading, *paragraphs = re.split(r"^## ", fault, flags=re.MULTILINE)[0].strip().split("\n\n")
    words, tests = paragraphs
    assert words
    assert [line for line in tests.split("\n") if not NAME.fullmatch(line.removesuffix("\\"))] == []


def test_missing() -> None:
    """A test or a file that does not exist is reported."""
    here = "tests/project/test_docs_faults.py"
    assert missing(f"`{here}::test_missing` `{here}::test_gone` `tests/test_gone.py::test_gone`") == [
        f"{here}::test_gone",
        "tests/test_gone.py::test_gone",
    ]


OWNERSHIP = (DOCS / "explanation" / "ownership.md").read_text(encoding="utf-8")
PAIRS = [line.strip("| ").split(" | ") for line in OWNERSHIP.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair[0]}, {pair[1]}" for pair in PAIRS])
def test_ownership__each_pair_is_shown(pair: list[str]) -> None:
    """Every row of the table of owners has a result, and the test that shows it."""
    _taken, _asked, results, test = pair
    assert set(results.split(", ")) <= {"re-enters", "waits", "raises"}
    assert NAME.fullmatch(test)
