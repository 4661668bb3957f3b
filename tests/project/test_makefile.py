"""CONTRIBUTING says what each target of the Makefile is for, and what ``WHAT`` may be."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# Each target of the list, with what the list says.
TARGETS = dict(re.findall(r"^([a-z-]+):.*## (.*)$", MAKEFILE, re.MULTILINE))

pytestmark = pytest.mark.once


def words_after_what(target: str) -> set[str]:
    """Return what WHAT may be, by the list."""
    words = TARGETS[target].partition("WHAT=")[2].partition(";")[0]
    return set(re.findall(r"[a-z]+", words)) - {"or"}


def test_targets__are_named() -> None:
    """Each target is in CONTRIBUTING, but for the two that explain themselves."""
    named = set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING))
    assert set(TARGETS) - {"help", "clean"} == named


def test_soak() -> None:
    """The list and CONTRIBUTING have each test that may be run for long."""
    defined = set(re.findall(r"^soak-([a-z]+) :=", MAKEFILE, re.MULTILINE))
    assert defined == words_after_what("soak")
    section = CONTRIBUTING.partition("\n## One test for long\n")[2].partition("\n## ")[0]
    assert defined == set(re.findall(r"`WHAT=([a-z]+)`", section))


def test_bench() -> None:
    """The list has modules that exist, and CONTRIBUTING has each but the one that is run without WHAT."""
    listed = words_after_what("bench")
    assert all(find_spec(f"benchmarks.{word}") for word in listed)
    section = CONTRIBUTING.partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
    assert listed - {"peers"} == set(re.findall(r"WHAT=([a-z]+)`", section))
