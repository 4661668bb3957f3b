"""`@zk_locked` and `zk_lock` with kinds and several keys, for functions and coroutine functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_zklock import LockTimeout, current_lock, zk_lock, zk_locked
from django_zklock.zk.held import Held
from tests.toolbox.django.layer import Ensemble, OtherClient, Recorder
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.slow_deadlines"]

Make = Callable[..., Callable[..., Any]]


def _sync(key: object, body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @zk_locked(key, **options)  # type: ignore[call-overload, untyped-decorator]
    def work(number: int = 1, other: int = 2) -> Any:
        return body()

    return work  # type: ignore[no-any-return]


def _async(key: object, body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @zk_locked(key, **options)  # type: ignore[call-overload, untyped-decorator]
    async def work(number: int = 1, other: int = 2) -> Any:
        return body()

    return lambda *args, **kwargs: asyncio.run(work(*args, **kwargs))


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def make(request: pytest.FixtureRequest, ensemble: Ensemble) -> Make:
    """Return a function that makes a locked function, plain or async, which is called as a plain one."""
    made: Make = request.param
    return made


def held_here() -> Held:
    held = current_lock()
    assert held is not None
    held.check()
    return held


class Room:
    """A body that counts the calls inside, and keeps them there until told."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.tokens: list[int] = []
        self._lock = threading.Lock()
        self._open = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.tokens.append(held_here().token)
        assert self._open.wait(20)
        with self._lock:
            self.inside -= 1

    def open(self) -> None:
        self._open.set()


# How many are inside.


@pytest.mark.parametrize(
    ("options", "together"),
    [({}, 1), ({"mode": "write"}, 1), ({"mode": "read"}, 4), ({"limit": 1}, 1), ({"limit": 3}, 3)],
)
def test_locked__so_many_at_once(make: Make, ensemble: Ensemble, options: dict[str, Any], together: int) -> None:
    """As many calls run at once as the kind allows, and all of them run in the end."""
    room = Room()
    work = make("k:{number}", room, **options)
    calls = [Runner(work) for _ in range(4)]
    ensemble.wait_count("k:1", 4)
    wait_until(lambda: room.inside == together)
    room.open()
    for call in calls:
        call.result()
    assert room.most == together
    assert len(set(room.tokens)) == 4
    ensemble.wait_empty("k:1")


# Several keys.


KEYS: dict[str, object] = {
    "templates": ["account:{number}", "account:{other}"],
    "tuple": ("account:{number}", "account:{other}"),
    "callable": lambda number, other: [f"account:{number}", f"account:{other}"],
    "callable, tuple": lambda number, other: (f"account:{number}", f"account:{other}"),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_locked__several_keys(make: Make, ensemble: Ensemble, other_client: OtherClient, key: object) -> None:
    """A list of templates, and a callable that gives a list, name keys that are taken together."""
    held = make(key, held_here)(7, other=8)
    assert (held.key, held.keys) == ("account:7, account:8", ("account:7", "account:8"))
    assert held.tokens == {"account:7": held.token, "account:8": held.token}
    ensemble.wait_empty("account:7")
    ensemble.wait_empty("account:8")
    # In the other order, and while one of them is taken.
    other_client.take("account:7")
    waiting = Runner(lambda: make(key, held_here)(8, 7))
    ensemble.wait_count("account:7", 2)
    ensemble.wait_count("account:8", 1)
    other_client.release("account:7")
    assert waiting.result().keys == ("account:8", "account:7")
    ensemble.wait_empty("account:7")
    ensemble.wait_empty("account:8")


def test_locked__the_same_key_twice(make: Make) -> None:
    """Arguments that make one key twice are refused, and the body does not run."""
    with pytest.raises(ValueError, match="cannot be taken twice at once, got 'account:5' more than once"):
        make(KEYS["templates"], lambda: pytest.fail("it has run"))(5, 5)


def test_locked__several_keys_skip(
    make: Make, other_client: OtherClient, recorder: Recorder, ensemble: Ensemble
) -> None:
    """A skipped call of several keys names them all, and the holder of the one that was taken."""
    other_client.take("account:2")
    work = make(KEYS["templates"], lambda: pytest.fail("it has run"), on_conflict="skip")
    result = work()
    assert (result["zklock"], result["key"], result["reason"]) == ("skipped", "account:1, account:2", "conflict")
    assert result["holder"].startswith("label the other client (pid ")
    assert str(recorder.facts("skipped")["holder"]) == result["holder"]
    assert ensemble.nodes("account:1") == []


@pytest.mark.usefixtures("unhurried")
def test_locked__several_keys_time_out(make: Make, other_client: OtherClient, ensemble: Ensemble) -> None:
    """One timeout is for all keys together."""
    other_client.take("account:1")
    other_client.take("account:2")
    began = time.monotonic()
    with pytest.raises(LockTimeout, match=r"'account:1, account:2' was not granted within 0\.4 s; held by label"):
        make(KEYS["templates"], lambda: None, timeout=0.4)()
    assert 0.4 <= time.monotonic() - began < 0.4 + GRACE
    ensemble.wait_count("account:1", 1)
    ensemble.wait_count("account:2", 1)


# Broken by an operator.


def test_broken__one_of_several_leases(ensemble: Ensemble) -> None:
    """A lease that is broken is one holder's loss, and a place for another contender."""
    lock = zk_lock("k", limit=2, reentrant=False)
    broken, kept = lock.acquire(), lock.acquire()
    waiting = Runner(lock.acquire)
    ensemble.wait_count("k", 3)
    ensemble.delete(broken)
    waiting.result().check()
    kept.check()
    wait_until(lambda: broken.lost)
    waiting.result().release()
