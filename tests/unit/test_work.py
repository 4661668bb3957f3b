"""The work that the calling code is a part of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_zklock import work
from django_zklock.zk.node_data import Work


def task(name: str | None) -> Callable[[], Work | None]:
    return lambda: Work(kind="task", name=name) if name else None


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "resolvers", [])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["manage.py", "migrate", "--plan"], "migrate"),
        (["/srv/shop/manage.py", "reindex"], "reindex"),
        (["/usr/bin/django-admin", "check"], "check"),
    ],
)
def test_work__management_command(monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str) -> None:
    """In a management command, the work has its name."""
    monkeypatch.setattr("sys.argv", argv)
    assert work.current_work() == Work(kind="command", name=name)


@pytest.mark.parametrize("argv", [[], [""], ["manage.py"], ["gunicorn", "shop.wsgi"], ["script.py", "migrate"]])
def test_work__unknown(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    """Other programs have no named work."""
    monkeypatch.setattr("sys.argv", argv)
    assert work.current_work() is None


def test_work__first_that_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers come before the program's name, and the first that knows the work counts."""
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    monkeypatch.setattr(work, "resolvers", [task(None), task("bill"), task("other")])
    assert work.current_work() == Work(kind="task", name="bill")
    monkeypatch.setattr(work, "resolvers", [task(None)])
    assert work.current_work() == Work(kind="command", name="migrate")
