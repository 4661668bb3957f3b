"""Breaking a lock and asking for it in the admin, on a real ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from kazoo.client import KazooClient
from services.zookeeper import ZooKeeper

from django_zklock.admin.action import Action
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.locks import zk_lock
from django_zklock.zk import keys, revocation
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.inspection import breaking
from tests.admin.conftest import GUID, body_of, member, text_of
from tests.command import Hold
from tests.zk.onlooker import wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.operating"]

pytestmark = [pytest.mark.django_db, pytest.mark.zookeeper]

both = pytest.mark.parametrize("action", ["break", "revoke"])


def url_of(key: str, page: str) -> str:
    return reverse(f"admin:django_zklock_lock_{page}", args=(quote(f"default/{keys.escape(key)}"),))


def name_of(held: Held) -> str:
    return held.node.rpartition("/")[2]


def loss_of(held: Held) -> str:
    """Give why a lock is lost; nothing if it is not."""
    try:
        held.check()
    except LockLost as loss:
        return str(loss)
    return ""


def ask(client: Client, held: Held, action: str) -> dict[str, str]:
    """Open the page that asks, and give what its form would send."""
    response = client.get(url_of(held.key, action), {"node": name_of(held)})
    assert response.status_code == 200
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', body_of(response))
    return dict(fields)


def send(client: Client, key: str, action: str, form: dict[str, str]) -> HttpResponse:
    """Send the form, and give the page where that leads."""
    response = client.post(url_of(key, action), form, follow=True)
    assert isinstance(response, HttpResponse)
    return response


def test_break(boss: Client, hold: Hold, outsider: KazooClient) -> None:
    """The holder loses its lock and hears who has done that and why; it is in the log, and on the lock's page."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    form = ask(boss, held, "break")
    text = text_of(send(boss, "account:17", "break", form | {"reason": "the bank is away"}))
    assert re.search(
        r"The lock was broken: “task billing.settle \[5b7e\] \(pid \d+ on .*\)” does not hold it any more.", text
    )
    assert "Held by unknown client" in text
    # It is lost at once, and says why when that is known.
    wait_until(lambda: "broken by boss: the bank is away" in loss_of(held))
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id, entry.object_repr) == (
        "boss",
        "default/account:17",
        "account:17",
    )
    for fact in (
        "Broken: task billing.settle [5b7e] (pid ",
        name_of(held),
        str(held.token),
        "Reason: the bank is away",
    ):
        assert fact in entry.change_message
        assert fact in text
    assert "Last taken away " in text
    assert "broken by boss: the bank is away" in text
    assert entry.get_admin_url() == url_of("account:17", "change")
    assert "Reason: the bank is away" in text_of(boss.get(url_of("account:17", "history")))


def test_revoke(boss: Client, hold: Hold) -> None:
    """The holder hears who asks and why, and holds the lock as before; it is in the log."""
    held = hold("account:17")
    form = ask(boss, held, "revoke")
    text = text_of(send(boss, "account:17", "revoke", form | {"reason": "the release is due"}))
    assert "That is a request" in text
    assert "Asked to let go: asked by boss: the release is due" in text
    wait_until(lambda: held.revoked)
    held.check()
    assert "Asked to let go: pid " in LogEntry.objects.get().change_message


def test_break__one_of_several(boss: Client, hold: Hold) -> None:
    """Each holder has buttons of its own, and only the one that was chosen loses its lock."""
    first, second = hold("gpu", limit=2, reentrant=False), hold("gpu", limit=2, reentrant=False)
    body = body_of(boss.get(url_of("gpu", "change")))
    for held in (first, second):
        assert f'href="{url_of("gpu", "break")}?node={name_of(held)}"' in body
    send(boss, "gpu", "break", ask(boss, second, "break") | {"reason": "the driver hangs"})
    assert wait_until(lambda: second.lost)
    first.check()


