"""Locks inside of transactions: the warning, the setting, ``TestCase``, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import linecache
import unittest
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase

from django_zklock import (
    Cancellation,
    LockCancelled,
    LockInTransaction,
    LockLost,
    LockTimeout,
    ZkLockError,
    current_lock,
    zk_lock,
    zk_locked,
)
from django_zklock.testing import Sandbox
from django_zklock.zk.held import Held
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

in_database = pytest.mark.django_db(transaction=True)


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    """Return the warnings, each once for its place, as Python shows them by default."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


@zk_locked("decorated:{n}")
def decorated(n: int) -> None: ...


def lose(ensemble: Ensemble, held: Held) -> None:
    ensemble.end_session()
    wait_until(lambda: held.lost)


# The warning.


@in_database
def test_warning__once_for_each_place(ensemble: Ensemble, caught: list[warnings.WarningMessage]) -> None:
    """Each line that acquires a lock in a transaction is warned of once, whatever the keys."""
    with transaction.atomic():
        for n in range(3):
            with zk_lock(f"block:{n}"):
                pass
            zk_lock(f"call:{n}").acquire().release()
            decorated(n)
            taken = zk_lock(f"try:{n}").try_acquire()
            assert taken
            taken.release()
            with contextlib.ExitStack() as stack:
                stack.enter_context(zk_lock(f"stack:{n}"))
    lines = [linecache.getline(warning.filename, warning.lineno).strip() for warning in caught]
    assert lines == [
        'with zk_lock(f"block:{n}"):',
        'zk_lock(f"call:{n}").acquire().release()',
        "decorated(n)",
        'taken = zk_lock(f"try:{n}").try_acquire()',
        'stack.enter_context(zk_lock(f"stack:{n}"))',
    ]
    assert {warning.category for warning in caught} == {LockInTransaction}
    assert "inside of a transaction of database 'default'" in str(caught[0].message)
    assert "'decorated:{n}'" in str(caught[2].message)


@in_database
def test_warning__not_without_a_reason(ensemble: Ensemble, caught: list[warnings.WarningMessage]) -> None:
    """Outside of a transaction, nested in a hold from outside, and with the remedies there is nothing to warn of."""
    with zk_lock("k"), transaction.atomic(), zk_lock("k"):
        pass
    with transaction.atomic(), zk_lock("k", release="commit"):
        pass
    decorated(1)
    assert not caught


@in_database
def test_setting(ensemble: Ensemble, settings: Settings, caught: list[warnings.WarningMessage]) -> None:
    """The setting makes it an error, before anything is acquired, or silent."""
    settings.ZKLOCK["default"]["IN_TRANSACTION"] = "error"
    with transaction.atomic(), pytest.raises(LockInTransaction) as error:
        zk_lock("k").acquire()
    assert isinstance(error.value, ZkLockError)
    settings.ZKLOCK["default"]["IN_TRANSACTION"] = "allow"
    with transaction.atomic(), zk_lock("k"):
        assert len(ensemble.nodes("k")) == 1
    settings.ZKLOCK["default"]["IN_TRANSACTION"] = "yes"
    with transaction.atomic(), pytest.raises(ImproperlyConfigured, match="IN_TRANSACTION"):
        zk_lock("k").acquire()
    assert not caught


@in_database
def test_sandbox() -> None:
    """In a sandbox it is an error, unless the project says otherwise."""
    with Sandbox(), transaction.atomic(), pytest.raises(LockInTransaction):
        zk_lock("k").acquire()


