"""Breaking and revoking a lock in the admin, on a real ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from kazoo.client import KazooClient

from django_zklock.admin.reader import MAX_ENTRIES
from django_zklock.api import zk_lock
from django_zklock.exceptions import LockLost, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import paths
from django_zklock.zk.held import Held
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import actions
from tests.toolbox.django.command import Hold, Join, run
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.server import ZooKeeper
from tests.unit.admin.pages import body_of, member, text_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

pytestmark = [pytest.mark.django_db, pytest.mark.oldest]

both = pytest.mark.parametrize("action", ["break", "revoke"])


def url_of(key: str, page: str) -> str:
    return reverse(f"admin:django_zklock_lock_{page}", args=(quote(f"default/{paths.escape(key)}"),))


def name_of(held: Held) -> str:
    return held.node.rpartition("/")[2]


def loss_of(held: Held) -> str:
    """Return why a lock is lost; an empty text if it is held."""
    try:
        held.check()
    except LockLost as loss:
        return str(loss)
    return ""


def ask(client: Client, held: Held, action: str) -> dict[str, str]:
    """Open the confirmation page and return the hidden fields of its form."""
    response = client.get(url_of(held.key, action), {"node": name_of(held)})
    assert response.status_code == 200
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', body_of(response))
    return dict(fields)


def send(client: Client, key: str, action: str, form: dict[str, str]) -> HttpResponse:
    """Send the form and return the page after the redirect."""
    response = client.post(url_of(key, action), form, follow=True)
    assert isinstance(response, HttpResponse)
    return response


def test_break(boss: Client, hold: Hold, join: Join) -> None:
    """The holder loses its lock and gets user and reason; the log and the lock's page show them too."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    join(held)
    form = ask(boss, held, "break")
    text = text_of(send(boss, "account:17", "break", form | {"reason": "the bank is away"}))
    assert re.search(
        r"The lock was broken: “task billing.settle \[5b7e\] \(pid \d+ on .*\)” does not hold it any more.", text
    )
    assert "Held by unknown client" in text
    # The lock is lost at once; the reason is read afterwards.
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
    assert re.search(r" boss broken task billing.settle \[5b7e\] \(pid \d+ on \S+\) the bank is away broken ", text)
    assert "Last broken " in text
    assert "broken by boss: the bank is away" in text
    assert entry.get_admin_url() == url_of("account:17", "change")
    history = text_of(boss.get(url_of("account:17", "history")))
    # ZooKeeper's trail, and below it the log of the site.
    assert re.search(
        r" boss broken task .* the bank is away broken .* Log of this site .*Reason: the bank is away", history
    )


def test_history__of_all_ways(boss: Client, hold: Hold, client: Client) -> None:
    """History has the actions of the command too, the latest first, as a page and as JSON; none of other locks."""
    held, other = hold("account:17"), hold("account:18")
    empty = text_of(boss.get(url_of("account:17", "history")))
    assert "Nobody is known to have broken this lock" in empty
    run("revoke", "account:17", "--reason", "deploy at four")
    run("revoke", "account:18", "--reason", "not here")
    held.release(wait=True)
    send(boss, "account:18", "break", ask(boss, other, "break") | {"reason": "nor here"})
    text = text_of(boss.get(url_of("account:17", "history")))
    assert re.search(r"release requested pid \d+ on \S+ deploy at four no longer held", text)
    assert "here" not in text
    assert "Log of this site" not in text
    (action,) = boss.get(url_of("account:17", "json_history")).json()["actions"]
    assert (action["why"], action["token"], action["outcome"]) == ("deploy at four", held.token, "no longer held")
    text = text_of(boss.get(url_of("account:18", "history")))
    assert re.search(r"nor here broken .*not here broken ", text)
    assert client.get(url_of("account:17", "json_history")).status_code == 403


def test_history__zookeeper_away(boss: Client, settings: Settings) -> None:
    """Without ZooKeeper the page says so, and the JSON has the error."""
    settings.ZKLOCK = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    assert "no connection to ZooKeeper at" in text_of(boss.get(url_of("account:17", "history")))
    response = boss.get(url_of("account:17", "json_history"))
    assert response.status_code == 503
    assert "no connection to ZooKeeper at" in response.json()["error"]