@both
def test_action__names_the_holder(boss: Client, hold: Hold, outsider: KazooClient, action: str) -> None:
    """Whoever is asked for a reason sees whom it is about, and what it means."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    text = text_of(boss.get(url_of("account:17", action), {"node": name_of(held)}))
    assert "task billing.settle [5b7e] pid " in text
    assert f"token {held.token}." in text
    assert "1 waits." in text
    assert ("That does not end its work" if action == "break" else "Nothing is taken away.") in text


@both
def test_action__long_key(boss: Client, hold: Hold, action: str) -> None:
    """A key that is longer than the name of a znode is told in full, and the log has as much of it as it can."""
    held = hold("long-" * 50)
    response = boss.get(url_of(held.key, action), {"node": name_of(held)})
    assert "long-" * 50 in text_of(response)
    send(boss, held.key, action, ask(boss, held, action) | {"reason": "because"})
    assert LogEntry.objects.get().object_repr == "long-" * 40


@both
def test_action__get_changes_nothing(boss: Client, hold: Hold, action: str) -> None:
    """Whatever a link has in it."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "by a link"}
    assert boss.get(url_of("account:17", action), form).status_code == 200
    held.check()
    assert not held.revoked
    assert not LogEntry.objects.exists()


@both
def test_action__needs_the_token_against_forgery(boss: Client, hold: Hold, action: str) -> None:
    """A form of another site does nothing."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "forged"}
    del form["csrfmiddlewaretoken"]
    assert boss.post(url_of("account:17", action), form).status_code == 403
    held.check()
    assert not held.revoked


@both
@pytest.mark.parametrize("reason", ["", "  ", "x" * 201], ids=["none", "blank", "too long"])
def test_action__needs_a_reason(boss: Client, hold: Hold, action: str, reason: str) -> None:
    """Without one, or with a novel, the page asks again."""
    held = hold("account:17")
    response = send(boss, "account:17", action, ask(boss, held, action) | {"reason": reason})
    assert "errorlist" in body_of(response)
    held.check()
    assert not LogEntry.objects.exists()


@both
def test_action__holder_changed(boss: Client, hold: Hold, action: str) -> None:
    """Who has come after the one that was shown is left alone, and the page says who holds now."""
    held = hold("account:17", Work(kind="task", name="first"))
    form = ask(boss, held, action)
    held.release(wait=True)
    successor = hold("account:17", Work(kind="task", name="second"))
    text = text_of(send(boss, "account:17", action, form | {"reason": "too late"}))
    assert "Nothing was done: whoever you have seen does not hold this lock any more." in text
    assert "Held by task second" in text
    successor.check()
    assert not successor.revoked
    assert not LogEntry.objects.exists()


@both
@pytest.mark.parametrize("forged", [{"token": "1"}, {"token": ""}, {"node": "nobody"}, {"node": "../other"}], ids=str)
def test_action__forged_form(boss: Client, hold: Hold, action: str, forged: dict[str, str]) -> None:
    """Node and token must be those of a holder."""
    held = hold("account:17")
    text = text_of(send(boss, "account:17", action, ask(boss, held, action) | {"reason": "forged"} | forged))
    assert "Nothing was done" in text
    held.check()
    assert not held.revoked


@both
def test_action__waiter(boss: Client, hold: Hold, outsider: KazooClient, action: str) -> None:
    """Who waits has nothing that could be taken or asked for."""
    held = hold("account:17")
    waiter = outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    response = boss.get(url_of("account:17", action), {"node": waiter.rpartition("/")[2]}, follow=True)
    assert "Nothing was done" in text_of(response)
    assert outsider.exists(waiter)


@both
def test_action__gone_in_between(boss: Client, hold: Hold, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that goes while its lock is being broken is not logged as broken."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "close"}

    def release_first(self: Action, request: object, reason: str) -> str:
        held.release(wait=True)
        return reason

    monkeypatch.setattr(Action, "why", release_first)
    assert "Nothing was done" in text_of(send(boss, "account:17", action, form))
    assert not LogEntry.objects.exists()


@pytest.fixture
def own_zookeeper(settings: Settings) -> Iterator[ZooKeeper]:
    """Have locks on a server of the test's own, to be paused."""
    with ZooKeeper() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": 1}}
        yield server
        server.resume()


