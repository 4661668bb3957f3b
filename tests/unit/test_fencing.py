"""What a fenced model is, apart from its writes, which are tested on every database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from billing.models import Account, Deposit
from django.db import connection, models
from django.test.utils import isolate_apps

from django_zklock import FencedModel, NotHeld, StaleToken, afenced_update, fenced_update, zk_lock
from django_zklock.conf import TOKEN_BITS
from django_zklock.fencing import fence_of
from tests.toolbox.django.layer import Ensemble

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


def test_field() -> None:
    """The fence is one column, which forms leave out and the database fills for writers that do not know it."""
    (field,) = (field for field in Account._meta.fields if field.name == "fence")
    assert isinstance(field, models.BigIntegerField)
    assert (field.get_default(), field.has_db_default(), field.editable) == (0, True, False)


@isolate_apps("billing")
def test_check(settings: Any) -> None:
    """A model must name an alias that exists."""

    class Report(FencedModel):
        fence_using = "reports"

        class Meta:
            app_label = "billing"

    settings.ZKLOCK = {"default": {"HOSTS": "zk:2181"}, "reports": {"HOSTS": "zk:2181"}}
    assert Report.check() == []
    del settings.ZKLOCK["reports"]
    (message,) = Report.check()
    assert (message.id, message.obj) == ("django_zklock.E005", Report)
    assert "no alias 'reports'" in message.msg


@isolate_apps("billing")
@pytest.mark.parametrize("using", [None, 5, ("default",)], ids=repr)
def test_check__no_alias(using: Any) -> None:
    """What is neither an alias nor a function is found before the first row is written."""

    class Report(FencedModel):
        fence_using = using

        class Meta:
            app_label = "billing"

    (message,) = Report.check()
    assert message.id == "django_zklock.E005"
    assert "using must be the name of an alias" in message.msg


@isolate_apps("billing")
@pytest.mark.django_db(transaction=True)
def test_using__function(ensemble: Ensemble, settings: Any) -> None:
    """Rows whose locks are spread over ensembles take the tokens of the one that has their lock, and of no other."""
    default = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": default, "other": default | {"ROOT": f"{ensemble.root}/other", "GENERATION": 1}}

    class Spread(FencedModel):
        fence_using = lambda key: "other" if key.startswith("b") else "default"  # noqa: E731

        class Meta:
            app_label = "billing"

    assert Spread.check() == []
    with tables(Spread):
        with zk_lock("a1", using=Spread.fence_using) as held:
            row = Spread._default_manager.create()
            assert row.fence == held.token
        with zk_lock("a1"), zk_lock("b1", using=Spread.fence_using) as held:
            with pytest.raises(ValueError, match="several locks are held here, 'a1', 'b1'"):
                row.save()
            row.save(held=held)
            assert row.fence == 1 << TOKEN_BITS | held.token
        # The hold of a key that belongs to another ensemble by this function.
        with zk_lock("b1") as held:
            with pytest.raises(ValueError, match="lock 'b1' is of the ensemble 'default'"):
                fenced_update(Spread._default_manager.all(), held)
            with pytest.raises(NotHeld):
                fenced_update(Spread._default_manager.all())


@contextlib.contextmanager
def tables(*created: type[models.Model]) -> Iterator[None]:
    """Make tables of models that other tests know nothing of."""
    for model in created:
        with connection.schema_editor() as editor:
            editor.create_model(model)
    try:
        yield
    finally:
        for model in reversed(created):
            with connection.schema_editor() as editor:
                editor.delete_model(model)


@pytest.mark.shows("guarantees#a-fenced-write-is-refused-when-it-is-late")
@isolate_apps("billing")
@pytest.mark.django_db(transaction=True)
def test_inherited_table(ensemble: Ensemble) -> None:
    """A model of two tables is fenced by save(), and by an update of the table with the fence alone."""

    class Gold(Account):
        class Meta:
            app_label = "billing"

        rank = models.IntegerField(default=0)

    class Audited(FencedModel, Deposit):
        class Meta:
            app_label = "billing"

        note = models.TextField()

    def rows(model: Any) -> Any:
        return model._default_manager.all()

    with tables(Gold, Audited), zk_lock("k") as held:
        gold = Gold(name="Ada")
        gold.save()
        audited = Audited(account=gold, amount=1)
        audited.save()
        assert gold.fence == audited.fence == Account.objects.get().fence == held.token
        with pytest.raises(TypeError, match="'fence' of Gold is in that of Account"):
            fenced_update(rows(Gold), rank=1)
        with pytest.raises(TypeError, match="'amount' of Audited is in that of Deposit"):
            fenced_update(rows(Audited), note="b", amount=2)
        with pytest.raises(TypeError, match="by a join"):
            fenced_update(rows(Audited).filter(amount=1), note="a")
        assert fenced_update(rows(Audited).filter(pk=audited.pk), note="a") == 1
        Account.objects.update(fence=held.token + 1)
        rows(Audited).update(fence=held.token + 1)
        gold.rank, audited.note = 1, "b"
        for late, fields in ((gold, None), (gold, ["rank"]), (audited, None)):
            with pytest.raises(StaleToken):
                late.save(update_fields=fields)
        with pytest.raises(StaleToken):
            fenced_update(rows(Audited).filter(pk=audited.pk), note="b")
        assert (rows(Gold).get().rank, rows(Audited).get().note) == (0, "a")


@isolate_apps("billing")
@pytest.mark.django_db(transaction=True)
def test_field_names(ensemble: Ensemble) -> None:
    """A field may be named like an argument."""

    class Seat(FencedModel):
        class Meta:
            app_label = "billing"

        held = models.BooleanField(default=False)
        queryset = models.IntegerField(default=0)

    with tables(Seat), zk_lock("k"):
        Seat().save()
        assert fenced_update(Seat._default_manager.all(), held=True, queryset=1) == 1
        assert Seat._default_manager.get().held


def test_fence(ensemble: Ensemble, settings: Any) -> None:
    """A fence is the token below the generation; a token that needs the room of the generation is refused."""
    with zk_lock("k") as held:
        assert fence_of(held, "default") == held.token
        settings.ZKLOCK["default"]["GENERATION"] = 127
        assert fence_of(held, "default") == 127 * 2**TOKEN_BITS + held.token < 2**63
        with pytest.raises(ValueError, match="cannot be compared"):
            fence_of(held, "other")
        held.token = 2**TOKEN_BITS
        with pytest.raises(ValueError, match="more than 56 bits"):
            fence_of(held, "default")


@pytest.mark.django_db
def test_fork(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has inherited a hold over a fork holds nothing: its writes are Django's own."""
    account = Account(name="Ada")
    with zk_lock("k") as held:
        monkeypatch.setattr(held.lock.pool.sessions()[0], "pid", -1)
        account.save()
        with pytest.raises(NotHeld):
            fenced_update(Account.objects.all(), balance=1)
        monkeypatch.undo()
    assert Account.objects.get().fence == 0


@pytest.mark.django_db(transaction=True)
def test_async(ensemble: Ensemble) -> None:
    """Async code that holds a lock is the owner in the threads that Django uses for it."""

    async def main() -> int:
        async with zk_lock("k") as held:
            account = Account(name="Ada")
            await account.asave()
            assert account.fence == held.token
            assert await afenced_update(Account.objects.all(), balance=1) == 1
            async with zk_lock("other"):
                with pytest.raises(ValueError, match="several locks"):
                    await account.asave()
                await account.asave(held=held, update_fields=["name"])
                assert await afenced_update(Account.objects.all(), held) == 1
            return held.token

    assert asyncio.run(main()) == Account.objects.get().fence
