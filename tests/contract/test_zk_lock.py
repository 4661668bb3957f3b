"""`zk_lock` and `current_lock`."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_zklock import (
    AsyncUnsafe,
    Held,
    Lock,
    LockTimeout,
    ZooKeeperUnavailable,
    current_lock,
    zk_lock,
)
from django_zklock.connections import connections
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import snapshots
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.slow_deadlines"]


def test_zk_lock__does_nothing_yet(ensemble: Ensemble) -> None:
    """Making a lock opens no connection and holds nothing."""
    zk_lock("k", using="absent")
    assert connections["absent"].sessions() == []
    assert ensemble.nodes("k") == []


def test_zk_lock__is_no_decorator_and_no_condition(ensemble: Ensemble) -> None:
    """A lock that is used as a decorator or as a condition says what was meant."""
    lock: Any = zk_lock("k")
    with pytest.raises(TypeError, match=r"write @zk_locked\('k'\) above a function"):
        lock(lambda: None)
    with pytest.raises(TypeError, match=r"write `with lock:`, or `if held := lock\.try_acquire"):
        bool(lock)
    assert ensemble.nodes("k") == []


def test_zk_lock__names_the_program(other_client: OtherClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a waiter names the code that holds the lock, its command, and that it is this very process."""
    monkeypatch.setattr("sys.argv", ["/srv/manage.py", "reindex", "--all"])
    message = (
        r"held by function tests\.contract\.test_zk_lock\.test_zk_lock__names_the_program in command reindex "
        r"\(pid \d+ on .+\), which is this very process, thread MainThread"
    )
    with zk_lock("k"), pytest.raises(LockTimeout, match=message):
        Runner(lambda: zk_lock("k").acquire(timeout=0)).result()


def test_zk_lock__label(other_client: OtherClient) -> None:
    """A label names the holder instead of the code."""
    with zk_lock("k", label="month end of Ada"):
        (holder,) = zk_lock("k").holders()
    assert holder is not None
    assert holder.work == Work(kind="label", name="month end of Ada")
    for wrong in ("", 7):
        with pytest.raises(TypeError, match="the label of a lock must be a text that is not empty"):
            zk_lock("k", label=wrong)  # type: ignore[arg-type]