@both
def test_action__zookeeper_away(boss: Client, own_zookeeper: ZooKeeper, action: str) -> None:
    """Who holds cannot be looked up, so nothing is done, and the page says why."""
    with zk_lock("account:17").acquire(10) as held:
        form = ask(boss, held, action) | {"reason": "hurry"}
        own_zookeeper.pause()
        text = text_of(send(boss, "account:17", action, form))
        own_zookeeper.resume()
        assert "no answer within" in text
        assert not LogEntry.objects.exists()


@both
def test_action__zookeeper_goes_away(
    boss: Client, own_zookeeper: ZooKeeper, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nobody knows what has come of it, then page and log say so, and the reason need not be typed again."""

    def pause_first(self: Action, request: object, reason: str) -> str:
        own_zookeeper.pause()
        return reason

    monkeypatch.setattr(Action, "why", pause_first)
    with zk_lock("account:17").acquire(10) as held:
        form = ask(boss, held, action) | {"reason": "in a hurry"}
        response = boss.post(url_of("account:17", action), form)
        own_zookeeper.resume()
    assert response.status_code == 200
    assert "whether that was done is not known" in text_of(response)
    assert 'value="in a hurry"' in body_of(response)
    assert ", outcome not known: pid " in LogEntry.objects.get().change_message


@both
def test_action__refused(boss: Client, hold: Hold, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is shown, and is nothing to be logged."""
    held = hold("account:17")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise ZkLockError("ZooKeeper refused to do that: NoAuthError()")

    monkeypatch.setattr(breaking, "remove", refuse)
    monkeypatch.setattr(revocation, "ask", refuse)
    text = text_of(send(boss, "account:17", action, ask(boss, held, action) | {"reason": "why not"}))
    assert "ZooKeeper refused to do that: NoAuthError()" in text
    assert not LogEntry.objects.exists()


PERMISSIONS = [
    ((), 403, 403),
    (("view_lock",), 403, 403),
    (("break_lock", "revoke_lock"), 403, 403),
    (("view_lock", "break_lock"), 302, 403),
    (("view_lock", "revoke_lock"), 403, 302),
]


@pytest.mark.parametrize(("codenames", "breaking", "revoking"), PERMISSIONS, ids=str)
def test_permissions(client: Client, hold: Hold, codenames: tuple[str, ...], breaking: int, revoking: int) -> None:
    """To view, to break and to revoke are three permissions; the last two need the first; no button without."""
    held = hold("account:17")
    client.force_login(member("somebody", *codenames))
    page = client.get(url_of("account:17", "change"))
    assert page.status_code == (200 if "view_lock" in codenames else 403)
    assert client.get(url_of("account:17", "history")).status_code == page.status_code
    form = {"node": name_of(held), "token": str(held.token), "reason": "because"}
    for action, status in (("revoke", revoking), ("break", breaking)):
        assert (url_of("account:17", action) in body_of(page)) == (status == 302)
        assert client.get(url_of("account:17", action), form).status_code == (200 if status == 302 else 403)
        assert client.post(url_of("account:17", action), form).status_code == status
    wait_until(lambda: bool(held.lost) == (breaking == 302) and bool(held.revoked) == (revoking == 302))


@both
def test_action__strangers(client: Client, hold: Hold, action: str) -> None:
    """Who has not logged in, or is no member of staff, is asked to."""
    held = hold("account:17")
    assert client.post(url_of("account:17", action), {"node": name_of(held)}).status_code == 302
    client.force_login(User.objects.create_user("nobody"))
    response = client.post(url_of("account:17", action), {"node": name_of(held)})
    assert response["Location"].startswith("/admin/login/")
    held.check()
