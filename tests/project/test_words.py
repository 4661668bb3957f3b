"""The words of comments and docstrings."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "django_zklock", "scripts", "testproject", "tests")
# Processes, nodes and callers are things; what stands in backquotes is code.
PRONOUNS = re.compile(r"\b(who|whom|whoever|somebody|nobody)\b", re.IGNORECASE)
CODE = re.compile(r"``.*?``|`.*?`", re.DOTALL)

pytestmark = pytest.mark.once


def prose(path: Path) -> list[tuple[int, str]]:
    """Return the comments and the texts in three quotes of a file, each with its line."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return [
        (token.start[0], CODE.sub("", token.string))
        for token in tokens
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
    ]


def test_words() -> None:
    """No comment or docstring speaks of a thing as of a person, and no docstring begins with "Give"."""
    found = [
        (str(path.relative_to(ROOT)), line)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in prose(path)
        if PRONOUNS.search(text) or re.match(r'"""(Gives?|Have)\b', text)
    ]
    assert found == []
