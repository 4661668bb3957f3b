"""The admin's list of locks, on a real ZooKeeper."""

from __future__ import annotations

import os
import re
import time
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import NoReverseMatch, reverse
from kazoo.client import KazooClient

from django_zklock.admin import LockAdmin, changelist
from django_zklock.connections import connections
from django_zklock.zk import node_data
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import actions
from tests.toolbox.django.command import Hold, Join
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import GRACE
from tests.toolbox.zookeeper.server import ZooKeeper
from tests.unit.admin.pages import LIST, NASTY, body_of, text_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

pytestmark = [pytest.mark.django_db, pytest.mark.oldest]


def test_list__row(viewer: Client, hold: Hold, join: Join) -> None:
    """A row has two lines: key, work, time of the hold and waiters; kind, token, process and host."""
    held = hold("account:17", Work(kind="task", name="billing.tasks.settle", id="5b7e3c52"))
    join(held)
    response = viewer.get(LIST)
    assert response.status_code == 200
    text = text_of(response)
    assert re.search(
        rf" account:17 exclusive · token {held.token} task billing.tasks.settle \[ 5b7e3c52 \] pid .* held for \d s "
        "1 waiting ",
        text,
    )
    assert re.search(r"Read from ZooKeeper at \d\d:\d\d:\d\d UTC\.", text)


def test_list__moment_of_the_grant_is_not_known(
    viewer: Client, hold: Hold, kazoo_client: KazooClient, join: Join
) -> None:
    """A holder whose queue had other nodes before may have waited, so the time of its hold is a maximum."""
    kazoo_client.delete(join("account:17"))
    hold("account:17")
    hold("account:18")
    text = text_of(viewer.get(LIST))
    assert re.search(r" account:17 exclusive .* held for at most \d s ", text)
    assert re.search(r" account:18 exclusive .* held for \d s ", text)


