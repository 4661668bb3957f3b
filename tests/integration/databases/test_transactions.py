"""``release="commit"`` and ``atomic=``: how a transaction can end, on each database, and when its lock is free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from billing.models import Account
from django import db
from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_zklock import LockLost, current_lock, signals, zk_lock, zk_locked
from django_zklock.zk.held import held_stack
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

KEY = "k"


class Stop(Exception):  # noqa: N818 - no error
    """Ends a block."""


def add(database: str, name: str) -> None:
    Account.objects.using(database).create(name=name)


def names(database: str) -> list[str]:
    return sorted(Account.objects.using(database).values_list("name", flat=True))


@pytest.fixture
def events(database: str, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what happens from now on: what ends at the database, and releases, of which none is made in vain."""
    seen: list[str] = []
    connection = connections[database]
    connection.ensure_connection()
    for name in ("_commit", "_rollback"):
        end = getattr(connection, name)

        def noted(end: Callable[[], None] = end, name: str = name) -> None:
            try:
                end()
            finally:
                seen.append(name.removeprefix("_"))

        monkeypatch.setattr(connection, name, noted)

    def released(**_facts: Any) -> None:
        seen.append("released")

    signals.released.connect(released)
    yield seen
    signals.released.disconnect(released)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_commit(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """The lock is held when its block has ended, and free after the commit, not before."""
    with transaction.atomic(database):
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
        assert len(ensemble.nodes(KEY)) == 1
        assert current_lock(KEY)
    assert events == ["commit", "released"]
    ensemble.wait_empty(KEY)
    assert current_lock(KEY) is None
    assert names(database) == ["Ada"]


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_exception(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """An exception, of the block or behind it, rolls back first."""
    for outside in (False, True):
        with contextlib.suppress(Stop), transaction.atomic(database):
            with zk_lock(KEY, release="commit"):
                add(database, "Ada")
                if not outside:
                    raise Stop
            raise Stop
        assert events == ["rollback", "released"]
        events.clear()
        ensemble.wait_empty(KEY)
    assert names(database) == []


def test_set_rollback(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """A transaction that is marked to be rolled back ends without an exception."""
    with transaction.atomic(database):
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
        transaction.set_rollback(True, using=database)
    assert events == ["rollback", "released"]
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_savepoint__rolled_back(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """Only the outermost block counts: what an inner one does, the lock outlasts."""
    with transaction.atomic(database):
        with contextlib.suppress(Stop), transaction.atomic(database), zk_lock(KEY, release="commit"):
            raise Stop
        with transaction.atomic(database), zk_lock(KEY, release="commit"):
            add(database, "Ada")
        assert len(ensemble.nodes(KEY)) == 1
    assert events == ["commit", "released"]
    ensemble.wait_empty(KEY)


def test_hook__raises__robust(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """A hook whose error Django only logs comes after the release too."""
    seen: list[list[str]] = []

    def fail() -> None:
        seen.append(events[:])
        raise ValueError

    with transaction.atomic(database):
        transaction.on_commit(fail, using=database, robust=True)
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
    assert seen == [["commit", "released"]]
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_hook__raises(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """Django calls no hook behind one that raises, and keeps the rest in the traceback; the lock is free before."""

    def fail() -> None:
        assert events == ["commit", "released"]
        raise Stop

    @transaction.atomic(database)
    def work() -> None:
        transaction.on_commit(fail, using=database)
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")

    with pytest.raises(Stop) as caught:
        work()
    ensemble.wait_empty(KEY)
    assert caught.traceback


def test_commit__fails(database: str, ensemble: Ensemble, events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that the database refuses is rolled back."""

    def fail() -> None:
        events.append("commit")
        raise DatabaseError("no")

    with monkeypatch.context() as patch:
        patch.setattr(connections[database], "_commit", fail)
        with pytest.raises(DatabaseError), transaction.atomic(database), zk_lock(KEY, release="commit"):
            add(database, "Ada")
    assert events == ["commit", "rollback", "released"]
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_connection__closed(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """A connection that is closed in the middle commits nothing any more."""
    with transaction.atomic(database):
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
        assert events == []
        connections[database].close()
        ensemble.wait_empty(KEY)
    assert events == ["released"]
    assert names(database) == []


def kill(database: str) -> None:
    """Let the server end the connection of the alias, which does not notice."""
    connection, other = connections[database], connections[database].copy()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT connection_id()")
        (number,) = cursor.fetchone()
    with contextlib.closing(other), other.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [number])
        else:
            cursor.execute(f"KILL {number:d}")


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("notices", [True, False], ids=["query", "commit"])
def test_connection__killed(notices: bool, database: str, ensemble: Ensemble, events: list[str]) -> None:
    """The transaction of a killed connection ends where its process notices, and the lock is held until then."""

    @transaction.atomic(database)
    def work() -> None:
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
        kill(database)
        assert len(ensemble.nodes(KEY)) == 1
        if notices:
            add(database, "Barbara")

    with pytest.raises(db.Error):
        work()
    assert events == (["rollback", "released"] if notices else ["commit", "rollback", "released"])
    ensemble.wait_empty(KEY)
    connections[database].close()
    assert names(database) == []


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_connection__killed_and_caught(database: str, ensemble: Ensemble) -> None:
    """Where the code has caught the error, the lock is free when Django closes the connection, at the latest."""
    # The drivers differ in whether the end of the block raises an error.
    with contextlib.suppress(db.Error), transaction.atomic(database):
        with zk_lock(KEY, release="commit"):
            add(database, "Ada")
        kill(database)
        # Not by a model, whose errors mark the block to be rolled back.
        with contextlib.suppress(db.Error), connections[database].cursor() as cursor:
            cursor.execute("SELECT 1")
    connections[database].close()
    ensemble.wait_empty(KEY)
    assert names(database) == []


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_commit__interrupted(database: str, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that strikes in the middle of the commit leaves the lock until Django closes the connection."""
    connection = connections[database]

    def interrupted() -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_commit", interrupted)
        with pytest.raises((Stop, db.Error)), transaction.atomic(database), zk_lock(KEY, release="commit"):
            add(database, "Ada")
    # What was committed is not known: when Django turns autocommit on again, some databases commit.
    assert len(ensemble.nodes(KEY)) == 1
    connection.close()
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_several_databases(database: str, sqlite: str, postgresql: str, ensemble: Ensemble) -> None:
    """The lock is free when the last of several transactions has ended, however the others have."""
    other = postgresql if database == sqlite else sqlite
    with transaction.atomic(database):
        with contextlib.suppress(Stop), transaction.atomic(other):
            with zk_lock(KEY, release="commit"):
                add(database, "Ada")
            raise Stop
        assert len(ensemble.nodes(KEY)) == 1
    ensemble.wait_empty(KEY)


def test_no_transaction(database: str, ensemble: Ensemble) -> None:
    """Without a transaction the lock is released at the end of its block, and a transaction inside does not matter."""
    with zk_lock(KEY, release="commit"):
        with transaction.atomic(database):
            add(database, "Ada")
        assert len(ensemble.nodes(KEY)) == 1
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_again(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """The same lock may be taken in a transaction as often as one likes, and is one hold more."""
    with transaction.atomic(database):
        for _ in range(20):
            with zk_lock(KEY, release="commit"):
                pass
            with transaction.atomic(database), zk_lock(KEY, release="commit"), zk_lock(KEY):
                pass
        assert [held.key for held in held_stack()] == [KEY]
        assert events == []
    assert events == ["commit", "released"]
    ensemble.wait_empty(KEY)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_inside_and_outside(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """Of two blocks and a transaction around one of them, whichever ends last releases the lock."""
    with zk_lock(KEY):
        with transaction.atomic(database), zk_lock(KEY, release="commit"):
            add(database, "Ada")
        assert events == ["commit"]
    assert events == ["commit", "released"]
    block = contextlib.ExitStack()
    with transaction.atomic(database), zk_lock(KEY, release="commit"):
        block.enter_context(zk_lock(KEY))
    assert events[2:] == ["commit"]
    block.close()
    assert events[3:] == ["released"]
    ensemble.wait_empty(KEY)


def test_several_locks(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """A transaction keeps any number of locks, and lets the last one go first."""
    with transaction.atomic(database):
        with zk_lock("a", release="commit"), zk_lock(["b", "c"], release="commit"):
            pass
        with zk_lock("d", release="commit", mode="read"):
            pass
        assert [held.key for held in held_stack()] == ["a", "b, c", "d"]
    assert events == ["commit", "released", "released", "released"]
    for key in "abcd":
        ensemble.wait_empty(key)


def test_atomic(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """``atomic=`` begins the transaction under the lock and commits it before the release."""

    @zk_locked(KEY, template=KEY, atomic=database)
    def work(error: type[Exception] | None = None) -> bool:
        add(database, "Ada")
        if error is not None:
            raise error
        return connections[database].in_atomic_block

    with pytest.raises(Stop):
        work(Stop)
    assert events == ["rollback", "released"]
    assert work()
    assert events[2:] == ["commit", "released"]
    ensemble.wait_empty(KEY)
    assert names(database) == ["Ada"]


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_atomic__lost(database: str, ensemble: Ensemble, events: list[str]) -> None:
    """A lock that is lost in the body is not followed by a commit."""

    @zk_locked(KEY, template=KEY, atomic=database)
    def work() -> None:
        add(database, "Ada")
        held = current_lock()
        assert held
        ensemble.end_session()
        wait_until(lambda: held.lost)

    with pytest.raises(LockLost):
        work()
    assert events[0] == "rollback"
    assert names(database) == []


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
def test_atomic__lost_in_the_commit(
    database: str, ensemble: Ensemble, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss while the transaction is committed does not interrupt that: the body is over."""
    connection = connections[database]
    commit: Callable[[], None] = vars(connection)["_commit"]
    committed = threading.Event()

    def slow() -> None:
        held = current_lock()
        assert held
        reported = threading.Event()
        held._when_lost(reported.set)
        ensemble.end_session()
        assert reported.wait(60)
        commit()
        committed.set()

    monkeypatch.setattr(connection, "_commit", slow)

    @zk_locked(KEY, template=KEY, atomic=database, on_lost="interrupt")
    def work() -> None:
        add(database, "Ada")

    with pytest.raises(LockLost):
        work()
    assert committed.is_set()
    assert events[0] == "commit"
    assert names(database) == ["Ada"]


def view(_request: HttpRequest, database: str, status: int) -> HttpResponse:
    with zk_lock(KEY, release="commit"):
        add(database, "Ada")
    assert current_lock(KEY)
    if status == 500:
        raise Stop
    return HttpResponse()


urlpatterns = [path("<str:database>/<int:status>", view)]


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
@pytest.mark.parametrize("status", [200, 500])
def test_atomic_requests(
    status: int, database: str, ensemble: Ensemble, events: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``ATOMIC_REQUESTS`` the lock is free when the request has been committed or rolled back."""
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
    monkeypatch.setitem(connections[database].settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)
    assert client.get(f"/{database}/{status}").status_code == status
    assert events == ["commit" if status == 200 else "rollback", "released"]
    ensemble.wait_empty(KEY)
