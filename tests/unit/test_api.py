"""The work that the calling code is a part of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from django_zklock import api
from django_zklock.zk.node_data import Work
from tests.toolbox.network.port import LOOPBACK

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.nocelery


def task(name: str | None) -> Callable[[], Work | None]:
    return lambda: Work(kind="task", name=name) if name else None


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "resolvers", [])


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
    assert api.current_work() == Work(kind="command", name=name)


def test_work__at_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task names itself; other code is named by its place, and by the management command that it is in."""
    place = Work(kind="function", name="shop.views.pay")
    monkeypatch.setattr("sys.argv", ["gunicorn"])
    assert api.current_work(place) == place
    assert api.current_work(None) is None
    monkeypatch.setattr("sys.argv", ["manage.py", "runserver"])
    found = api.current_work(place)
    assert found == Work(kind="function", name="shop.views.pay", command="runserver")
    assert str(found) == "function shop.views.pay in command runserver"
    assert api.current_work(None) == Work(kind="command", name="runserver")
    monkeypatch.setattr(api, "resolvers", [task("bill")])
    assert api.current_work(place) == Work(kind="task", name="bill")


class Shop:
    """A place of code."""

    def pay(self) -> Work | None:
        def inner() -> Work | None:
            return api.place_of(sys._getframe(0))

        return inner()


def test_place_of() -> None:
    """A place is named by module and function; code of a module by the module, and that of none has no name."""
    assert Shop().pay() == Work(kind="function", name=f"{__name__}.Shop.pay.inner")
    found: dict[str, Any] = {"__name__": "shop.settings", "api": api, "sys": sys}
    exec("place = api.place_of(sys._getframe(0))", found)
    assert found["place"] == Work(kind="function", name="shop.settings")
    del found["__name__"]
    exec("place = api.place_of(sys._getframe(0))", found)
    assert found["place"] is None


@pytest.mark.parametrize("argv", [[], [""], ["manage.py"], ["gunicorn", "shop.wsgi"], ["script.py", "migrate"]])
def test_work__unknown(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    """Other programs have no named work."""
    monkeypatch.setattr("sys.argv", argv)
    assert api.current_work() is None


def test_work__first_that_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers come before the program's name, and the first that knows the work counts."""
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    monkeypatch.setattr(api, "resolvers", [task(None), task("bill"), task("other")])
    assert api.current_work() == Work(kind="task", name="bill")
    monkeypatch.setattr(api, "resolvers", [task(None)])
    assert api.current_work() == Work(kind="command", name="migrate")


@pytest.mark.parametrize("key", [f"k:{object()}", ["k", f"k:{object()}"]], ids=["one key", "several"])
def test_zk_lock__address(key: Any) -> None:
    """A key that an f-string has made of an object without a text is refused, as in a template."""
    with pytest.raises(ValueError, match="an object without a __str__: write an attribute of that object"):
        api.zk_lock(key)


def test_zk_lock__like_an_address(settings: Settings) -> None:
    """Words that look like the beginning of an address are a key like any other."""
    settings.ZKLOCK = {"default": {"HOSTS": LOOPBACK}}
    assert api.zk_lock("register at 0x40").key == "register at 0x40"
