"""The page of one lock, on a real ZooKeeper."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from kazoo.client import KazooClient
from services.port import free_port

from django_zklock.admin import page
from django_zklock.connections import connections
from django_zklock.zk import keys, revocation
from django_zklock.zk.identity import Work
from tests.admin.conftest import GUID, LIST, NASTY, body_of, text_of
from tests.command import Hold
from tests.server import Server, packets_received

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.operating"]

pytestmark = [pytest.mark.django_db, pytest.mark.zookeeper]


def url_of(key: str, alias: str = "default") -> str:
    return reverse("admin:django_zklock_lock_change", args=(quote(f"{alias}/{keys.escape(key)}"),))


def test_lock__the_line(viewer: Client, hold: Hold, outsider: KazooClient) -> None:
    """Everybody in the line: who, since when, what they wait for, token, session and node."""
    held = hold("account:17", Work(kind="task", name="billing.settle", id="5b7e"))
    for _ in range(2):
        outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    response = viewer.get(url_of("account:17"))
    assert response.status_code == 200
    text = text_of(response)
    assert f"Held by task billing.settle [5b7e] pid {os.getpid()} on {os.uname().nodename} , thread MainThread" in text
    session, _password = outsider.client_id
    node = held.node.rpartition("/")[2]
    assert re.search(rf" 0 held task .* \d s exclusive {held.token} 0x\w+ {node} 1 waiting unknown client", text)
    assert re.search(rf" 1 waiting unknown client, session 0x{session:x} \d s 0 exclusive \d+ 0x{session:x} ", text)
    assert re.search(r" 2 waiting unknown client, session 0x\w+ \d s 0\u20131 exclusive ", text)
    assert f"Znode {held.lock.paths[0]} " in text


def test_lock__the_picture(viewer: Client, hold: Hold, outsider: KazooClient) -> None:
    """Each has a bar, that says in words what it shows; holders' and waiters' differ by more than their colour."""
    held = hold("account:17")
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    bars = re.findall(r"<svg class=.*?</svg>", body_of(viewer.get(url_of("account:17"))), flags=re.DOTALL)
    assert len(bars) == 2
    assert re.search(r'role="img" aria-label="held, \d s"', bars[0])
    assert re.search(r'role="img" aria-label="waiting, \d s"', bars[1])
    assert 'x="0.0%" width="100.0%"' in bars[0]
    assert ["url(#zklock-hatching)" in bar for bar in bars] == [False, True]


@pytest.mark.parametrize(
    ("since", "begin", "end", "start", "length"),
    [
        (0.0, 0.0, 100.0, "0.0%", "100.0%"),
        (75.0, 0.0, 100.0, "75.0%", "25.0%"),
        (100.0, 0.0, 100.0, "99.0%", "1.0%"),
        (5.0, 5.0, 5.0, "0.0%", "100.0%"),
    ],
    ids=["first", "later", "just come", "all at once"],
)
def test_bar__ends_now(since: float, begin: float, end: float, start: str, length: str) -> None:
    """A bar is as long as somebody has stood there, and can always be seen."""
    assert page._bar(since, begin, end) == page.Bar(start=start, length=length)


def test_lock__clock_of_the_server_is_ahead(viewer: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came in the future by our clock came now."""
    hold("account:17")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    body = body_of(viewer.get(url_of("account:17")))
    assert 'aria-label="held, 0 s"' in body
    assert 'x="0.0%" width="100.0%"' in body


def test_lock__semaphore_and_revoked(viewer: Client, hold: Hold) -> None:
    """The limit of a semaphore, and why somebody was asked to let go."""
    held = hold("gpu", limit=2)
    revocation.ask(connections["default"], held.node, "blocks the release", timeout=5)
    text = text_of(viewer.get(url_of("gpu")))
    assert "Lease (at most 2 at once)" in text
    assert "Asked to let go: blocks the release" in text


