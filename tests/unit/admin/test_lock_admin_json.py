"""The admin's JSON, on a real ZooKeeper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from kazoo.client import KazooClient

from django_zklock.zk import paths
from django_zklock.zk.node_data import Work
from tests.toolbox.django.command import Hold, Join, run
from tests.toolbox.network.port import free_port
from tests.unit.admin.pages import LIST, member

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

pytestmark = [pytest.mark.django_db, pytest.mark.oldest]

LIST_JSON = f"{LIST}json/"
# Values that differ between two reads.
VARIABLE = {"age"}


def url_of(key: str) -> str:
    return reverse("admin:django_zklock_lock_json", args=(quote(f"default/{paths.escape(key)}"),))


def without_variable(lock: dict[str, Any]) -> dict[str, Any]:
    places = [{name: value for name, value in place.items() if name not in VARIABLE} for place in lock["places"]]
    return lock | {"places": places}


def test_json__is_what_the_command_writes(viewer: Client, hold: Hold, join: Join) -> None:
    """One lock, and each lock in the list, has the names and values of `zklock show --format json`."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    join(held)
    response = viewer.get(url_of("account:17"))
    assert response["Content-Type"] == "application/json"
    assert response["Cache-Control"] == "no-store"
    written = without_variable(json.loads(run("show", "account:17", "--format", "json")))
    assert without_variable(response.json()) == written
    listed = viewer.get(LIST_JSON).json()
    assert written.pop("sent") == []
    assert [without_variable(lock) for lock in listed.pop("locks")] == [written]
    assert listed == {"page": 1, "pages": 1, "count": 1, "exact": True, "notices": [], "problems": []}


def test_json__parameters_of_the_list(viewer: Client, hold: Hold) -> None:
    """Search, filters, sorting and pages work as in the list; an unknown parameter is refused."""
    for key in ("account:1", "account:2", "report"):
        hold(key)

    def found(**parameters: str) -> list[str]:
        return [lock["key"] for lock in viewer.get(LIST_JSON, parameters).json()["locks"]]

    assert found() == ["account:1", "account:2", "report"]
    assert found(q="account", o="-0") == ["account:2", "account:1"]
    assert found(kind="read") == []
    for wrong in ({"nonsense": "1"}, {"password__contains": "1"}):
        response = viewer.get(LIST_JSON, wrong)
        assert response.status_code == 400
        assert "parameter" in response.json()["error"]


def test_json__free(viewer: Client, zklock: str) -> None:
    """A free lock has a JSON page too."""
    lock = viewer.get(url_of("a/b")).json()
    assert (lock["key"], lock["state"], lock["path"]) == ("a/b", "free", f"{zklock}/a%2Fb")


def test_json__no_such_lock(viewer: Client, zklock: str) -> None:
    response = viewer.get(f"{LIST}absent/json/")
    assert (response.status_code, response.json()) == (404, {"error": "no such lock"})


def test_json__hostile_texts(viewer: Client, zklock: str, kazoo_client: KazooClient) -> None:
    """The answer is valid JSON whatever data the nodes have."""
    for name, data in (("lock-", b"\xff\xfe"), ("lock-", b'{"v":1,"host":1e999,"pid":1e999}'), ("<b>", b"")):
        kazoo_client.create(f"{zklock}/odd/{name}", data, sequence=name == "lock-", ephemeral=True, makepath=True)
    lock = viewer.get(url_of("odd")).json()
    assert [place["identity"] for place in lock["places"]] == [None, None]
    assert lock["foreign"] == ["<b>"]


def test_json__unreachable(viewer: Client, settings: Settings) -> None:
    """Without ZooKeeper the status is 503, and the body says why."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    response = viewer.get(url_of("account:17"))
    assert response.status_code == 503
    assert response.json()["error"].startswith("no connection to ZooKeeper at 127.0.0.1:")
    response = viewer.get(LIST_JSON)
    assert response.status_code == 503
    (problem,) = response.json()["problems"]
    assert problem["alias"] == "default"
    assert problem["problem"].startswith("no connection to ZooKeeper at 127.0.0.1:")


def test_json__one_alias_away(viewer: Client, settings: Settings, zklock: str, hold: Hold) -> None:
    """An unavailable ensemble does not hide the others."""
    settings.ZKLOCK = settings.ZKLOCK | {"gone": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    hold("account:17")
    response = viewer.get(LIST_JSON)
    assert response.status_code == 200
    assert [lock["key"] for lock in response.json()["locks"]] == ["account:17"]
    assert [problem["alias"] for problem in response.json()["problems"]] == ["gone"]


@pytest.mark.parametrize("url", [LIST_JSON, f"{LIST}default_2Fx/json/"])
def test_json__permission_and_method(client: Client, zklock: str, url: str) -> None:
    """Only staff with the view permission, and only GET; a refusal is JSON, not a login page."""
    assert client.get(url).status_code == 403
    client.force_login(member("staff"))
    response = client.get(url)
    assert response.status_code == 403
    assert "staff" in response.json()["error"]
    client.force_login(member("viewer", "view_lock"))
    assert client.get(url).status_code == 200
    for method in (client.post, client.put, client.delete):
        response = method(url)
        assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")
