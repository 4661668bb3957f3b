"""The reference describes what there is."""

from __future__ import annotations

import re

from django.dispatch import Signal

import django_zklock
from django_zklock import signals, testing
from django_zklock.exceptions import ZkLockError
from django_zklock.testing import plugin
from tests.project.reference_pages import sections


def is_error(name: str) -> bool:
    thing = getattr(django_zklock, name)
    return isinstance(thing, type) and issubclass(thing, ZkLockError)


def test_api__has_every_public_name() -> None:
    """Each name that can be imported from the package has its section, and so has RetryLater."""
    names = {name for name in django_zklock.__all__ if not is_error(name)}
    assert names | {"Lock", "Held", "Conflict", "RetryLater"} <= {*sections("api.md")}


def test_errors__has_every_error() -> None:
    """The page of errors describes the errors of the package, and no others."""
    assert {*sections("errors.md")} == {name for name in django_zklock.__all__ if is_error(name)}


def test_signals__has_every_signal() -> None:
    """The page of signals describes all signals, and no others."""
    assert {*sections("signals.md")} == {name for name, value in vars(signals).items() if isinstance(value, Signal)}


def test_testing__has_every_public_name() -> None:
    """The page about testing has what can be imported for it, the fixtures and the options, and nothing else."""
    assert {*sections("testing.md")} == {*testing.__all__, "Fixtures", "Options of pytest"}


def test_testing__has_every_fixture() -> None:
    """Each fixture of the plugin is in the list, and no other."""
    assert set(re.findall(r"^`(\w+)`$", sections("testing.md")["Fixtures"], re.MULTILINE)) == {
        name
        for name, value in vars(plugin).items()
        if isinstance(value, type(plugin.zookeeper)) and not name.startswith("_")
    }


def test_testing__has_every_option() -> None:
    """Each option of the plugin has its entry, with the values that there are and the default."""
    added: list[tuple[str, object]] = []

    class Parser:
        def addini(self, name: str, help: str, *, default: object) -> None:  # noqa: A002 - pytest's name
            added.append((name, default))

    plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    listed = sections("testing.md")["Options of pytest"]
    assert re.findall(r"^`(\w+)`$", listed, re.MULTILINE) == [name for name, _ in added]
    assert all(f"The default is `{default}`." in listed for _, default in added)
    assert all(f"`{when}`" in listed for when in plugin.WHEN)


def test_testing__has_every_request() -> None:
    """Each request has the name that faults and the log use."""
    page = sections("testing.md")["Opcode"]
    assert set(re.findall(r"`(\w+)`", page)) >= {opcode.label for opcode in testing.Opcode}