@in_database
def test_sandbox__own_choice(settings: Settings) -> None:
    """What the project's setting says stays."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk:2181", "IN_TRANSACTION": "allow"}}
    with Sandbox(), transaction.atomic(), zk_lock("k"):
        pass


# release="commit" and atomic=.


def test_release__unknown(ensemble: Ensemble) -> None:
    """What cannot work is refused where the lock is made."""
    with pytest.raises(ValueError, match="release must be one of 'block', 'commit', got 'rollback'"):
        zk_lock("k", release="rollback")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a reentrant lock"):
        zk_lock("k", release="commit", reentrant=False)


@pytest.mark.parametrize("acquire", ["aacquire", "atry_acquire", "__aenter__"])
def test_release__async(acquire: str, ensemble: Ensemble) -> None:
    """Async code has no transactions, so it is refused instead of released too early."""

    async def main() -> None:
        await getattr(zk_lock("k", release="commit"), acquire)()

    with pytest.raises(TypeError, match="sync_to_async"):
        asyncio.run(main())


@in_database
def test_release__every_way_to_acquire(ensemble: Ensemble) -> None:
    """However it is acquired, and in each mode, it is kept."""
    with transaction.atomic():
        zk_lock("acquired", release="commit").acquire().release()
        tried = zk_lock("tried", release="commit", mode="read").try_acquire()
        assert tried
        tried.release()
        with zk_lock(["a", "b"], release="commit"):
            pass
        zk_lock("semaphore", release="commit", limit=2).acquire(60).release()
        for key in ("acquired", "tried", "a", "b", "semaphore"):
            assert len(ensemble.nodes(key)) == 1
    for key in ("acquired", "tried", "a", "b", "semaphore"):
        ensemble.wait_empty(key)


@in_database
def test_release__taken(ensemble: Ensemble, other_client: OtherClient) -> None:
    """A lock that is not granted leaves nothing for the transaction."""
    other_client.take("k")
    with transaction.atomic():
        assert zk_lock("k", release="commit").try_acquire() is None
        with pytest.raises(LockTimeout):
            zk_lock("k", release="commit").acquire(0)
        assert current_lock() is None


@in_database
def test_release__cancelled(ensemble: Ensemble, other_client: OtherClient) -> None:
    """A wait that is cancelled leaves nothing for the transaction."""
    other_client.take("k")
    cancellation = Cancellation()

    def cancel() -> None:
        ensemble.wait_count("k", 2)
        cancellation.cancel()

    with transaction.atomic():
        canceller = Runner(cancel)
        with pytest.raises(LockCancelled):
            zk_lock("k", release="commit").acquire(cancellation=cancellation)
        canceller.result()
        assert current_lock() is None
        with zk_lock("free", release="commit").acquire(cancellation=Cancellation()) as held:
            held.check()
    ensemble.wait_count("k", 1)
    ensemble.wait_empty("free")


@pytest.mark.shows("ownership#holds-that-are-lost")
@in_database
def test_release__lost(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    """The end of the block raises after a loss, and a commit without the lock is logged."""
    with transaction.atomic():
        with pytest.raises(LockLost), zk_lock("k", release="commit") as held:
            lose(ensemble, held)
        assert "committed_without_lock" not in caplog.text
        # What was written under the lost lock is a part of this transaction.
        for take in (zk_lock("k", release="commit").acquire, zk_lock("k").try_acquire):
            with pytest.raises(LockLost):
                take()
    assert "event=committed_without_lock key='k'" in caplog.text
    with transaction.atomic(), zk_lock("k", release="commit") as again:
        again.check()


@in_database
@pytest.mark.parametrize("block", [contextlib.nullcontext, transaction.atomic], ids=["plain", "atomic"])
def test_release__manual(block: Any) -> None:
    """Where the project manages transactions itself, Django calls no hooks, not for a block either."""
    with Sandbox():
        transaction.set_autocommit(False)
        try:
            with block(), pytest.raises(TransactionManagementError, match="manual"):
                zk_lock("k", release="commit").acquire()
            with block(), pytest.raises((TransactionManagementError, LockInTransaction)):
                zk_locked("k", atomic=True)(lambda: None)()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)


def test_release__manual_and_not_open(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is for a connection that will open without autocommit: each request may begin with such a one."""
    connection = transaction.get_connection()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    monkeypatch.setattr(connection, "connection", None)
    with pytest.raises(TransactionManagementError, match="manual"):
        zk_lock("k", release="commit").acquire()
    with pytest.raises(TransactionManagementError, match="atomic= cannot be used"):
        zk_locked("k", atomic=True)(lambda: None)()
    assert ensemble.nodes("k") == []


