"""The page of one lock, on a real ZooKeeper."""

from __future__ import annotations

import os
import re
import shlex
import time
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from kazoo.client import KazooClient

from django_zklock.admin import detail
from django_zklock.connections import connections
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import node_data
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import actions, sent
from django_zklock.zk.ops.snapshots import QueueEntry
from tests.toolbox.django.command import GUID, Hold, Join, Wait, run
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import GRACE, scaled
from tests.unit.admin.pages import LIST, NASTY, body_of, text_of, url_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

pytestmark = [pytest.mark.django_db, pytest.mark.oldest]


def test_lock__queue(viewer: Client, hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """The page shows each contender with work, time, blockers, kind, token, session and node."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    for _ in range(2):
        join(held)
    response = viewer.get(url_of("account:17"))
    assert response.status_code == 200
    text = text_of(response)
    assert f"Held by task billing.settle [ 5b7e ] pid {os.getpid()} on {os.uname().nodename} Held for" in text
    session, _password = kazoo_client.client_id
    node = held.node.rpartition("/")[2]
    assert re.search(rf" 0 held task .* \d s exclusive {held.token} 0x\w+ {node} 1 waiting unknown client", text)
    assert re.search(rf" 1 waiting unknown .* \d s 1 before it \(0\) exclusive \d+ 0x{session:x} ", text)
    assert re.search(r" 2 waiting unknown .* \d s 2 before it \(0\u20131\) exclusive ", text)
    assert " State held Waiting 2 waiting Kind Exclusive " in text
    assert f"Znode {held.lock.paths[0]} " in text


def test_lock__sent(viewer: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the calls of this lock that are sent and have not begun, and how many came since."""
    hold("account:17")
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))
    pool = connections["default"]
    for key in ("account:17", "account:18"):
        data = sent.encode(key=key, task="billing.<settle>", max_age=60.0)
        for id in ("5b7e", "6c8f"):  # noqa: A001 - what it is called in messages
            sent.claim(pool, sent.new_mark(pool, f"{id}-{key[-2:]}", key), data, max_age=60.0)
    text = text_of(viewer.get(url_of("account:17")))
    assert "Sent, and not begun" in text
    assert " billing.<settle> [5b7e-17] maybe not sent 1 " in text
    assert "5b7e-18" not in text
    # They are read again and again.
    monkeypatch.setattr(detail, "MAX_SENT", 1)
    assert "Sent, and not begun" not in text_of(viewer.get(url_of("account:17")))


def test_lock__bars(viewer: Client, hold: Hold, join: Join) -> None:
    """Each contender has a bar with a text; the bars of holders and waiters differ by more than colour."""
    held = hold("account:17")
    join(held)
    bars = re.findall(r"<svg class=\"zklock-bar\".*?</svg>", body_of(viewer.get(url_of("account:17"))), flags=re.DOTALL)
    assert len(bars) == 2
    assert re.search(r'role="img" aria-label="held, \d s"', bars[0])
    assert re.search(r'role="img" aria-label="waiting, \d s"', bars[1])
    assert 'x="0.0%" width="100.0%"' in bars[0]
    assert ["url(#zklock-hatching)" in bar for bar in bars] == [False, True]


