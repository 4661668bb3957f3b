"""From a key to the name of a znode, and back."""

from __future__ import annotations

import re

import pytest

from django_zklock.zk import paths
from tests.toolbox.locks.odd_keys import ODD


@pytest.mark.parametrize("key", ODD.values(), ids=ODD.keys())
def test_key__odd(key: str) -> None:
    """An odd key has a legal name that leads back to it."""
    name = paths.escape(paths.check_key(key))
    assert paths.unescape(name) == key
    assert name not in {"", ".", ".."}
    assert not re.search("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff/]", name)


def test_key__readable() -> None:
    """An ordinary key is its own name."""
    assert paths.escape("account:42 Äöü") == "account:42 Äöü"


def test_key__neighbours() -> None:
    """Keys that look alike once escaped keep different names."""
    names = {paths.escape(key) for key in ("a/b", "a%2Fb", "a%252Fb", "a%2fb", "a%~b", ".", "%2E", "..", "%2E%2E")}
    assert len(names) == 9


@pytest.mark.parametrize("unit", ["x", "/", "%", "\0", "\n", "é", "\N{PARTY POPPER}"])
def test_key__longest(unit: str) -> None:
    """A key of 1 kB has a name of at most 200 bytes, another for each key, and is told from a short one."""
    key = (unit * 1024).encode()[: 1024 - 1024 % len(unit.encode())].decode()
    other = key[:-1] + "y"
    names = [paths.escape(paths.check_key(key)), paths.escape(other)]
    assert all(len(name.encode()) <= paths.MAX_NAME_BYTES for name in names)
    assert names[0] != names[1]
    assert [paths.unescape(name) for name in names] == [None, None]
    assert not re.search("%(?![0-9A-F]{2}|~)", names[0])


def test_key__at_the_limit_of_names() -> None:
    """200 bytes stay as they are, 201 are shortened."""
    assert paths.escape("x" * 200) == "x" * 200
    assert paths.unescape(paths.escape("x" * 201)) is None


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "must not be empty"),
        ("x" * 1025, "not be longer than 1024 bytes of UTF-8, got 1025"),
        ("é" * 513, "got 1026"),
        ("a\ud800b", "valid Unicode"),
        ("\udfff", "valid Unicode"),
    ],
)
def test_key__bad(key: str, message: str) -> None:
    """A key that can name nothing is refused with the reason."""
    with pytest.raises(ValueError, match=message):
        paths.check_key(key)


@pytest.mark.parametrize("key", [None, b"bytes", 1, ["a"]])
def test_key__not_text(key: object) -> None:
    """A key that is not text is refused with its type."""
    with pytest.raises(TypeError, match=f"must be a str, got {type(key).__name__}"):
        paths.check_key(key)