@in_database
def test_release__in_an_async_view(ensemble: Ensemble) -> None:
    """Code that async code calls by ``sync_to_async`` has its transaction there, and the lock ends with that."""

    def work() -> None:
        with transaction.atomic():
            with zk_lock("k", release="commit"):
                pass
            assert len(ensemble.nodes("k")) == 1
        ensemble.wait_empty("k")

    async def view() -> Held | None:
        await sync_to_async(work)()
        async with zk_lock("k"):
            return current_lock("k")

    assert asyncio.run(view())


def test_atomic__refused() -> None:
    """What cannot be a database, and what has no transactions, is refused at decoration."""
    with pytest.raises(TypeError, match="atomic must be"):
        zk_locked("k", atomic=1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="atomic must be"):
        zk_locked("k", atomic="")
    with pytest.raises(TypeError, match="is async"):

        @zk_locked("k", atomic=True)
        async def work() -> None: ...


@in_database
def test_atomic__in_a_transaction(ensemble: Ensemble, settings: Settings) -> None:
    """Inside of a transaction there is no commit before the release: an error, whatever the setting, before waiting."""
    settings.ZKLOCK["default"]["IN_TRANSACTION"] = "allow"

    @zk_locked("k", template="k", atomic=True)
    def work() -> bool:
        return bool(transaction.get_connection().in_atomic_block)

    with transaction.atomic(), pytest.raises(LockInTransaction):
        work()
    with zk_lock("k"), transaction.atomic(), pytest.raises(LockInTransaction):
        work()
    assert work()
    assert inspect.unwrap(work).__name__ == "work"


# Django's test cases.


def run(case: type[unittest.TestCase]) -> None:
    """Run a test case, inside of which ``zookeeper`` is a sandbox."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]


class Locked:
    """What the code under test does; another holder is in another thread."""

    zookeeper: Sandbox

    def setUp(self) -> None:
        self.zookeeper = self.enterContext(Sandbox())  # type: ignore[attr-defined]

    def work(self) -> None:
        with transaction.atomic(), zk_lock("k", release="commit"):
            assert not self.is_free()

    def is_free(self) -> bool:
        return not [path for path in self.zookeeper.paths() if "-lock-" in path]

    def wait_free(self) -> None:
        with self.zookeeper.held_elsewhere("k"):
            pass


@pytest.mark.django_db
def test_testcase(django_db_blocker: Any) -> None:
    """The transaction around a test is none; the project's is committed by ``captureOnCommitCallbacks``."""

    class Tests(Locked, TestCase):
        def test_plain(self) -> None:
            with zk_lock("k"):
                assert not self.is_free()
            self.wait_free()
            with zk_lock("k", release="commit"):
                pass
            self.wait_free()

        def test_project(self) -> None:
            with self.captureOnCommitCallbacks(execute=True):
                transaction.on_commit(lambda: None)
                self.work()
                assert not self.is_free()
            self.wait_free()

        def test_project__not_captured(self) -> None:
            self.work()
            assert not self.is_free()

        def test_project__rolled_back(self) -> None:
            with contextlib.suppress(ValueError), transaction.atomic():
                self.work()
                raise ValueError
            self.wait_free()

        def test_locked_in_a_transaction(self) -> None:
            with transaction.atomic(), pytest.raises(LockInTransaction):
                zk_lock("k").acquire()

    run(Tests)
    with Sandbox() as zookeeper, zookeeper.held_elsewhere("k"):
        assert current_lock() is None


@pytest.mark.django_db
def test_testcase__next_test() -> None:
    """What a test has not captured is released at its end, and not only at that of its class."""

    class Tests(TestCase):
        def test_1(self) -> None:
            with transaction.atomic(), zk_lock("k", release="commit"):
                pass
            assert current_lock("k")

        def test_2(self) -> None:
            assert current_lock("k") is None
            with zookeeper.held_elsewhere("k"):
                pass

    with Sandbox() as zookeeper:
        run(Tests)


@in_database
def test_transactiontestcase() -> None:
    """A test that commits behaves as production does."""

    class Tests(Locked, TransactionTestCase):
        # Nothing to flush.
        available_apps: list[str] | None = None

        def _fixture_teardown(self) -> None: ...

        def test_project(self) -> None:
            self.work()
            self.wait_free()

    run(Tests)
