"""Texts of the admin."""

from __future__ import annotations

import pytest

from django_zklock.admin.format import key_group

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize(
    ("key", "group"),
    [
        ("invoice:42", "invoice"),
        ("shop/7/invoice", "shop"),
        ("nightly", "nightly"),
        (":odd", ":odd"),
        ("x" * 99, "x" * 40),
    ],
)
def test_key_group(key: str, group: str) -> None:
    """Similar locks have the part of their keys before the first colon or slash in common."""
    assert key_group(key) == group
