"""The texts of values in keys."""

from __future__ import annotations

import pytest
from billing.models import Account
from django.contrib.auth.models import User
from django.utils.functional import SimpleLazyObject

from django_zklock.key_value import key_text


class ProxyAccount(Account):
    class Meta:
        proxy = True
        app_label = "billing"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Account(pk=7), "billing.account:7"),
        (ProxyAccount(pk=7), "billing.account:7"),
        (SimpleLazyObject(lambda: User(pk=3)), "auth.user:3"),
        (0, "0"),
        (False, "False"),
        (("a", 1), "('a', 1)"),
    ],
)
def test_key_text(value: object, text: str) -> None:
    """A model instance becomes the label of its concrete model and the primary key; others become their text."""
    assert key_text(value) == text


def test_key_text__composite_primary_key() -> None:
    """A composite primary key of which a part is missing belongs to an unsaved instance."""

    class Line(Account):
        class Meta:
            proxy = True
            app_label = "billing"

        pk = (1, None)  # type: ignore[assignment]

    with pytest.raises(ValueError, match="unsaved"):
        key_text(Line())