def test_list__needs_attention(viewer: Client, hold: Hold, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks with waiters, with release requested, and old ones are counted, with links that filter the list."""
    for number in range(2):
        contended = hold(f"contended-{number}")
        for _ in range(2):
            join(contended)
    actions.revoke(connections["default"], hold("revoked").node, "urgent", timeout=60)
    text = text_of(viewer.get(LIST))
    assert "4 waiting for 2 locks release of 1 lock requested Key Holder" in text
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    body = body_of(viewer.get(LIST))
    assert "3 held for over an hour" in body
    for query in ("state=contended", "state=revoked", "older=3600"):
        assert re.search(rf'<a class="zklock-badge [^"]*" href="\?{query}"', body)


def test_list__perhaps_held_for_long(
    viewer: Client, kazoo_client: KazooClient, join: Join, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A holder that may have waited for most of an hour is not called one that has held for an hour."""
    identity = Identity(host="web1", pid=71, work=Work(kind="task", name="bill", id="77"))
    now = time.time()
    granted = node_data.add_run(identity.encode(), child=93, granted=now + 3600, forgotten=False)
    # The first node of a queue has not waited.
    kazoo_client.delete(join("granted"))
    for key, data in (("known", identity.encode()), ("unknown", identity.encode(keys=2)), ("granted", granted)):
        join(key, data)
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    text = text_of(viewer.get(LIST))
    assert " 1 held for over an hour 1 perhaps held for over an hour " in text
    assert re.search(r" unknown exclusive .* held for at most 1 h ", text)
    settings.LANGUAGE_CODE = "de"
    text = text_of(viewer.get(LIST))
    assert " 1 seit über einer Stunde gehalten 1 vielleicht seit über einer Stunde gehalten " in text


def test_list__needs_no_attention(viewer: Client, hold: Hold) -> None:
    """If no lock needs attention, the page says so."""
    hold("account:17")
    assert "No lock of this page needs attention." in text_of(viewer.get(LIST))


def test_list__most_urgent_first(viewer: Client, hold: Hold, join: Join) -> None:
    """The list begins with contended locks, then those with release requested, then the oldest; a link leads there."""
    hold("key-old")
    hold("key-new")
    actions.revoke(connections["default"], hold("key-revoked").node, "urgent", timeout=60)
    contended = hold("key-contended")
    join(contended)
    [query] = re.findall(
        r'href="(\?[^"]*)">Most urgent first<', body_of(viewer.get(LIST, {"kind": "exclusive", "o": "0"}))
    )
    response = viewer.get(LIST + unescape(query))
    order = ["contended", "revoked", "old", "new"]
    assert re.findall(r" key-(\w+) (?:release requested )?exclusive ", text_of(response)) == order
    assert re.findall(r" key-(\w+) (?:release requested )?exclusive ", text_of(viewer.get(LIST))) == order
    assert "Most urgent first" not in text_of(response)


def test_list__long_texts(viewer: Client, hold: Hold) -> None:
    """The style sheet cuts long texts; the whole is in the page, to be copied, and in the tooltip."""
    task = "f475b027-675d-538b-8263-843cf506e68c"
    hold("account:17", Work(kind="task", name="billing.tasks.settle", id=task))
    body = body_of(viewer.get(LIST))
    assert f'<bdi class="zklock-id" title="{task}">{task}</bdi>' in body
    assert '<bdi class="zklock-clamp" title="account:17">account:17</bdi>' in body


def test_list__empty(viewer: Client, zklock: str) -> None:
    """An empty list says that no locks are in use and when a lock is listed."""
    text = text_of(viewer.get(LIST))
    assert "No locks are in use. A lock is listed while it has a holder" in text


def test_list__hostile_texts(viewer: Client, hold: Hold) -> None:
    """No text from a znode becomes markup or reverses the direction of writing."""
    hold(NASTY, Work(kind="<b>", name=NASTY, id='"><img src=x onerror=alert(1)>'))
    body = body_of(viewer.get(LIST))
    assert "<script>alert" not in body
    assert "<img src=x" not in body
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;\\u202egpj.exe\\x1b[31m" in body


def test_list__foreign_client(viewer: Client, kazoo_client: KazooClient, join: Join) -> None:
    """A holder without an identity, for example one of kazoo or Curator, is shown with its session."""
    join("plain", b"10.0.0.7")
    session, _password = kazoo_client.client_id
    assert f"unknown client, session 0x{session:x}" in text_of(viewer.get(LIST))


def test_list__foreign_nodes(viewer: Client, zklock: str, kazoo_client: KazooClient) -> None:
    """A lock with only nodes of unknown recipes is shown as unknown, not as free."""
    kazoo_client.create(f"{zklock}/strange/<b>no lock</b>", b"\xff\x00", ephemeral=True, makepath=True)
    text = text_of(viewer.get(LIST))
    assert re.search(r" strange unknown ", text)


def test_list__many_holders(viewer: Client, join: Join) -> None:
    """Of many holders the first is named and the others counted."""
    for _number in range(5):
        join("shared", label="__READ__")
    text = text_of(viewer.get(LIST))
    assert text.count("unknown client") == 1
    assert "and 4 more" in text


def test_list__search(viewer: Client, hold: Hold) -> None:
    """The parameter q matches parts of keys, in any case, or whole keys as a pattern; the list shows the count."""
    for key in ("account:1", "account:2", "Report:Q3"):
        hold(key)
    text = text_of(viewer.get(LIST, {"q": "report"}))
    assert "Report:Q3" in text
    assert "account:1" not in text
    assert "1 result ( Show all )" in text
    text = text_of(viewer.get(LIST, {"q": "account:?"}))
    assert "account:1" in text
    assert "Report:Q3" not in text


def test_list__search_finds_nothing(viewer: Client, hold: Hold) -> None:
    """A search without a match differs from an empty list; the search text is escaped."""
    hold("account:1")
    response = viewer.get(LIST, {"q": "<i>nix"})
    assert "<i>nix" not in response.content.decode()
    assert "No key of a lock in use matches “<i>nix”." in text_of(response)


def test_list__pages(viewer: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many locks are divided into pages; a page beyond the last one shows the last one."""
    monkeypatch.setattr(LockAdmin, "list_per_page", 2)
    for number in range(5):
        hold(f"batch:{number}")
    text = text_of(viewer.get(LIST, {"p": "2", "o": "0"}))
    assert [number for number in range(5) if f"batch:{number}" in text] == [2, 3]
    assert "at most 5 locks" in text
    assert "batch:4" in text_of(viewer.get(LIST, {"p": "99", "o": "0"}))
    assert "batch:0" in text_of(viewer.get(LIST, {"p": "nonsense", "o": "0"}))


def test_list__several_aliases(viewer: Client, hold: Hold, settings: Settings) -> None:
    """The list has the locks of every alias."""
    settings.ZKLOCK = settings.ZKLOCK | {
        "reports": settings.ZKLOCK["default"] | {"ROOT": settings.ZKLOCK["default"]["ROOT"] + "-reports"}
    }
    hold("same key", using="default")
    hold("same key", using="reports")
    text = text_of(viewer.get(LIST))
    assert re.search(r" same key exclusive · token \d+ [^·]*", text)
    assert re.search(r" same key exclusive · token \d+ · reports ", text)


def test_list__unreachable(viewer: Client, hold: Hold, settings: Settings) -> None:
    """An unreachable ensemble is shown as a message in time, beside the locks of the others."""
    settings.ZKLOCK = settings.ZKLOCK | {"gone": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    hold("account:1")
    began = time.monotonic()
    response = viewer.get(LIST)
    assert time.monotonic() - began < 4 + GRACE
    assert response.status_code == 200
    text = text_of(response)
    assert "Locks of “gone” cannot be shown. no connection to ZooKeeper at 127.0.0.1:" in text
    assert "account:1" in text


@pytest.mark.zookeeper
def test_list__stopped_server(viewer: Client, settings: Settings) -> None:
    """So is a server that accepts connections and never answers."""
    with ZooKeeper() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": 1}}
        assert viewer.get(LIST).status_code == 200
        server.pause()
        began = time.monotonic()
        response = viewer.get(LIST)
        assert time.monotonic() - began < 6 + GRACE
        server.resume()
    assert response.status_code == 200
    text = text_of(response)
    assert "Locks of “default” cannot be shown." in text
    assert "No locks are in use" not in text


def test_list__wrong_setting(viewer: Client, settings: Settings) -> None:
    """A wrong setting is shown as a message."""
    settings.ZKLOCK = None
    response = viewer.get(LIST)
    assert response.status_code == 200
    assert "ZKLOCK is not set" in text_of(response)
    settings.ZKLOCK = {"default": {"HOSTS": ""}}
    assert 'ZKLOCK["default"]["HOSTS"] must be a non-empty string' in text_of(viewer.get(LIST))


def test_list__needs_the_permission(client: Client, zklock: str) -> None:
    """Without login there is the login page; staff without the permission are refused."""
    assert client.get(LIST).status_code == 302
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(LIST).status_code == 403
    client.force_login(User.objects.create_user("customer"))
    assert client.get(LIST).status_code == 302


def test_index__links_to_the_list(viewer: Client, zklock: str) -> None:
    """The admin's index links to the list and not to a page for adding."""
    body = viewer.get("/admin/").content.decode()
    assert f'href="{LIST}"' in body
    assert f"{LIST}add/" not in body


@pytest.mark.parametrize("path", ["add/", "x/delete/"])
def test_other_pages__are_not_there(admin_client: Client, path: str) -> None:
    """There are no pages for adding and deleting, not even for a superuser."""
    assert admin_client.get(LIST + path).status_code == 404
    assert admin_client.post(LIST + path).status_code == 404


@pytest.mark.parametrize("name", ["add", "delete"])
def test_other_pages__have_no_address(name: str) -> None:
    """The pages for adding and deleting cannot be linked to."""
    with pytest.raises(NoReverseMatch):
        reverse(f"admin:django_zklock_lock_{name}")


def test_list__filters(viewer: Client, hold: Hold, join: Join) -> None:
    """Locks are filtered by state, kind, age, host and task; an empty value filters nothing."""
    contended = hold("contended", Work(kind="task", name="billing.bill", id="77"))
    join(contended)
    revoked = hold("revoked", mode="read")
    actions.revoke(connections["default"], revoked.node, "urgent", timeout=60)
    hold("plain", limit=2)

    def keys(**parameters: str) -> set[str]:
        text = text_of(viewer.get(LIST, parameters))
        return {
            key
            for key in ("contended", "revoked", "plain")
            if re.search(f" {key} (release requested )?(exclusive|read|lease) ", text)
        }

    assert keys() == {"contended", "revoked", "plain"}
    assert keys(state="contended") == {"contended"}
    assert keys(state="revoked") == {"revoked"}
    assert keys(state="unknown") == set()
    assert keys(kind="lease") == {"plain"}
    assert keys(kind="read") == {"revoked"}
    assert keys(older="60") == set()
    assert keys(host=os.uname().nodename) == {"contended", "revoked", "plain"}
    assert keys(host="elsewhere") == set()
    assert keys(task="billing") == {"contended"}
    assert keys(task="billing", kind="lease") == set()
    assert keys(state="", older="", alias="default") == {"contended", "revoked", "plain"}


def test_list__one_kind(viewer: Client, hold: Hold) -> None:
    """The filter by kind appears if there is a choice, or if it was used."""
    hold("one")
    assert "By kind" not in text_of(viewer.get(LIST))
    assert "By kind" in text_of(viewer.get(LIST, {"kind": "exclusive"}))
    hold("other", mode="read")
    assert "By kind" in text_of(viewer.get(LIST))


def test_list__filters_find_nothing(viewer: Client, hold: Hold) -> None:
    """Filters without a match differ from an empty list, and entered text is escaped."""
    hold("account:1")
    response = viewer.get(LIST, {"host": '"><i>nix', "q": "account"})
    assert "<i>nix" not in body_of(response)
    assert "No lock in use matches the filters." in text_of(response)
    # Each form keeps the parameters of the others.
    assert '<input type="hidden" name="q" value="account">' in body_of(response)


def test_list__unknown_parameters(viewer: Client, zklock: str) -> None:
    """Unknown parameters, and values that a filter does not have, lead to the unfiltered list."""
    for parameters in ({"nonsense": "1"}, {"state": "bad"}, {"older": "soon"}, {"kind": "x"}, {"alias": "nope"}):
        response = viewer.get(LIST, parameters)
        assert (response.status_code, response["Location"]) == (302, f"{LIST}?e=1")
        # A program would take all locks for the answer.
        assert viewer.get(f"{LIST}json/", parameters).status_code == 400
    # No such column, or not a sortable one.
    for order in ("99", "-1", "7", "x.0"):
        assert viewer.get(LIST, {"o": order}).status_code == 200


def test_list__sorting(viewer: Client, hold: Hold, join: Join) -> None:
    """The headers sort in both directions; the default order is by urgency."""
    for key in ("b", "c", "a"):
        hold(f"key-{key}")
    join("key-b")

    def order(**parameters: str) -> str:
        return "".join(re.findall(r" key-(\w) exclusive", text_of(viewer.get(LIST, parameters))))

    columns = {name: number for number, name in enumerate(changelist.ORDERS)}
    assert order() == "bca"
    assert order(o=f"{columns['key']}") == "abc"
    assert order(o=f"-{columns['key']}") == "cba"
    assert order(o=str(columns["token"])) == "bca"
    assert order(o=f"-{columns['token']}") == "acb"
    assert order(o=f"-{columns['waiters']}") == "bac"
    assert f"?o=-{columns['key']}" in body_of(viewer.get(LIST, {"o": str(columns["key"])}))
    # The long waits first.
    assert f"?o=-{columns['age']}" in body_of(viewer.get(LIST))
    assert 'class="zklock-col-waiters" aria-sort="descending"' in body_of(viewer.get(LIST, {"o": "-4"}))


def test_list__idle_parents(
    viewer: Client, hold: Hold, kazoo_client: KazooClient, zklock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents of free locks are not listed; the number of locks in use is exact only once it is known."""
    monkeypatch.setattr(LockAdmin, "list_per_page", 2)
    for number in range(20):
        kazoo_client.create(f"{zklock}/idle:{number:02}", makepath=True)
    for number in (7, 11, 15, 19):
        hold(f"idle:{number:02}")
    pages = [text_of(viewer.get(LIST, {"p": number, "o": "0"})) for number in ("1", "2", "9")]
    shown = [[number for number in range(20) if f" idle:{number:02} exclusive " in text] for text in pages]
    assert shown == [[7, 11], [15, 19], [15, 19]]
    # Two locks were found, and six more names were not read.
    assert " at most 8 locks " in pages[0]
    assert " 4 locks " in pages[1]
    assert "at most" not in pages[1]


def test_list__one_alias(viewer: Client, hold: Hold, settings: Settings) -> None:
    """The filter by alias appears with several aliases, and only the chosen alias is read."""
    assert "By alias" not in text_of(viewer.get(LIST))
    settings.ZKLOCK = settings.ZKLOCK | {"gone": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    hold("here")
    text = text_of(viewer.get(LIST, {"alias": "default"}))
    assert "By alias" in text
    assert "cannot be shown" not in text
    assert " here exclusive " in text


def test_list__links_to_the_lock(viewer: Client, hold: Hold) -> None:
    """The key links to the page of its lock, whatever characters it has."""
    hold('a/b c?%#&"_:ü')
    (url,) = re.findall(r'<th scope="row" class="zklock-col-key">\s*<a href="([^"]*)"', body_of(viewer.get(LIST)))
    assert "held" in text_of(viewer.get(unescape(url)))


def test_list__post_changes_nothing(admin_client: Client, hold: Hold) -> None:
    """The list has no actions; a forged one is ignored."""
    held = hold("account:1")
    response = admin_client.post(LIST, {"action": "delete_selected", "_selected_action": "default/account:1"})
    assert response.status_code == 200
    held.check()
