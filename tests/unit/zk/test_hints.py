"""What users of other libraries type first, and what they read then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from django_zklock import Held, Lock, zk_lock, zk_locked
from django_zklock.zk import hints
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions


@pytest.fixture
def lock() -> Any:
    """Return a lock whose server nobody asks; ``Any``, because a type checker refuses what is tested."""
    return Lock("k", Pool("hints", PoolOptions(connection=ConnectionOptions(hosts="zk1.invalid"))))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"blocking": False}, "lock.try_acquire() does not wait"),
        ({"blocking_timeout": 5}, "timeout= limits the wait"),
        ({"ttl": 60}, "a hold has no expiry"),
        ({"time_out": 5}, "(did you mean timeout?)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["acquire", "aacquire"])
def test_acquire__unknown_argument(lock: Any, method: str, arguments: dict[str, Any], hint: str) -> None:
    """An argument of another library is refused with the way to do it here."""
    with pytest.raises(TypeError, match=rf"Lock\.{method}\(\) got an unexpected keyword argument") as caught:
        getattr(lock, method)(**arguments)
    assert hint in str(caught.value)


@pytest.mark.parametrize("method", ["try_acquire", "atry_acquire"])
def test_try_acquire__timeout(lock: Any, method: str) -> None:
    """A method that does not wait names the one that does."""
    with pytest.raises(TypeError, match=r"'timeout': lock\.acquire\(timeout=5\) waits"):
        getattr(lock, method)(timeout=5)


@pytest.mark.parametrize("make", [zk_lock, zk_locked])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("expire", "a hold has no expiry"),
        ("blocking", 'on_conflict="skip"'),
        ("max_leases", "limit= is how many"),
        ("temlpate", "(did you mean template?)"),
        ("unknown", "'unknown'"),
        ("nonsense", "'nonsense'"),
    ],
)
def test_zk_lock__unknown_argument(make: Callable[..., Any], name: str, hint: str) -> None:
    """The same for the functions that make locks; a name without a hint is refused as Python does it."""
    with pytest.raises(TypeError, match=f"{make.__name__}.. got an unexpected keyword argument '{name}'") as caught:
        make("key", **{name: 60})
    assert str(caught.value).endswith(hint) or hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("release", r"release what acquire\(\) returns"),
        ("locked", r"lock\.holders\(\) is empty while the lock is free"),
        ("extend", "a hold has no expiry"),
        ("token", "it belongs to a hold"),
        ("nonsense", "'Lock' object has no attribute 'nonsense'$"),
    ],
)
def test_lock__no_attribute(lock: Any, name: str, hint: str) -> None:
    """A method of other libraries does not exist, and the error says what to use."""
    assert not hasattr(lock, name)
    with pytest.raises(AttributeError, match=hint) as caught:
        getattr(lock, name)
    assert caught.value.name == name


def test_held__no_attribute() -> None:
    """The same for a hold, also for one that is not complete."""
    held = object.__new__(Held)
    with pytest.raises(AttributeError, match=r"'Held' object has no attribute 'extend': a hold has no expiry"):
        _ = held.extend  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'Held' object has no attribute 'key'$"):
        _ = held.key


def test_lock__protocols(lock: Any) -> None:
    """The hints do not disturb code that looks for special methods."""
    assert copy.copy(lock).key == "k"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("HOST", " (did you mean HOSTS?)"), ("root", " (did you mean ROOT?)"), ("LOCATION", ""), ("", "")],
)
def test_did_you_mean(name: str, meant: str) -> None:
    """The nearest known name is offered if it is near."""
    assert hints.did_you_mean(name, ["HOSTS", "ROOT", "OPTIONS"]) == meant
