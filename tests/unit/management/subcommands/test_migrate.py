"""``zklock migrate``: Django's command under a lock."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import BaseCommand, ManagementUtility

from django_zklock import current_lock
from tests.toolbox.django.command import failure, run
from tests.toolbox.django.layer import Ensemble

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


@pytest.mark.parametrize(
    ("arguments", "passed", "key"),
    [
        ([], [], "migrate"),
        (["--key", "shop", "--", "--database", "reports", "billing"], ["--database", "reports", "billing"], "shop"),
    ],
)
def test_migrate(
    arguments: list[str], passed: list[str], key: str, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs ``migrate`` without questions, with what follows the dashes, under the lock."""
    seen: list[Any] = []

    class Migrate(BaseCommand):
        def run_from_argv(self, argv: list[str]) -> None:
            held = current_lock()
            seen.append((argv[1:], held and held.key))

    def fetched(_utility: ManagementUtility, name: str) -> BaseCommand:
        assert name == "migrate"
        return Migrate()

    monkeypatch.setattr(ManagementUtility, "fetch_command", fetched)
    run("migrate", *arguments)
    assert seen == [(["migrate", "--no-input", *passed], key)]


def test_migrate__wrong(ensemble: Ensemble) -> None:
    """Arguments of Django's command in front of the dashes are refused, with the place where they belong."""
    assert "what is passed on to migrate stands after" in str(failure("migrate", "--fake"))
