"""`zk_lock` and `current_lock`."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_zklock import LockTimeout, current_lock, zk_lock
from django_zklock.connections import connections
from tests.bystanders import Ensemble, Stranger
from tests.zk.runner import Runner

pytest_plugins = ["tests.configured"]


def test_zk_lock__does_nothing_yet(ensemble: Ensemble) -> None:
    """Making a lock connects to nothing and holds nothing."""
    zk_lock("k", using="absent")
    assert connections["absent"].sessions() == []
    assert ensemble.nodes("k") == []


def test_zk_lock__holds(ensemble: Ensemble) -> None:
    """A lock of the configured ensemble holds in its block, and again when it is used again."""
    lock = zk_lock("k")
    tokens = []
    for _ in range(2):
        with lock as held:
            assert current_lock() is held
            assert ensemble.nodes("k") == [held.node.rpartition("/")[2]]
            assert held.node.startswith(f"{ensemble.root}/k/")
            tokens.append(held.token)
        ensemble.wait_empty("k")
    assert tokens[0] < tokens[1]


def test_zk_lock__shared_by_threads(ensemble: Ensemble) -> None:
    """One lock object serves many threads, one at a time."""
    lock = zk_lock("k")
    inside = threading.Lock()

    def work() -> int:
        with lock as held:
            assert inside.acquire(blocking=False), "two at once"
            inside.release()
            return held.token

    tokens = [runner.result(60) for runner in [Runner(work) for _ in range(10)]]
    assert len(set(tokens)) == 10


def test_zk_lock__names_the_program(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a lock that a management command holds reads the command's name."""
    monkeypatch.setattr("sys.argv", ["/srv/manage.py", "reindex", "--all"])
    with zk_lock("k"), pytest.raises(LockTimeout, match=r"held by command reindex \(pid "):
        Runner(lambda: zk_lock("k").acquire(timeout=0)).result()


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("", ValueError, "must not be empty"),
        ("x" * 1025, ValueError, "must not be longer than 1024 bytes of UTF-8, got 1025"),
        ("\ud800", ValueError, "valid Unicode"),
        (b"k", TypeError, "must be a str, got bytes"),
        (None, TypeError, "must be a str, got NoneType"),
        (5, TypeError, "must be a str, got int"),
    ],
)
def test_zk_lock__bad_key(ensemble: Ensemble, key: Any, error: type[Exception], message: str) -> None:
    """A key that can name no lock is refused before any network."""
    with pytest.raises(error, match=message):
        zk_lock(key)


def test_zk_lock__unknown_alias(ensemble: Ensemble) -> None:
    """An alias that is not configured is refused, with those that are."""
    with pytest.raises(ImproperlyConfigured, match="no alias 'other'; configured: 'default', 'absent'"):
        zk_lock("k", using="other")


@pytest.mark.parametrize("timeout", [-1, timedelta(seconds=-1), float("nan")])
def test_acquire__negative(ensemble: Ensemble, timeout: float) -> None:
    """A negative time is refused, with what may have been meant."""
    with pytest.raises(ValueError, match="None waits for ever, 0 tries once"):
        zk_lock("k").acquire(timeout)


def test_current_lock__nothing_held() -> None:
    """Whoever holds nothing has no current lock."""
    assert current_lock() is None
    assert current_lock("k") is None


def test_current_lock__innermost(ensemble: Ensemble) -> None:
    """The current lock is the innermost one, or that of a key; other threads do not see it."""
    with zk_lock("a") as a, zk_lock("b") as b:
        assert current_lock() is b
        assert current_lock("a") is a
        assert current_lock("c") is None
        assert Runner(current_lock).result() is None
    assert current_lock() is None


def test_current_lock__nested(ensemble: Ensemble) -> None:
    """A nested hold is the current one until it is released, and the outer one after that."""
    with zk_lock("k") as outer:
        with zk_lock("k") as inner:
            assert current_lock() is inner
            assert inner.token == outer.token
        assert current_lock() is outer
        outer.check()
