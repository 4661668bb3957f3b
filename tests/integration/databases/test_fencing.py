"""Fenced writes on each database: what a late holder writes is refused, in the statement that writes."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from billing.models import Account, Deposit
from django.db import IntegrityError, connections, models, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, QuerySet, Value, When
from django.db.models.signals import ModelSignal, post_save, pre_save
from django.test.utils import isolate_apps
from pytest_django import DjangoDbBlocker

from django_zklock import FencedModel, Held, LockLost, NotHeld, StaleToken, current_lock, fenced_update, zk_lock
from django_zklock.conf import TOKEN_BITS
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

KEY = "accounts"


class Undo(Exception):  # noqa: N818 - no error
    """Rolls a transaction back."""


# Half of them are paused between their last look at the lock and their write.
WRITERS = int(os.environ.get("ZKLOCK_WRITERS", "100"))


@pytest.fixture
def accounts(database: str, ensemble: Ensemble) -> QuerySet[Account]:
    """Return two accounts that no holder has written with a fence."""
    rows = Account.objects.using(database)
    rows.create(name="Ada", balance=10)
    rows.create(name="Barbara", balance=20)
    return rows.order_by("pk")


def balances(accounts: QuerySet[Account]) -> list[int]:
    return list(accounts.values_list("balance", flat=True))


WRITE = "UPDATE billing_account SET balance = 99, fence = %s WHERE name = %s"


@contextlib.contextmanager
def later_holder(accounts: QuerySet[Account], name: str = "Ada") -> Iterator[None]:
    """Let a later holder write an account just before the next statement that writes.

    The late writer holds its lock as far as it can know.
    """
    held, connection = current_lock(), connections[accounts.db]
    assert held
    left = [held.token + 1]

    def overtake(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if sql.startswith("UPDATE") and left:
            other = connection.copy()
            with contextlib.closing(other), other.cursor() as cursor:
                cursor.execute(WRITE, [left.pop(), name])
        return execute(sql, *arguments)

    with connection.execute_wrapper(overtake):
        yield


# fenced_update.


def test_update(accounts: QuerySet[Account]) -> None:
    """A holder writes as often as it likes, and the rows have its token."""
    with zk_lock(KEY) as held:
        assert fenced_update(accounts, balance=F("balance") + 1) == 2
        assert fenced_update(accounts.filter(name="Ada"), held, balance=F("balance") * 2) == 1
        assert fenced_update(accounts.filter(name="nobody"), balance=0) == 0
        assert set(accounts.values_list("fence", flat=True)) == {held.token}
    assert balances(accounts) == [22, 21]


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
def test_update__stale(accounts: QuerySet[Account]) -> None:
    """A late holder is refused, and of many rows none is changed if one is stale."""
    with (
        zk_lock(KEY),
        later_holder(accounts),
        pytest.raises(StaleToken, match="stale: a later holder has written Acco"),
    ):
        fenced_update(accounts, balance=F("balance") + 1)
    assert balances(accounts) == [99, 20]
    assert list(accounts.values_list("fence", flat=True))[1] == 0


def test_update__stale_in_a_transaction(accounts: QuerySet[Account]) -> None:
    """Code that catches the error in a transaction goes on with what was there before."""
    with zk_lock(KEY), transaction.atomic(accounts.db):
        with later_holder(accounts), pytest.raises(StaleToken):
            fenced_update(accounts, balance=0)
        assert balances(accounts)[1] == 20


def test_update__of_different_values(accounts: QuerySet[Account]) -> None:
    """One statement gives each row a value of its own, as bulk_update does."""
    values = Case(When(name="Ada", then=Value(1)), default=Value(2))
    with zk_lock(KEY):
        fenced_update(accounts, balance=values)
        assert balances(accounts) == [1, 2]
        with later_holder(accounts, "Barbara"), pytest.raises(StaleToken):
            fenced_update(accounts, balance=values)
    assert balances(accounts) == [1, 99]


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
def test_update__other_rows_decide(accounts: QuerySet[Account]) -> None:
    """Rows are not found by a join or a subquery: after the update that may no longer find what was stale."""
    for account in accounts:
        Deposit.objects.using(accounts.db).create(account=account, amount=5, run="a")
    richest = Account.objects.using(accounts.db).order_by("-balance").values("pk")
    deposits = Deposit.objects.using(accounts.db).filter(account=OuterRef("pk"))
    for rows in (
        accounts.filter(deposits__run="a"),
        accounts.annotate(n=Count("deposits")).filter(n=1),
        accounts.filter(pk__in=richest),
        accounts.filter(Exists(deposits)),
    ):
        with zk_lock(KEY), pytest.raises(TypeError, match="by a join or a subquery"):
            fenced_update(rows, balance=1)
        with zk_lock(KEY):
            assert fenced_update(accounts.filter(pk__in=[each.pk for each in rows]), balance=1) == 2
    with zk_lock(KEY):
        assert fenced_update(accounts.filter(pk__in=[]), balance=2) == 0


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_update__waits_for_the_row(accounts: QuerySet[Account]) -> None:
    """A statement that waits for a later holder's compares what that has written, and not what it had found."""
    connection = connections[accounts.db]
    other, observer = connection.copy(), connection.copy()

    def commit() -> None:
        with contextlib.closing(other), contextlib.closing(observer), observer.cursor() as cursor:
            try:
                wait_until(lambda: cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted") or cursor.fetchone())
            finally:
                other.commit()

    for each in (other, observer):
        each.inc_thread_sharing()
    with zk_lock(KEY) as held, ThreadPoolExecutor(1) as thread:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(WRITE, [held.token + 1, "Ada"])
        committed = thread.submit(commit)
        with pytest.raises(StaleToken):
            fenced_update(accounts.filter(name="Ada"), balance=0)
        committed.result()
    assert balances(accounts) == [99, 20]


def test_update__claims(accounts: QuerySet[Account]) -> None:
    """Without values, the rows get the token, and from then on no earlier holder can write."""
    with zk_lock(KEY) as held:
        with transaction.atomic(accounts.db):
            assert fenced_update(accounts.filter(name="Ada")) == 1
            account = accounts.select_for_update().get(name="Ada")
            account.balance += 5
            account.save()
        assert account.fence == held.token
    assert balances(accounts) == [15, 20]


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_update__repeatable_read(accounts: QuerySet[Account]) -> None:
    """A transaction that began before the later holder has written is refused too, and is told."""
    connection = connections[accounts.db]
    with zk_lock(KEY):
        connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic(accounts.db):
            assert balances(accounts) == [10, 20]
            other = connection.copy()
            with contextlib.closing(other), other.cursor() as cursor:
                cursor.execute("UPDATE billing_account SET fence = %s WHERE name = 'Ada'", [2**55])
            with pytest.raises(StaleToken):
                fenced_update(accounts.filter(name="Ada"), balance=0)


# save().


def test_save(accounts: QuerySet[Account]) -> None:
    """Under a lock, save() writes the token with the rest, also of a new row and of some fields only."""
    with zk_lock(KEY) as held:
        new = Account(name="Grace")
        new.save(using=accounts.db)
        assert accounts.get(name="Grace").fence == held.token
        ada = accounts.get(name="Ada")
        ada.balance = F("balance") + 5
        ada.save(update_fields=["balance"])
        assert (accounts.get(name="Ada").balance, accounts.get(name="Ada").fence) == (15, held.token)
        deferred = accounts.only("balance").get(name="Barbara")
        deferred.balance = 1
        deferred.save()
        assert accounts.get(name="Barbara").fence == held.token


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.parametrize("options", [{}, {"update_fields": ["balance"]}, {"force_update": True}])
def test_save__stale(options: dict[str, Any], accounts: QuerySet[Account]) -> None:
    """A late holder is refused, whatever is saved, and no second row is made."""
    ada = accounts.get(name="Ada")
    ada.balance = 0
    with zk_lock(KEY) as held:
        with later_holder(accounts), pytest.raises(StaleToken) as refused:
            ada.save(held=held, **options)
        assert refused.value.key == KEY
        assert ada.fence == 0
    assert balances(accounts) == [99, 20]


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.parametrize("signal", [pre_save, post_save], ids=["before", "after"])
def test_save__in_a_receiver(signal: ModelSignal, accounts: QuerySet[Account]) -> None:
    """A receiver may save the same instance, which is fenced as the rest of the outer save() is."""
    ada = accounts.get(name="Ada")
    saved: list[Account] = []

    def save(instance: Account, **_facts: Any) -> None:
        if not saved:
            saved.append(instance)
            instance.save(update_fields=["balance"])
            Account.objects.using(accounts.db).filter(pk=instance.pk).update(fence=2**55)

    signal.connect(save, sender=Account)
    try:
        with zk_lock(KEY):
            if signal is post_save:
                ada.save()
            with pytest.raises(StaleToken):
                ada.save()
    finally:
        signal.disconnect(save, sender=Account)
    assert saved == [ada]


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
def test_save__deleted(accounts: QuerySet[Account]) -> None:
    """What was deleted since is not inserted again, and a copy is a new row."""
    ada = accounts.get(name="Ada")
    accounts.filter(pk=ada.pk).delete()
    with zk_lock(KEY) as held:
        with pytest.raises(StaleToken, match=f"the Account with the primary key {ada.pk} is gone"):
            ada.save()
        assert accounts.filter(name="Ada").count() == 0
        Account(pk=ada.pk, name="Ada").save(using=accounts.db)
        assert accounts.get(name="Ada").fence == held.token
    accounts.filter(pk=ada.pk).delete()
    ada.save()
    assert accounts.filter(name="Ada").count() == 1


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
def test_save__deleted_and_read_from_a_replica(accounts: QuerySet[Account], monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is for an instance that a router has read from a replica; a copy for another database is a new row."""
    ada = accounts.get(name="Ada")
    accounts.filter(pk=ada.pk).delete()
    ada._state.db = "replica"
    writes_to = [accounts.db]
    router = SimpleNamespace(db_for_write=lambda _model, **_hints: writes_to[0])
    monkeypatch.setattr("django_zklock.fencing.router", router)
    with zk_lock(KEY):
        with pytest.raises(StaleToken, match="is gone"):
            ada.save(using=accounts.db)
        writes_to[0] = "replica"
        ada.save(using=accounts.db)
    assert accounts.filter(name="Ada").count() == 1


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
def test_save__deleted_with_its_parent(accounts: QuerySet[Account]) -> None:
    """So it is where the fence is in the table of a child, and the parent has none."""
    with isolate_apps("billing"):

        class Party(models.Model):  # noqa: DJ008
            class Meta:
                app_label = "billing"

        class Customer(FencedModel, Party):  # noqa: DJ008
            credit = models.IntegerField(default=0)

            class Meta:
                app_label = "billing"

    connection = connections[accounts.db]
    with connection.schema_editor() as editor:
        editor.create_model(Party)
        editor.create_model(Customer)
    try:
        customers = Customer._default_manager.using(accounts.db)
        with zk_lock(KEY):
            customer = customers.create()
            customer.save()
            customers.all().delete()
            with pytest.raises(StaleToken, match="is gone"):
                customer.save()
            assert customers.count() == 0
            customer.save(force_insert=True)
            assert customers.count() == 1
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Customer)
            editor.delete_model(Party)


def test_save__pickled_in_a_receiver(accounts: QuerySet[Account]) -> None:
    """A receiver may put the instance into a cache."""
    ada = accounts.get(name="Ada")
    cached: list[Account] = []

    def cache(instance: Account, **_facts: Any) -> None:
        cached.append(pickle.loads(pickle.dumps(instance)))

    post_save.connect(cache, sender=Account)
    try:
        with zk_lock(KEY):
            ada.save()
    finally:
        post_save.disconnect(cache, sender=Account)
    assert cached == [ada]


def test_save__nested_in_a_lock_of_several_keys(accounts: QuerySet[Account]) -> None:
    """A hold inside of a hold is the same lock, whichever of its keys it names."""
    for key in ("a", "b"):
        with zk_lock(["a", "b"]) as held, zk_lock(key):
            accounts[0].save()
        assert accounts[0].fence == held.token


def test_save__proxy(accounts: QuerySet[Account]) -> None:
    """A proxy has the fence of its model."""
    with isolate_apps("billing"):

        class Customer(Account):
            class Meta:
                app_label = "billing"
                proxy = True

    customers = Customer._default_manager.using(accounts.db)
    ada = customers.get(name="Ada")
    with zk_lock(KEY) as held:
        ada.save()
        assert ada.fence == accounts.get(name="Ada").fence == held.token
        with later_holder(accounts), pytest.raises(StaleToken):
            ada.save()
        with pytest.raises(StaleToken):
            fenced_update(customers.filter(name="Ada"), balance=0)


def test_save__failed(accounts: QuerySet[Account]) -> None:
    """A write that failed for another reason leaves no fence in an instance, and the next one is fenced."""
    ada = accounts.get(name="Ada")
    ada.name = "Barbara"
    with zk_lock(KEY) as held:
        with pytest.raises(IntegrityError):
            ada.save()
        assert ada.fence == 0
        ada.name = "Ada"
        ada.save()
        assert ada.fence == held.token


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_save__repeatable_read(accounts: QuerySet[Account], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for save() in a transaction that began before, however Django looks for the row."""
    connection = connections[accounts.db]
    ada = accounts.get(name="Ada")
    with zk_lock(KEY) as held:
        connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for select_on_save in (False, True):
            monkeypatch.setattr(Account._meta, "select_on_save", select_on_save)
            with contextlib.suppress(Undo), transaction.atomic(accounts.db):
                assert accounts.get(name="Ada").fence <= held.token
                other = connection.copy()
                with contextlib.closing(other), other.cursor() as cursor:
                    cursor.execute("UPDATE billing_account SET fence = %s WHERE name = 'Ada'", [2**55])
                with pytest.raises(StaleToken):
                    ada.save()
                raise Undo
            accounts.update(fence=0)


def test_save__without_a_lock(accounts: QuerySet[Account]) -> None:
    """Without a lock it is Django's own, and does not take back the fence of a later holder."""
    ada = accounts.get(name="Ada")
    with zk_lock(KEY) as held:
        fenced_update(accounts, balance=5)
    ada.balance = 6
    ada.save()
    assert (accounts.get(name="Ada").balance, accounts.get(name="Ada").fence) == (6, held.token)


# Which lock counts.


def test_hold(accounts: QuerySet[Account], ensemble: Ensemble) -> None:
    """The only exclusive lock of the caller counts; of several, the one that is named."""
    ada = accounts.get(name="Ada")
    with pytest.raises(NotHeld):
        fenced_update(accounts, balance=0)
    with zk_lock("readers", mode="read") as reader, zk_lock(["a", "b"]) as both, zk_lock("a"):
        fenced_update(accounts, balance=1)
        ada.save()
        assert ada.fence == both.token
        with pytest.raises(ValueError, match="is held as read"):
            fenced_update(accounts, reader, balance=0)
        with zk_lock("c") as inner:
            with pytest.raises(ValueError, match="several locks are held here, 'a, b', 'c': name the one"):
                ada.save()
            with pytest.raises(ValueError, match="several locks"):
                fenced_update(accounts, balance=0)
            ada.save(held=inner)
            assert ada.fence == inner.token
    with pytest.raises(NotHeld):
        fenced_update(accounts, both, balance=0)
    lost = zk_lock(KEY).acquire()
    ensemble.delete(lost)
    wait_until(lambda: lost.lost)
    with pytest.raises(LockLost):
        fenced_update(accounts, balance=0)
    lost.release()


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_update__skips_no_stale_row(accounts: QuerySet[Account]) -> None:
    """A stale row that another transaction has locked is found, though the caller would skip it."""
    other = connections[accounts.db].copy()
    other.inc_thread_sharing()
    with contextlib.closing(other), zk_lock(KEY) as held:
        accounts.filter(name="Ada").update(fence=held.token + 1)
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT * FROM billing_account WHERE name = 'Ada' FOR UPDATE")
        with pytest.raises(StaleToken):
            fenced_update(accounts.select_for_update(skip_locked=True), balance=0)
        other.rollback()
    assert balances(accounts) == [10, 20]


def test_slice(accounts: QuerySet[Account]) -> None:
    """What update() refuses is refused: a slice."""
    with zk_lock(KEY), pytest.raises(TypeError, match="once a slice has been taken"):
        fenced_update(accounts[:1], balance=0)


def test_models(accounts: QuerySet[Account]) -> None:
    """A model without a fence is refused."""
    with zk_lock(KEY), pytest.raises(TypeError, match="needs a FencedModel, and Deposit is none"):
        fenced_update(Deposit.objects.all(), amount=1)  # type: ignore[type-var]


def test_generation(accounts: QuerySet[Account], settings: Any) -> None:
    """A higher generation counts for more than every token of those before it."""
    with zk_lock(KEY) as held:
        accounts.update(fence=held.token + 2**40)
        with pytest.raises(StaleToken, match="GENERATION"):
            fenced_update(accounts, balance=0)
        settings.ZKLOCK["default"]["GENERATION"] = 1
        assert fenced_update(accounts, balance=0) == 2
        assert set(accounts.values_list("fence", flat=True)) == {2**TOKEN_BITS + held.token}
        settings.ZKLOCK["default"]["GENERATION"] = 127
        assert fenced_update(accounts, balance=0) == 2


# Many at once.


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@pytest.mark.timeout(max(120, WRITERS))
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_writers(accounts: QuerySet[Account], ensemble: Ensemble, django_db_blocker: DjangoDbBlocker) -> None:
    """Of many writers, of which every other one is paused until the next one has written, no late one is accepted.

    All of them write their token into the balance. A paused one has looked at its lock and is in the middle of its
    write: its session is another's and expires meanwhile.
    """
    ada = accounts.filter(name="Ada")
    alias, options = accounts.db, ensemble.pool.options
    accepted: list[int] = []
    refused: list[int] = []

    def late(pool: Pool, written: threading.Event, checked: threading.Event) -> None:
        """Acquire, check, and be paused just before the statement reaches the database."""

        def pause(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
            if sql.startswith("UPDATE"):
                checked.set()
                assert written.wait(100)
            return execute(sql, *arguments)

        with contextlib.closing(connections[alias]), connections[alias].execute_wrapper(pause):
            held = Lock(KEY, pool).acquire(30)
            try:
                write(held)
            finally:
                held.release()

    def write(held: Held) -> None:
        try:
            fenced_update(ada, held, balance=held.token)
            accepted.append(held.token)
        except StaleToken:
            refused.append(held.token)

    with ThreadPoolExecutor(1) as thread:
        for _ in range(WRITERS // 2):
            written, checked = threading.Event(), threading.Event()
            with contextlib.closing(Pool("default", options)) as pool:
                paused = thread.submit(late, pool, written, checked)
                try:
                    wait_until(lambda: checked.is_set() or paused.done())  # noqa: B023 - within the round
                    # The pause outlasts the lease: the servers take the lock away.
                    ensemble.observer.end_session(pool)
                    with zk_lock(KEY).acquire(60) as held:
                        write(held)
                finally:
                    written.set()
                paused.result(100)
    assert (len(accepted), len(refused)) == (WRITERS // 2, WRITERS // 2)
    assert accepted == sorted(accepted)
    assert ada.get().balance == max(accepted)
    assert current_lock() is None