def test_lock__times_of_the_holder(viewer: Client, hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """The page shows since when the holder is in the queue, and how long it has held the lock: at most, if unknown."""
    hold("account:17")
    pattern = r"Held for \d s , in the queue since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, token \d+"
    assert re.search(pattern, text_of(viewer.get(url_of("account:17"))))
    kazoo_client.delete(join("account:18"))
    hold("account:18")
    assert re.search(r"Held for at most \d s , in the queue since", text_of(viewer.get(url_of("account:18"))))


def test_lock__command_lines(viewer: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has command lines to copy, quoted for the shell: one ends a task without its worker."""
    monkeypatch.setattr("django_zklock.serializers._celery_app", lambda: "shop")
    hold("it's 17", Work(kind="task", name="billing.settle", id="5b7e; reboot", worker="celery@web1", child=93))
    body = body_of(viewer.get(url_of("it's 17")))
    lines = [shlex.split(unescape(line)) for line in re.findall(r"<code>(.*?)</code>", body)]
    assert lines == [
        ["python", "manage.py", "zklock", "show", "it's 17"],
        ["celery", "-A", "shop", "control", "-d", "celery@web1", "terminate", "SIGTERM", "5b7e; reboot"],
        ["kill", "-9", "93"],
    ]
    assert f"If that does not end it, on {os.uname().nodename}" in unescape(body)


def test_lock__command_of_the_site(viewer: Client, hold: Hold, settings: Settings) -> None:
    """The line that shows the lock is what the site runs, and so is that in a question of the command."""
    settings.ZKLOCK_COMMAND = "mayan-edms.py"
    hold("account:17")
    assert "<code>mayan-edms.py zklock show account:17</code>" in body_of(viewer.get(url_of("account:17")))
    assert "request its release: mayan-edms.py zklock revoke" in run(
        "break", "account:17", "--yes", "--reason", "it hangs"
    )


def test_lock__command_lines_of_other_work(viewer: Client, hold: Hold) -> None:
    """Only a task has a line that ends it; no line has control characters; a key like an option stays a key."""
    hold("--all", Work(kind="command", name="report", id="7"))
    assert "show -- --all" in text_of(viewer.get(url_of("--all")))
    assert "terminate" not in text_of(viewer.get(url_of("--all")))
    hold("a\nb")
    assert "<code>" not in body_of(viewer.get(url_of("a\nb")))


BARS: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "waits": ({"held": False}, [("waiting", "20.0%", "80.0%")]),
    "granted at once": ({"granted": 20.0}, [("held", "20.0%", "80.0%")]),
    "granted later": ({"granted": 60.0}, [("waiting", "20.0%", "40.0%"), ("held", "60.0%", "40.0%")]),
    "grant not known": ({"granted": None}, [("unsure", "20.0%", "80.0%")]),
    "just granted": ({"granted": 100.0}, [("waiting", "20.0%", "80.0%"), ("held", "99.0%", "1.0%")]),
}


@pytest.mark.parametrize("name", BARS)
def test_bars(name: str) -> None:
    """A bar is hatched until the grant and filled after it, ends now, and is never too short to be seen."""
    facts, expected = BARS[name]
    usual: dict[str, Any] = {"kind": "exclusive", "position": 0, "held": True, "since": 20.0, "identity": None}
    entry = QueueEntry(node="n", path="p", token=1, session_id=1, **usual | facts)
    assert [(bar.name, bar.start, bar.length) for bar in detail._bars(entry, 0.0, 100.0)] == expected


def test_lock__contenders_that_look_alike(viewer: Client, join: Join) -> None:
    """The thread stands beside contenders of one process that look alike, and beside no others."""
    for thread, name in (("MainThread", "pay"), ("Thread-7", "pay"), ("Thread-8", "refund")):
        identity = Identity(host="web1", pid=17, thread=thread, work=Work(kind="function", name=name))
        join("account:17", identity.encode())
    text = text_of(viewer.get(url_of("account:17")))
    assert re.findall(r"function (\w+) pid 17 on web1( , thread [\w-]+)?", text) == [
        ("pay", " , thread MainThread"),
        ("pay", " , thread MainThread"),
        ("pay", " , thread Thread-7"),
        ("refund", ""),
    ]


def test_lock__arguments(viewer: Client, hold: Hold) -> None:
    """The arguments of a task that are in its key stand below it, with nothing that a browser interprets."""
    hold("account:17", Work(kind="task", name="billing.settle", id="5b7e", arguments="account_id=17, by=<b>\u202e"))
    assert " Called with account_id=17, by=<b>\ufffd Held for " in text_of(viewer.get(url_of("account:17")))


def test_lock__clock_of_the_server_is_ahead(viewer: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start time in the future, by our clock, is shown as now."""
    hold("account:17")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    body = body_of(viewer.get(url_of("account:17")))
    assert 'aria-label="held, 0 s"' in body
    assert 'x="0.0%" width="100.0%"' in body


def test_lock__semaphore_and_revoked(viewer: Client, hold: Hold) -> None:
    """The page shows the limit of a semaphore and the reason of a revoke request."""
    held = hold("gpu", limit=2)
    actions.revoke(connections["default"], held.node, "blocks the release", timeout=60)
    text = text_of(viewer.get(url_of("gpu")))
    assert "Lease (at most 2 at once)" in text
    assert "Release requested: blocks the release" in text


def test_lock__limits_differ(viewer: Client, hold: Hold) -> None:
    """If the limits of the holders differ, the lowest is shown."""
    for limit in (9, 3, 5):
        hold("gpu", limit=limit, reentrant=False)
    assert "Lease (at most 3 at once)" in text_of(viewer.get(url_of("gpu")))


def test_lock__free(viewer: Client, zklock: str) -> None:
    """A free lock has a page, not an error."""
    response = viewer.get(url_of("nothing here"))
    assert response.status_code == 200
    text = text_of(response)
    assert "State free" in text
    assert "This lock has no holder and no waiters." in text


def test_lock__long_key(viewer: Client, hold: Hold) -> None:
    """A key longer than the name of a znode is shown in full while the lock is in use."""
    key = "long-" * 100
    held = hold(key)
    assert key in text_of(viewer.get(url_of(key)))
    held.release(wait=True)
    assert "long-long-" in text_of(viewer.get(url_of(key)))


def test_lock__foreign_nodes(viewer: Client, zklock: str, kazoo_client: KazooClient) -> None:
    """The first hundred nodes of unknown recipes are listed."""
    for number in range(103):
        kazoo_client.create(f"{zklock}/strange/<b>{number:03}", b"\xff\x00", ephemeral=True, makepath=True)
    response = viewer.get(url_of("strange"))
    assert "<b>000" not in body_of(response)
    text = text_of(response)
    assert "State unknown" in text
    assert "<b>099 And 3 more." in text


def test_lock__hostile_texts(viewer: Client, hold: Hold, kazoo_client: KazooClient) -> None:
    """No text from a znode becomes markup or reverses the direction of writing."""
    held = hold(NASTY, Work(kind="<b>", name=NASTY, id='"><img src=x onerror=alert(1)>'))
    kazoo_client.create(f"{held.lock.paths[0]}/<i>{NASTY[8:15]}", b"\xff" * 100_000, ephemeral=True)
    actions.revoke(connections["default"], held.node, NASTY, timeout=60)
    body = body_of(viewer.get(url_of(NASTY)))
    for wrong in ("<script>alert", "<img src=x", "<i>", "\u202e", "\x1b"):
        assert wrong not in body
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;\\u202egpj.exe\\x1b[31m" in body


# Its log tells reads from pings, of which a busy machine has any number.
@pytest.mark.parametrize("kind_of_server", ["testserver"])
def test_lock__long_queue(viewer: Client, zklock: str, kazoo_client: KazooClient, server: ZooKeeperServer) -> None:
    """Of a long queue the first hundred entries are read and shown, and the others counted."""
    kazoo_client.ensure_path(f"{zklock}/long")
    creations = [
        kazoo_client.create_async(f"{zklock}/long/_c_{GUID}-lock-", ephemeral=True, sequence=True) for _ in range(1000)
    ]
    for creation in creations:
        creation.get(timeout=20)
    server.requests.clear()
    text = text_of(viewer.get(url_of("long")))
    # To read the data of all entries would take seven more.
    reads = {kind: count for kind, count in server.requests.counts().items() if kind not in {"connect", "ping", "sync"}}
    assert reads == {"multiRead": 4, "getChildren": 1}
    assert "1 holder. 999 waiters." in text
    assert "And 900 more." in text


@pytest.mark.parametrize("path", ["nothing", "absent/key", "default/", "default/a/b", "default/..", "default/%00"])
def test_lock__no_such_lock(viewer: Client, zklock: str, path: str) -> None:
    """An address that no lock can have is not found."""
    assert viewer.get(f"{LIST}{path}/change/").status_code == 404


def test_lock__unreachable(viewer: Client, settings: Settings) -> None:
    """If ZooKeeper is unavailable, the page says so within the deadline."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    began = time.monotonic()
    response = viewer.get(url_of("account:17"))
    assert time.monotonic() - began < 4 + GRACE
    assert response.status_code == 200
    assert "Locks of “default” cannot be shown. no connection to ZooKeeper at 127.0.0.1:" in text_of(response)


def test_lock__wrong_setting(viewer: Client, settings: Settings) -> None:
    """With a wrong setting no alias is known; the list shows the error."""
    settings.ZKLOCK = None
    assert viewer.get(url_of("account:17")).status_code == 404


def test_lock__post_changes_nothing(admin_client: Client, hold: Hold) -> None:
    """A POST to the page of a lock changes nothing."""
    held = hold("account:17")
    assert admin_client.post(url_of("account:17"), {"key": "x"}).status_code == 200
    held.check()


def test_lock__waits_for_a_slot(viewer: Client, join: Join) -> None:
    """A task that holds its lock and waits for a slot is marked so in the list and on the page of its lock."""
    work = Work(kind="task", name="billing.settle", id="5b7e", worker="celery@web1", child=0)
    identity = Identity(host="web1", pid=71, work=work).encode()
    data = node_data.add_run(identity, child=0, granted=time.time(), forgotten=False)
    join("account:17", data)
    assert " waits for a slot " in text_of(viewer.get(LIST))
    text = text_of(viewer.get(url_of("account:17")))
    assert " 0 granted, waits for a slot task billing.settle" in text
    assert " End the task when it gets a slot celery " in text


def test_lock__several_keys(viewer: Client, hold: Hold, wait_for: Wait, settings: Settings) -> None:
    """Where a contender for several keys is first, the page says that it may wait for another one, in German too."""
    hold("bank:b")
    wait_for("bank:a", "bank:b")
    words = "Takes 2 keys at once, and may still wait for another one."
    text = text_of(viewer.get(url_of("bank:a")))
    assert words in text
    assert "Held for at most " in text
    assert words not in text_of(viewer.get(url_of("bank:b")))
    settings.LANGUAGE_CODE = "de"
    text = text_of(viewer.get(url_of("bank:a")))
    assert "Nimmt 2 Schlüssel auf einmal und wartet vielleicht noch auf einen anderen." in text


def test_lock__worker_cannot_end_the_task(viewer: Client, hold: Hold) -> None:
    """Of a task that its worker has forgotten the page has the line that kills its child, and no other one."""
    hold(
        "account:17",
        Work(kind="task", name="billing.settle", id="5b7e", worker="celery@web1", child=93, forgotten=True),
    )
    text = text_of(viewer.get(url_of("account:17")))
    assert f"The worker cannot end it any more; on {os.uname().nodename} kill -9 93 " in text
    assert "terminate" not in text
