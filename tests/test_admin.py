"""The admin's list of locks, on a real ZooKeeper."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import Client
from django.urls import NoReverseMatch, reverse
from kazoo.client import KazooClient
from services.port import free_port
from services.zookeeper import ZooKeeper

from django_zklock.admin import LockAdmin
from django_zklock.locks import zk_lock
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work

if TYPE_CHECKING:
    from pytest_django import Settings

URL = "/admin/django_zklock/lock/"
GUID = "01234567-89ab-cdef-0123-456789abcdef"
NASTY = "<script>alert('1')</script>&\u202egpj.exe\x1b[31m"

pytestmark = [pytest.mark.django_db, pytest.mark.zookeeper]


def text_of(response: HttpResponseBase) -> str:
    """Give what a reader sees, roughly: tags become spaces."""
    assert isinstance(response, HttpResponse)
    body = response.content.decode()
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body)))


@pytest.fixture
def viewer(client: Client) -> Client:
    """Log in a member of staff who may view locks, and nothing else."""
    user = User.objects.create_user("viewer", password="viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_lock"))
    client.force_login(user)
    return client


@pytest.fixture
def hold(zklock: str) -> Iterator[Callable[..., Held]]:
    """Give a function that takes a lock until the end of the test."""
    taken: list[Held] = []

    def take(key: str, work: Work | None = None, using: str = "default") -> Held:
        taken.append(zk_lock(key, using=using, work=lambda: work).acquire(5))
        return taken[-1]

    yield take
    for held in taken:
        held.release()


def test_list__what_a_row_says(viewer: Client, hold: Callable[..., Held], outsider: KazooClient) -> None:
    """Key, holder with work, process and host, age, waiters, state, kind, token and alias."""
    held = hold("account:17", Work(kind="task", name="billing.tasks.settle", id="5b7e3c52"))
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    response = viewer.get(URL)
    assert response.status_code == 200
    text = text_of(response)
    assert "account:17" in text
    assert "task billing.tasks.settle [5b7e3c52] pid " in text
    assert re.search(rf" \d s 1 held exclusive {held.token} default ", text)
    assert "Read from ZooKeeper at" in text


def test_list__empty(viewer: Client, zklock: str) -> None:
    """An empty list says that it is empty and what it is about."""
    text = text_of(viewer.get(URL))
    assert "No locks are in use. A lock is listed here as long as somebody holds it" in text


def test_list__hostile_texts(viewer: Client, hold: Callable[..., Held]) -> None:
    """Nothing out of a znode becomes markup, or turns the text around."""
    hold(NASTY, Work(kind="<b>", name=NASTY, id='"><img src=x onerror=alert(1)>'))
    body = viewer.get(URL).content.decode()
    assert "<script>alert" not in body
    assert "<img src=x" not in body
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;\\u202egpj.exe\\x1b[31m" in body


def test_list__foreign_client(viewer: Client, zklock: str, outsider: KazooClient) -> None:
    """A holder that left no identity, as kazoo's and Curator's do, is told by its session."""
    outsider.create(f"{zklock}/plain/_c_{GUID}-lock-", b"10.0.0.7", ephemeral=True, sequence=True, makepath=True)
    session, _password = outsider.client_id
    assert f"unknown client, session 0x{session:x}" in text_of(viewer.get(URL))


def test_list__foreign_nodes(viewer: Client, zklock: str, outsider: KazooClient) -> None:
    """What is of no recipe that we know is shown as such, and not as free."""
    outsider.create(f"{zklock}/strange/<b>no lock</b>", b"\xff\x00", ephemeral=True, makepath=True)
    text = text_of(viewer.get(URL))
    assert re.search(r"strange .* unknown ", text)


def test_list__many_holders(viewer: Client, zklock: str, outsider: KazooClient) -> None:
    """A lock that many hold names the first and counts the rest."""
    for _number in range(5):
        outsider.create(f"{zklock}/shared/_c_{GUID}-__READ__", ephemeral=True, sequence=True, makepath=True)
    text = text_of(viewer.get(URL))
    assert text.count("unknown client") == 3
    assert "and 2 more" in text


def test_list__search(viewer: Client, hold: Callable[..., Held]) -> None:
    """The parameter q finds parts of keys, whatever their case, and says how many of how many."""
    for key in ("account:1", "account:2", "Report:Q3"):
        hold(key)
    text = text_of(viewer.get(URL, {"q": "report"}))
    assert "Report:Q3" in text
    assert "account:1" not in text
    assert "1 result ( 3 total )" in text


def test_list__search_finds_nothing(viewer: Client, hold: Callable[..., Held]) -> None:
    """Nothing found is something else than nothing there; the search text is escaped."""
    hold("account:1")
    response = viewer.get(URL, {"q": "<i>nix"})
    assert "<i>nix" not in response.content.decode()
    assert "No lock in use has “<i>nix” in its key." in text_of(response)


def test_list__pages(viewer: Client, hold: Callable[..., Held], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many locks are divided into pages; a page that is not there gives the last one."""
    monkeypatch.setattr(LockAdmin, "list_per_page", 2)
    for number in range(5):
        hold(f"batch:{number}")
    text = text_of(viewer.get(URL, {"p": "2"}))
    assert [number for number in range(5) if f"batch:{number}" in text] == [2, 3]
    assert "5 locks" in text
    assert "batch:4" in text_of(viewer.get(URL, {"p": "99"}))
    assert "batch:0" in text_of(viewer.get(URL, {"p": "nonsense"}))