def test_zk_lock__code_is_not_named(ensemble: Ensemble, settings: Settings) -> None:
    """A setting keeps the names of code out of ZooKeeper."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"NAME_CODE": False}}
    with zk_lock("k"):
        (holder,) = zk_lock("k").holders()
    assert holder is not None
    assert holder.work is None


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("", ValueError, "must not be empty"),
        ("x" * 1025, ValueError, "must not be longer than 1024 bytes of UTF-8, got 1025"),
        ("\ud800", ValueError, "valid Unicode"),
        (b"k", TypeError, "must be a str, got bytes"),
    ],
)
def test_zk_lock__bad_key(ensemble: Ensemble, key: Any, error: type[Exception], message: str) -> None:
    """A key that can name no lock is refused before any network."""
    with pytest.raises(error, match=message):
        zk_lock(key)


def test_zk_lock__unknown_alias(ensemble: Ensemble) -> None:
    """An unknown alias is refused, and the error names the configured ones."""
    with pytest.raises(ImproperlyConfigured, match="no alias 'other'; configured: 'default', 'absent'"):
        zk_lock("k", using="other")


# The timeout of a lock.


@pytest.mark.parametrize("timeout", [0.2, timedelta(seconds=0.2)])
def test_timeout__of_the_lock(other_client: OtherClient, timeout: Any) -> None:
    """The timeout of a lock is that of `with`, of `async with` and of an acquisition without one of its own."""
    other_client.take("k")
    lock = zk_lock("k", timeout=timeout)

    async def aenter() -> None:
        async with lock:
            pass

    def enter() -> None:
        with lock:
            pass

    for acquire in (enter, lock.acquire, lambda: asyncio.run(aenter()), lambda: asyncio.run(acquired(lock))):
        with pytest.raises(LockTimeout) as caught:
            acquire()
        assert caught.value.timeout == 0.2


async def acquired(lock: Lock) -> Held:
    return await lock.aacquire()


@pytest.mark.usefixtures("unhurried")
def test_timeout__of_the_acquisition(other_client: OtherClient, ensemble: Ensemble) -> None:
    """The timeout of an acquisition replaces that of the lock; None waits without a limit."""
    other_client.take("k")
    lock = zk_lock("k", timeout=0)
    with pytest.raises(LockTimeout) as caught:
        lock.acquire(timeout=0.2)
    assert caught.value.timeout == 0.2
    waiting = Runner(lambda: lock.acquire(None).release())
    ensemble.wait_count("k", 2)
    other_client.release("k")
    waiting.result()


def test_timeout__wrong() -> None:
    """A wrong timeout is refused when the lock is made."""
    with pytest.raises(ValueError, match="None waits for ever, 0 tries once"):
        zk_lock("k", timeout=-1)
    with pytest.raises(TypeError, match="timeout must be seconds"):
        zk_lock("k", timeout="5")  # type: ignore[arg-type]


# The holders of a lock.


def test_holders__free(ensemble: Ensemble) -> None:
    """A lock that nothing holds has no holders, whether its node exists or not."""
    lock = zk_lock("k")
    assert lock.holders() == ()
    lock.acquire().release(wait=True)
    assert lock.holders() == ()
    assert zk_lock(["k", "other"]).holders() == ()


def test_holders__one(other_client: OtherClient, ensemble: Ensemble) -> None:
    """The holder of a lock is the value that an error would name; a waiter behind it is no holder."""
    other_client.take("k")
    waiting = Runner(lambda: zk_lock("k").acquire(120).release())
    ensemble.wait_count("k", 2)
    with pytest.raises(LockTimeout) as caught:
        zk_lock("k").acquire(timeout=0)
    assert zk_lock("k").holders() == (caught.value.holder,)
    assert str(caught.value.holder).startswith("label the other client")
    other_client.release("k")
    waiting.result()


def test_holders__semaphore(ensemble: Ensemble) -> None:
    """A semaphore has a holder for each lease, also of one process, and in the order in which they came."""
    lock = zk_lock("k", limit=3, reentrant=False)
    with lock.acquire() as first, lock.acquire() as second:
        assert len(lock.holders()) == 2
        first.check()
        second.check()


def test_holders__several(ensemble: Ensemble, other_client: OtherClient) -> None:
    """The holders of several keys hold any of them, and an owner that holds more than one counts once."""
    lock = zk_lock(["a", "b", "c"])
    with lock:
        (own,) = lock.holders()
        assert own is not None
        assert zk_lock("b").holders() == (own,)
    ensemble.wait_empty("b")
    other_client.take("b")
    with zk_lock("a"):
        mine, other = lock.holders()
    assert mine is not None
    assert (mine.host, mine.pid) == (own.host, own.pid)
    assert str(other).startswith("label the other client")


def test_holders__of_another_client(ensemble: Ensemble) -> None:
    """A holder without an identity, such as a lock of Curator, is None, so that the lock does not look free."""
    path = ensemble.pool.path("k")
    ensemble.observer.client.create(
        f"{path}/_c_{uuid.uuid4()}-lock-", b"", ephemeral=True, sequence=True, makepath=True
    )
    assert zk_lock("k").holders() == (None,)


def test_holders__left_meanwhile(
    ensemble: Ensemble, other_client: OtherClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that leaves between the list and the read of its data does not make the lock look free."""
    other_client.take("k")
    waiting = Runner(lambda: zk_lock("k").acquire(120))
    ensemble.wait_count("k", 2)
    read = snapshots.read_entries

    def release_and_read(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(snapshots, "read_entries", read)
        other_client.release("k")
        return read(*args, **kwargs)

    monkeypatch.setattr(snapshots, "read_entries", release_and_read)
    (holder,) = zk_lock("k").holders()
    assert "the other client" not in str(holder)
    waiting.result().release()


async def test_holders__asyncio(other_client: OtherClient) -> None:
    """A coroutine awaits `aholders`; the blocking call is refused where an event loop runs."""
    other_client.take("k")
    with pytest.raises(AsyncUnsafe, match=r"await lock\.aholders\(\)"):
        zk_lock("k").holders()
    (holder,) = await zk_lock("k").aholders()
    assert str(holder).startswith("label the other client")


async def test_aholders__busy_executor(other_client: OtherClient) -> None:
    """The application's work in threads does not keep the answer back."""
    other_client.take("k")
    over = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, over.wait)
    try:
        (holder,) = await asyncio.wait_for(zk_lock("k").aholders(), 2 * GRACE)
    finally:
        over.set()
        await busy
    assert str(holder).startswith("label the other client")


def test_aholders__no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the error is that of a connection that cannot be."""

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        await zk_lock("k").aholders()

    with pytest.raises(ZooKeeperUnavailable, match="the holders of lock 'k' cannot be read: can't start") as caught:
        asyncio.run(main())
    assert caught.value.key == "k"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_holders__unavailable(ensemble: Ensemble) -> None:
    """Without ZooKeeper, reading the holders is an error."""
    with pytest.raises(ZooKeeperUnavailable, match=r"within [\d.]+ s"):
        zk_lock("k", using="absent").holders()


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
