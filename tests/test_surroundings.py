"""What a process says about what it runs."""

from __future__ import annotations

import pytest

from django_zklock import surroundings
from django_zklock.zk.identity import Work


class Task:
    def __init__(self, name: str | None) -> None:
        self.name = name

    def work(self) -> Work | None:
        return Work(kind="task", name=self.name) if self.name else None


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "known", [])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["manage.py", "migrate", "--plan"], "migrate"),
        (["/srv/shop/manage.py", "reindex"], "reindex"),
        (["/usr/bin/django-admin", "check"], "check"),
    ],
)
def test_work__management_command(monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str) -> None:
    """A management command names itself."""
    monkeypatch.setattr("sys.argv", argv)
    assert surroundings.work() == Work(kind="command", name=name)


@pytest.mark.parametrize("argv", [[], [""], ["manage.py"], ["gunicorn", "shop.wsgi"], ["script.py", "migrate"]])
def test_work__unknown(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    """Other programs have no name to give."""
    monkeypatch.setattr("sys.argv", argv)
    assert surroundings.work() is None


def test_work__first_that_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Surroundings that know what runs come before the program, and are asked in their order."""
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    monkeypatch.setattr(surroundings, "known", [Task(None), Task("bill"), Task("other")])
    assert surroundings.work() == Work(kind="task", name="bill")
    monkeypatch.setattr(surroundings, "known", [Task(None)])
    assert surroundings.work() == Work(kind="command", name="migrate")