def test_list__several_aliases(viewer: Client, hold: Callable[..., Held], settings: Settings) -> None:
    """Locks of every alias are in one list."""
    settings.ZKLOCK = settings.ZKLOCK | {
        "reports": settings.ZKLOCK["default"] | {"ROOT": settings.ZKLOCK["default"]["ROOT"] + "-reports"}
    }
    hold("same key", using="default")
    hold("same key", using="reports")
    text = text_of(viewer.get(URL))
    assert text.count("same key") == 2
    assert "exclusive" in text
    assert re.search(r"\d+ default .* \d+ reports ", text)


def test_list__unreachable(viewer: Client, hold: Callable[..., Held], settings: Settings) -> None:
    """An ensemble that cannot be reached is a message, soon, and does not hide what the others say."""
    settings.ZKLOCK = settings.ZKLOCK | {"gone": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    hold("account:1")
    began = time.monotonic()
    response = viewer.get(URL)
    assert time.monotonic() - began < 4
    assert response.status_code == 200
    text = text_of(response)
    assert "Locks of “gone” cannot be shown. ZooKeeper at 127.0.0.1:" in text
    assert "account:1" in text


def test_list__stopped_server(viewer: Client, settings: Settings) -> None:
    """A server that accepts connections and says nothing is told in the same way."""
    with ZooKeeper() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": 1}}
        assert viewer.get(URL).status_code == 200
        server.pause()
        began = time.monotonic()
        response = viewer.get(URL)
        assert time.monotonic() - began < 6
        server.resume()
    assert response.status_code == 200
    text = text_of(response)
    assert "Locks of “default” cannot be shown." in text
    assert "No locks are in use" not in text


def test_list__wrong_setting(viewer: Client, settings: Settings) -> None:
    """A setting that cannot be read is a message too."""
    settings.ZKLOCK = None
    response = viewer.get(URL)
    assert response.status_code == 200
    assert "ZKLOCK is not set" in text_of(response)
    settings.ZKLOCK = {"default": {"HOSTS": ""}}
    assert 'ZKLOCK["default"]["HOSTS"] must be a non-empty string' in text_of(viewer.get(URL))


def test_list__needs_the_permission(client: Client, zklock: str) -> None:
    """Strangers are asked to log in; staff without the permission are refused."""
    assert client.get(URL).status_code == 302
    client.force_login(User.objects.create_user("staff", password="staff", is_staff=True))
    assert client.get(URL).status_code == 403
    client.force_login(User.objects.create_user("nobody", password="nobody"))
    assert client.get(URL).status_code == 302


def test_index__links_to_the_list(viewer: Client, zklock: str) -> None:
    """The admin's index leads there, and offers nothing to add."""
    body = viewer.get("/admin/").content.decode()
    assert f'href="{URL}"' in body
    assert f"{URL}add/" not in body


@pytest.mark.parametrize("path", ["add/", "default%2Faccount/change/", "x/delete/", "x/history/"])
def test_other_pages__are_not_there(admin_client: Client, path: str) -> None:
    """There is nothing to add, change or delete, not even for a superuser."""
    assert admin_client.get(URL + path).status_code == 404
    assert admin_client.post(URL + path).status_code == 404


@pytest.mark.parametrize("name", ["add", "change", "delete", "history"])
def test_other_pages__have_no_address(name: str) -> None:
    """So nothing can link to them."""
    with pytest.raises(NoReverseMatch):
        reverse(f"admin:django_zklock_lock_{name}")


def test_list__post_changes_nothing(admin_client: Client, hold: Callable[..., Held]) -> None:
    """The list has no actions; a forged one is ignored."""
    held = hold("account:1")
    response = admin_client.post(URL, {"action": "delete_selected", "_selected_action": "default/account:1"})
    assert response.status_code == 200
    held.check()
