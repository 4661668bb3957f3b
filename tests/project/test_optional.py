"""Packages without which tests are skipped."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# Some environments of the version matrix lack them, and skip.
OPTIONAL = {
    module
    for path in TESTS.rglob("*.py")
    for module in re.findall(r'importorskip\("([\w.]+)"\)', path.read_text(encoding="utf-8"))
}

pytestmark = pytest.mark.once


@pytest.mark.parametrize("module", sorted(OPTIONAL))
def test_optional__is_here(module: str) -> None:
    """The environment of `make test` has every package that a test may miss, so none of these tests is skipped."""
    importlib.import_module(module)
