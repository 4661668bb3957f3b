"""What a fenced model is, apart from its writes, which are tested on every database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from billing.models import Account
from django.db import models
from django.test.utils import isolate_apps

from django_zklock import FencedModel, fenced_update, zk_lock
from django_zklock.conf import TOKEN_BITS
from django_zklock.fencing import fence_of
from tests.support.django_layer import Ensemble

pytest_plugins = ["tests.support.settings_fixtures"]


def test_field() -> None:
    """The fence is one column, which forms leave out and the database fills for those who do not know it."""
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
@pytest.mark.django_db
def test_inherited_table(ensemble: Ensemble) -> None:
    """A model whose fence is in the table of its parent is refused: that takes two statements."""

    class Gold(Account):
        class Meta:
            app_label = "billing"

    with zk_lock("k"), pytest.raises(TypeError, match="the table of Gold has no fence"):
        fenced_update(Gold._default_manager.all(), balance=1)


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


@pytest.mark.django_db(transaction=True)
def test_async(ensemble: Ensemble) -> None:
    """Async code that holds a lock is the owner in the threads that Django uses for it."""

    async def main() -> int:
        async with zk_lock("k") as held:
            account = Account(name="Ada")
            await account.asave()
            assert account.fence == held.token
            update: Callable[..., int] = sync_to_async(fenced_update)  # type: ignore[assignment]
            assert await update(Account.objects.all(), balance=1) == 1  # type: ignore[misc]
            return held.token

    assert asyncio.run(main()) == Account.objects.get().fence
