"""The documents name tests: each of them exists, and every fault has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "_build" not in page.parts)
NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FAULTS = re.split(r"^### ", (DOCS / "explanation" / "faults.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@cache
def names_in(path: str) -> frozenset[str]:
    """Give the names of the tests in a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_"))


def missing(text: str) -> list[str]:
    """Give the tests that a text names and that there are not."""
    return [
        f"{path}::{test}"
        for path, test in NAME.findall(text)
        if not (ROOT / path).exists() or test not in names_in(path)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_pages__name_tests_that_exist(page: str) -> None:
    """Whatever test a page names is there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert missing(text) == []
    # Nor is any written in another way, and so overlooked.
    assert text.count(".py::") == len(NAME.findall(text))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.partition("\n")[0] for fault in FAULTS])
def test_faults__each_is_shown(fault: str) -> None:
    """Every fault says what the lock does, and by which tests that is shown."""
    _heading, *paragraphs = re.split(r"^## ", fault, flags=re.MULTILINE)[0].strip().split("\n\n")
    words, shown_by, tests = paragraphs
    assert words
    assert shown_by == "Shown by:"
    assert [line for line in tests.split("\n") if not NAME.fullmatch(line.removeprefix("- "))] == []


def test_missing() -> None:
    """A test or a file that there is not is found."""
    here = "tests/test_docs_faults.py"
    assert missing(f"`{here}::test_missing` `{here}::test_gone` `tests/test_gone.py::test_gone`") == [
        f"{here}::test_gone",
        "tests/test_gone.py::test_gone",
    ]