def test_revoke(boss: Client, hold: Hold) -> None:
    """The holder gets user and reason and keeps the lock; the log has an entry."""
    held = hold("account:17")
    form = ask(boss, held, "revoke")
    text = text_of(send(boss, "account:17", "revoke", form | {"reason": "the release is due"}))
    assert "holds the lock until its code releases it" in text
    assert "Release requested: asked by boss: the release is due" in text
    wait_until(lambda: held.revoked)
    held.check()
    assert "Release requested: pid " in LogEntry.objects.get().change_message


def test_break__one_of_several(boss: Client, hold: Hold) -> None:
    """Each holder has its own buttons, and only the chosen holder loses its lock."""
    first, second = hold("gpu", limit=2, reentrant=False), hold("gpu", limit=2, reentrant=False)
    body = body_of(boss.get(url_of("gpu", "change")))
    for held in (first, second):
        assert f'href="{url_of("gpu", "break")}?node={name_of(held)}"' in body
    send(boss, "gpu", "break", ask(boss, second, "break") | {"reason": "the driver hangs"})
    assert wait_until(lambda: second.lost)
    first.check()


@both
def test_action__behind_the_first_hundred(boss: Client, hold: Hold, action: str) -> None:
    """Every holder can be broken and asked, also one that the page of the lock has no place for."""
    browse = Work(kind="function", name="browse")
    for _ in range(MAX_ENTRIES + 1):
        last = hold("catalogue", browse, limit=MAX_ENTRIES + 1, reentrant=False)
    assert name_of(last) not in body_of(boss.get(url_of("catalogue", "change")))
    form = ask(boss, last, action)
    text = text_of(boss.get(url_of("catalogue", action), {"node": name_of(last)}))
    # The other holders may look alike, and are not read.
    assert ", thread MainThread " in text
    send(boss, "catalogue", action, form | {"reason": "stuck"})
    wait_until(lambda: last.lost if action == "break" else last.revoked)


@pytest.mark.parametrize(("limit", "others"), [(1, False), (2, True)])
def test_break__of_one_holder_or_several(boss: Client, hold: Hold, limit: int, *, others: bool) -> None:
    """The page says which contenders have the lock then; it names a command only where there is one."""
    held = [hold("gpu", limit=2, reentrant=False) for _ in range(limit)].pop()
    text = text_of(boss.get(url_of("gpu", "break"), {"node": name_of(held)}))
    assert ("This takes the lock away from this holder; the others keep it." in text) == others
    assert ("grants it to the next waiter" in text) != others
    assert "the command above" not in text
    task = hold("task", Work(kind="task", name="bill", id="77", worker="celery@web1", child=93))
    assert "the command above" in text_of(boss.get(url_of("task", "break"), {"node": name_of(task)}))


@both
def test_action__names_the_holder(boss: Client, hold: Hold, join: Join, action: str) -> None:
    """The confirmation page names the holder and says what the action means."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    join(held)
    text = text_of(boss.get(url_of("account:17", action), {"node": name_of(held)}))
    assert "task billing.settle [ 5b7e ] pid " in text
    assert f", token {held.token} " in text
    assert "1 waiter." in text
    assert ("It does not stop the holder" if action == "break" else "The lock stays held until then.") in text


@both
def test_action__long_key(boss: Client, hold: Hold, action: str) -> None:
    """A key longer than the name of a znode is shown in full; the log has the part that fits."""
    held = hold("long-" * 50)
    response = boss.get(url_of(held.key, action), {"node": name_of(held)})
    assert "long-" * 50 in text_of(response)
    send(boss, held.key, action, ask(boss, held, action) | {"reason": "because"})
    assert LogEntry.objects.get().object_repr == "long-" * 40


@both
def test_action__get_changes_nothing(boss: Client, hold: Hold, action: str) -> None:
    """A GET with every field of the form does nothing."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "by a link"}
    assert boss.get(url_of("account:17", action), form).status_code == 200
    held.check()
    assert not held.revoked
    assert not LogEntry.objects.exists()


