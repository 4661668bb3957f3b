"""What guarantees, faults and other pages promise is shown by tests, which name the section by the marker ``shows``."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scripts.shown_by import find_tests, main, sections, with_tests

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
# Each promise of these pages is shown by a test: a section of the third level.
PROMISES = {
    f"{page}#{name}": "".join(lines[1:])
    for page in ("guarantees", "faults")
    for name, lines in sections(PAGES[page])
    if lines and lines[0].startswith("### ")
}
# These say what others do, or what no lock can do.
NOT_SHOWN = {
    "guarantees#what-the-ensemble-must-do",
    "guarantees#transactions-the-lock-is-not-the-commit",
    "guarantees#that-a-task-runs-once",
    "guarantees#fairness-towards-other-recipes",
}


def test_promises__each_is_shown() -> None:
    """Every guarantee and every fault is said and has a test, except where nothing of ours is promised."""
    assert len(PROMISES) > 100
    assert all(PROMISES.values())
    assert {each for each in PROMISES if each not in find_tests()} == NOT_SHOWN


def test_tests__name_sections_that_exist() -> None:
    """Each section that a test claims to show exists, on one page, and once."""
    for section, tests in find_tests().items():
        page, _, name = section.partition("#")
        assert len(list(DOCS.rglob(f"{page}.md"))) == 1, tests
        assert [each for each, _lines in sections(PAGES[page])].count(name) == 1, tests


def test_pages__have_no_lists_by_hand() -> None:
    """The one page that names tests itself is the table of owners, each row of which has its own."""
    assert [page for page, text in PAGES.items() if ".py::" in text] == ["ownership"]


PAGE = """# Page

## It dies

```console
# It dies
```

## It lives
"""


def test_with_tests() -> None:
    """The tests of a section are folded at its end, behind its blocks of code."""
    tests = {"page#it-dies": ["tests/test_a.py::test_a", "tests/test_b.py::test_b"], "other#it-lives": ["x"]}
    assert with_tests("page", PAGE, {}) == PAGE
    before, _, after = with_tests("page", PAGE, tests).partition("<details>")
    assert before.endswith("# It dies\n```\n\n\n")
    assert after.startswith("<summary>Shown by 2 tests</summary><ul>\n<li><code>tests/test_a.py::test_a</code></li>\n")
    assert after.endswith("</ul></details>\n\n## It lives\n")


def test_main(capsys: pytest.CaptureFixture[str]) -> None:
    """The tests of a section are printed as pytest takes them, those of a page with the sections."""
    main(["faults#it-dies"])
    tests = capsys.readouterr().out.splitlines()
    assert tests == find_tests()["faults#it-dies"]
    main(["faults"])
    assert f"# faults#it-dies\n{tests[0]}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no test shows faults#it-sleeps"):
        main(["faults#it-sleeps"])


# The table of owners.

NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAIRS = [line.strip("| ").split(" | ") for line in PAGES["ownership"].splitlines() if line.startswith("| ")][1:]


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_"))


def test_ownership__each_pair_is_shown() -> None:
    """Every row of the table of owners has a result, and the test that shows it."""
    assert len(PAIRS) > 40
    for _taken, _asked, results, test in PAIRS:
        assert set(results.split(", ")) <= {"re-enters", "waits", "raises"}
        name = NAME.fullmatch(test)
        assert name is not None, test
        assert name[2] in names_in(name[1]), test
