"""The check of the project's words finds what it refuses, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_words import Finding, check, main, without_allowed

pytestmark = pytest.mark.once

MODULE = "django_zklock/zk/queue.py"


def found(source: str, path: str = MODULE) -> list[tuple[int, str]]:
    """Return the lines and words that are refused."""
    return [(each.line, each.word) for each in check(path, source)]


@pytest.mark.parametrize("path", [MODULE, "tests/unit/zk/test_queue.py"])
@pytest.mark.parametrize(
    ("docstring", "refused"),
    [
        ("Give the queue.", ["Give"]),
        ("Gives the queue.", ["Gives"]),
        ("Have the server delete it.", ["Have"]),
        ("Return the queue.", []),
        ("Given a queue, sort it.", []),
        ("Wait, and give up at the deadline.", []),
    ],
)
def test_docstring__opening(docstring: str, refused: list[str], path: str) -> None:
    """A docstring does not begin with "Give" or "Have", in the tests neither."""
    source = f'def names():\n    """{docstring}"""\n'
    assert found(source, path) == [(2, word) for word in refused]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("class Vigil: ...", "vigil"),
        ("class SharedLookout: ...", "lookout"),
        ("def tell_next(): ...", "tell"),
        ("async def look(): ...", "look"),
        ("def join(patience): ...", "patience"),
        ("def join(*, connect_patience=1): ...", "patience"),
        ("GLANCE_INTERVAL = 1", "glance"),
        ("_MOST = 1", "_MOST"),
        ("TOGETHER: int = 16", "TOGETHER"),
        ("self.told = True", "told"),
        ("for tenant in session: ...", "tenant"),
    ],
)
def test_name(source: str, word: str) -> None:
    """A word that the field has another one for is found in whatever name it is, and in the package alone."""
    assert found(source) == [(1, word)]
    assert found(source, "tests/test_queue.py") == []


@pytest.mark.parametrize(
    "source",
    [
        "scoreboard = 1",
        "def lookup(): ...",
        "class Teller: ...",
        "MOST_RECENT = 1",
        "print(tenant.look())",
        "from a import alarm",
    ],
)
def test_name__of_others(source: str) -> None:
    """A part of a longer word is another word, and a name that is only used was bound elsewhere."""
    assert found(source) == []


def test_name__of_the_module() -> None:
    """The name of a module counts as well."""
    assert found("", "django_zklock/zk/outlook.py") == [(1, "outlook")]


def test_prose() -> None:
    """Comments and docstrings of the package name things; code in backquotes is no prose."""
    docstring = '"""The queue.\n\nNobody is before ``who``.\n"""\n'
    source = docstring + '# A waiter whose node is gone, and who knows.\nx = "who"  # and `somebody`\n'
    assert found(source) == [(3, "nobody"), (5, "who")]
    assert found(source, "tests/test_queue.py") == []


def test_allowed() -> None:
    """A word can be allowed below a path, for a reason; an allowance that is not needed is reported."""
    here, there = Finding("a/b.py", 1, "claim", "no"), Finding("c.py", 1, "claim", "no")
    allowed = {("a/", "claim"): "it is right there", ("a/", "look"): "it was"}
    assert without_allowed([there, here], allowed) == ([there], ["a/ look: allowed, and not there"])


def test_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding is a line, the summary counts them by folder, and the status is 1 as long as there are any."""
    monkeypatch.setattr(
        "scripts.check_words.ALLOWED", {("tests/", "look"): "not needed", ("a/", "look"): "not checked"}
    )
    monkeypatch.chdir(tmp_path)
    Path("tests").mkdir()
    file = Path("tests", "test_x.py")
    file.write_text('"""Give it."""\n', encoding="utf-8")
    assert main(["tests"]) == 1
    finding, unused = capsys.readouterr().out.splitlines()
    assert finding == 'tests/test_x.py:1: a docstring begins with "Give": say "Return", or what is done'
    assert unused == "tests/ look: allowed, and not there"
    assert main(["--summary", "tests"]) == 1
    assert capsys.readouterr().out == "    1 tests\n"
    monkeypatch.setattr("scripts.check_words.ALLOWED", {})
    file.write_text('"""Return it."""\n', encoding="utf-8")
    assert main(["tests"]) == 0
    assert capsys.readouterr().out == ""