@both
def test_action__needs_the_token_against_forgery(boss: Client, hold: Hold, action: str) -> None:
    """A form without the CSRF token does nothing."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "forged"}
    del form["csrfmiddlewaretoken"]
    assert boss.post(url_of("account:17", action), form).status_code == 403
    held.check()
    assert not held.revoked


@both
@pytest.mark.parametrize("reason", ["", "  ", "x" * 201], ids=["none", "blank", "too long"])
def test_action__needs_a_reason(boss: Client, hold: Hold, action: str, reason: str) -> None:
    """Without a reason, or with one that is too long, the form shows an error."""
    held = hold("account:17")
    response = send(boss, "account:17", action, ask(boss, held, action) | {"reason": reason})
    assert "errorlist" in body_of(response)
    held.check()
    assert not LogEntry.objects.exists()


@both
def test_action__holder_changed(boss: Client, hold: Hold, action: str) -> None:
    """A later holder keeps its lock, and the page shows this holder."""
    held = hold("account:17", Work(kind="task", name="first"))
    form = ask(boss, held, action)
    held.release(wait=True)
    successor = hold("account:17", Work(kind="task", name="second"))
    text = text_of(send(boss, "account:17", action, form | {"reason": "too late"}))
    assert "Nothing was done: the holder that was shown does not hold this lock any more." in text
    assert "Held by task second" in text
    successor.check()
    assert not successor.revoked
    assert not LogEntry.objects.exists()


@both
@pytest.mark.parametrize("forged", [{"token": "1"}, {"token": ""}, {"node": "unknown"}, {"node": "../other"}], ids=str)
def test_action__forged_form(boss: Client, hold: Hold, action: str, forged: dict[str, str]) -> None:
    """Node and token must belong to a holder."""
    held = hold("account:17")
    text = text_of(send(boss, "account:17", action, ask(boss, held, action) | {"reason": "forged"} | forged))
    assert "Nothing was done" in text
    held.check()
    assert not held.revoked


@both
def test_action__waiter(boss: Client, hold: Hold, kazoo_client: KazooClient, action: str, join: Join) -> None:
    """A waiter can be neither broken nor revoked."""
    held = hold("account:17")
    waiter = join(held)
    response = boss.get(url_of("account:17", action), {"node": waiter.rpartition("/")[2]}, follow=True)
    assert "Nothing was done" in text_of(response)
    assert kazoo_client.exists(waiter)


def replace_actions(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], *, then_act: bool = False) -> None:
    """Call ``call`` when an action is to be carried out: instead of it, or right before it."""

    def replace(name: str) -> None:
        act = getattr(actions, name)

        def replaced(*arguments: Any, **options: Any) -> None:
            call()
            if then_act:
                act(*arguments, **options)

        monkeypatch.setattr(actions, name, replaced)

    for name in ("break_lock", "revoke"):
        replace(name)


@both
def test_action__gone_in_between(boss: Client, hold: Hold, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is released before the action reaches ZooKeeper is not logged as broken or revoked."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "close"}

    replace_actions(monkeypatch, lambda: held.release(wait=True), then_act=True)
    assert "Nothing was done" in text_of(send(boss, "account:17", action, form))
    assert not LogEntry.objects.exists()


@pytest.fixture
def own_zookeeper(settings: Settings) -> Iterator[ZooKeeper]:
    """Configure a server that only this test uses, so that the test can pause it."""
    with ZooKeeper() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": 1}}
        yield server
        server.resume()


@pytest.mark.zookeeper
@both
def test_action__zookeeper_away(boss: Client, own_zookeeper: ZooKeeper, action: str) -> None:
    """The holder cannot be read, so nothing is done, and the page says why."""
    with zk_lock("account:17").acquire(120) as held:
        form = ask(boss, held, action) | {"reason": "hurry"}
        own_zookeeper.pause()
        text = text_of(send(boss, "account:17", action, form))
        own_zookeeper.resume()
        assert "no answer from ZooKeeper at" in text
        assert not LogEntry.objects.exists()


@pytest.mark.zookeeper
@both
def test_action__zookeeper_goes_away(
    boss: Client, own_zookeeper: ZooKeeper, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the outcome is unknown, page and log say so, and the form keeps the reason."""
    replace_actions(monkeypatch, own_zookeeper.pause, then_act=True)
    with zk_lock("account:17").acquire(120) as held:
        form = ask(boss, held, action) | {"reason": "in a hurry"}
        response = boss.post(url_of("account:17", action), form)
        own_zookeeper.resume()
    assert response.status_code == 200
    assert "whether that was done is not known" in text_of(response)
    assert 'value="in a hurry"' in body_of(response)
    assert (
        ", outcome not known: function tests.unit.admin.test_actions.test_action__zookeeper_goes_away (pid "
        in LogEntry.objects.get().change_message
    )