def test_lock__free(viewer: Client, zklock: str) -> None:
    """A lock that nobody holds is no error: somebody may take it while one looks."""
    response = viewer.get(url_of("nothing here"))
    assert response.status_code == 200
    text = text_of(response)
    assert "State Free" in text
    assert "Nobody holds this lock, and nobody waits for it." in text


def test_lock__long_key(viewer: Client, hold: Hold) -> None:
    """A key that is longer than the name of a znode is told in full while the lock is in use."""
    key = "long-" * 100
    held = hold(key)
    assert key in text_of(viewer.get(url_of(key)))
    held.release(wait=True)
    assert "long-long-" in text_of(viewer.get(url_of(key)))


def test_lock__foreign_nodes(viewer: Client, zklock: str, outsider: KazooClient) -> None:
    """What is of no recipe that we know is listed, the first hundred of it."""
    for number in range(103):
        outsider.create(f"{zklock}/strange/<b>{number:03}", b"\xff\x00", ephemeral=True, makepath=True)
    response = viewer.get(url_of("strange"))
    assert "<b>000" not in body_of(response)
    text = text_of(response)
    assert "State Unknown" in text
    assert "<b>099 And 3 more." in text


def test_lock__hostile_texts(viewer: Client, hold: Hold, outsider: KazooClient) -> None:
    """Nothing out of a znode becomes markup, or turns the text around."""
    held = hold(NASTY, Work(kind="<b>", name=NASTY, id='"><img src=x onerror=alert(1)>'))
    outsider.create(f"{held.lock.paths[0]}/<i>{NASTY[8:15]}", b"\xff" * 100_000, ephemeral=True)
    revocation.ask(connections["default"], held.node, NASTY, timeout=5)
    body = body_of(viewer.get(url_of(NASTY)))
    for wrong in ("<script>alert", "<img src=x", "<i>", "\u202e", "\x1b"):
        assert wrong not in body
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;\\u202egpj.exe\\x1b[31m" in body


def test_lock__long_line(viewer: Client, zklock: str, outsider: KazooClient, server: Server) -> None:
    """Of a long line the first hundred are read and shown, and the others counted."""
    outsider.ensure_path(f"{zklock}/long")
    creations = [
        outsider.create_async(f"{zklock}/long/_c_{GUID}-lock-", ephemeral=True, sequence=True) for _ in range(1000)
    ]
    for creation in creations:
        creation.get(timeout=20)
    viewer.get(url_of("long"))
    before = packets_received(server)
    text = text_of(viewer.get(url_of("long")))
    # The line, the data of a hundred, what is on the line, this question, and pings.
    assert packets_received(server) - before <= 10
    assert "1 holds it. 999 wait." in text
    assert "And 900 more." in text


@pytest.mark.parametrize("path", ["nothing", "absent/key", "default/", "default/a/b", "default/..", "default/%00"])
def test_lock__no_such_lock(viewer: Client, zklock: str, path: str) -> None:
    """An address that can be that of no lock is not found."""
    assert viewer.get(f"{LIST}{path}/change/").status_code == 404


def test_lock__unreachable(viewer: Client, settings: Settings) -> None:
    """ZooKeeper away is a message on the page, within the deadline."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    began = time.monotonic()
    response = viewer.get(url_of("account:17"))
    assert time.monotonic() - began < 4
    assert response.status_code == 200
    assert "Locks of “default” cannot be shown. ZooKeeper at 127.0.0.1:" in text_of(response)


def test_lock__wrong_setting(viewer: Client, settings: Settings) -> None:
    """No alias can be known then; the list says what is wrong."""
    settings.ZKLOCK = None
    assert viewer.get(url_of("account:17")).status_code == 404


def test_lock__post_changes_nothing(admin_client: Client, hold: Hold) -> None:
    """The page has no form of its own."""
    held = hold("account:17")
    assert admin_client.post(url_of("account:17"), {"key": "x"}).status_code == 200
    held.check()
