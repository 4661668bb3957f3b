"""The reference of the doctor agrees with its findings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import django_zklock
from django_zklock.doctor import LEVELS
from tests.project.reference_pages import REFERENCE, sections

PACKAGE = Path(django_zklock.__file__).parent
SOURCES = list((PACKAGE / "doctor").glob("*.py"))


def levels_in_code() -> dict[str, set[str]]:
    """Return the levels that each finding can have, read from the functions that create it.

    Each function creates findings of one id.
    """
    levels: dict[str, set[str]] = {}
    for source in SOURCES:
        for function in ast.parse(source.read_text(encoding="utf-8")).body:
            names = {
                ast.literal_eval(part.args[0])
                for part in ast.walk(function)
                if isinstance(part, ast.Call) and ast.unparse(part.func) == "Examination"
            }
            assert len(names) <= 1
            methods = {part.attr for part in ast.walk(function) if isinstance(part, ast.Attribute)}
            for name in names:
                levels.setdefault(name, set()).update(methods & set(LEVELS))
    return levels


def test_findings__each_has_its_section() -> None:
    """The ids in the code are the sections of the reference."""
    documented = list(sections("doctor.md"))
    assert len(documented) == len(set(documented))
    assert set(documented) == set(levels_in_code())


def test_findings__levels() -> None:
    """Each section names every level of its finding except "ok"."""
    text = sections("doctor.md")
    missing = {
        f"{name}: {level}"
        for name, levels in levels_in_code().items()
        for level in levels - {"ok"}
        if f"`{level}`" not in text[name]
    }
    assert missing == set()


def test_levels() -> None:
    """The page explains the levels in order of severity."""
    page = (REFERENCE / "doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page.partition("\n## ")[0], flags=re.MULTILINE) == list(LEVELS)