@both
def test_action__refused(boss: Client, hold: Hold, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal by ZooKeeper is shown and not logged."""
    held = hold("account:17")

    def refuse() -> None:
        raise ZkLockError("ZooKeeper refused to do that: NoAuthError()")

    replace_actions(monkeypatch, refuse)
    text = text_of(send(boss, "account:17", action, ask(boss, held, action) | {"reason": "why not"}))
    assert "ZooKeeper refused to do that: NoAuthError()" in text
    assert not LogEntry.objects.exists()


# The log entry is written before the action.


@pytest.fixture
def read_only() -> Iterator[Callable[[], None]]:
    """Return a function that makes the database read-only."""

    def forbid() -> None:
        with connection.cursor() as cursor:
            cursor.execute("pragma query_only = on")

    yield forbid
    # Without Django, which refuses every query in a failed transaction.
    connection.connection.execute("pragma query_only = off")


@both
def test_log__is_written_before(boss: Client, hold: Hold, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the action the log has the entry, in an open transaction."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "in order"}
    seen = []

    def look() -> None:
        seen.append((LogEntry.objects.get().change_message.partition(":")[0], len(connection.savepoint_ids)))

    outside = len(connection.savepoint_ids)
    replace_actions(monkeypatch, look)
    send(boss, "account:17", action, form)
    assert seen == [("Broken" if action == "break" else "Release requested", outside + 1)]
    assert LogEntry.objects.count() == 1


@both
def test_log__cannot_be_written(
    boss: Client, hold: Hold, action: str, read_only: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """If the database cannot be written, the action is done once, and the page says that the log entry is missing."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "the disk is full"}
    read_only()
    text = text_of(send(boss, "account:17", action, form))
    assert ("The lock was broken" if action == "break" else "Release was requested") in text
    assert "The action is not in the log: writing to the database failed." in text
    assert wait_until(lambda: held.lost if action == "break" else held.revoked)
    assert "event=not_logged" in caplog.text
    assert "key='account:17'" in caplog.text
    assert "reason='the disk is full'" in caplog.text
    assert not LogEntry.objects.exists()


@both
def test_log__cannot_be_written_nor_anything_done(
    boss: Client, hold: Hold, action: str, read_only: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action that fails is not reported as done when the log fails too."""
    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "both away"}

    replace_actions(monkeypatch, lambda: held.release(wait=True), then_act=True)
    read_only()
    text = text_of(send(boss, "account:17", action, form))
    assert "Nothing was done" in text
    assert "not in the log" not in text


@both
def test_log__outcome_not_known_nor_logged(
    boss: Client, hold: Hold, action: str, read_only: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reports an unknown outcome that could not be logged."""

    def lose_touch() -> None:
        raise ZooKeeperUnavailable("no answer; whether that was done is not known")

    held = hold("account:17")
    form = ask(boss, held, action) | {"reason": "both away"}
    replace_actions(monkeypatch, lose_touch)
    read_only()
    response = boss.post(url_of("account:17", action), form)
    assert response.status_code == 200
    assert "whether that was done is not known" in text_of(response)
    assert "The action is not in the log" in text_of(response)


PERMISSIONS = [
    ((), 403, 403),
    (("view_lock",), 403, 403),
    (("break_lock", "revoke_lock"), 403, 403),
    (("view_lock", "break_lock"), 302, 403),
    (("view_lock", "revoke_lock"), 403, 302),
]


@pytest.mark.parametrize(("codenames", "breaking", "revoking"), PERMISSIONS, ids=str)
def test_permissions(client: Client, hold: Hold, codenames: tuple[str, ...], breaking: int, revoking: int) -> None:
    """View, break and revoke are separate permissions; break and revoke need view; no button without permission."""
    held = hold("account:17")
    client.force_login(member("staff", *codenames))
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
def test_action__not_allowed(client: Client, hold: Hold, action: str) -> None:
    """Users without login, and users that are not staff, are sent to the login page."""
    held = hold("account:17")
    assert client.post(url_of("account:17", action), {"node": name_of(held)}).status_code == 302
    client.force_login(User.objects.create_user("customer"))
    response = client.post(url_of("account:17", action), {"node": name_of(held)})
    assert response["Location"].startswith("/admin/login/")
    held.check()
