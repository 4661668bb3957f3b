"""The reference describes what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.dispatch import Signal

import django_zklock
from django_zklock import signals
from django_zklock.exceptions import ZkLockError

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def sections(page: str) -> set[str]:
    return set(re.findall(r"^## (.+)$", text_of(page), flags=re.MULTILINE))


def is_error(name: str) -> bool:
    thing = getattr(django_zklock, name)
    return isinstance(thing, type) and issubclass(thing, ZkLockError)


def test_api__has_every_public_name() -> None:
    """Each name that can be imported from the package has its section, and so has what it gives."""
    names = {name for name in django_zklock.__all__ if not is_error(name)}
    assert names | {"Lock", "Held", "Conflict", "RetryLater"} <= sections("reference/api.md")


def test_errors__has_every_error() -> None:
    """The page of errors has those that can be imported from the package, and no other."""
    assert sections("reference/errors.md") == {name for name in django_zklock.__all__ if is_error(name)}


def test_signals__has_every_signal() -> None:
    """The page of signals has those that there are, and no other."""
    assert sections("reference/signals.md") == {
        name for name, value in vars(signals).items() if isinstance(value, Signal)
    }


@pytest.mark.parametrize("page", ["explanation/guarantees.md"])
def test_guarantees__name_tests_that_exist(page: str) -> None:
    """Each test that the guarantees name as their witness is there."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text_of(page))
    assert named
    for file, test in named:
        assert re.search(rf"^ *(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test
