"""Hostile data in ZooKeeper: the pages show it and do not execute it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from playwright.sync_api import expect

from django_zklock.zk.ops import sent
from tests.browser.conftest import AddContender, Visit
from tests.browser.visitor import LIST, Visitor, page_of
from tests.toolbox.celery.workshop import Workshop
from tests.toolbox.timing import scaled

# Each sets a variable of the window if it is executed.
SCRIPT = "<script>window.attacked = true</script>"
IMAGE = "<img src=x onerror='window.attacked = true'>"
OVERRIDE = "\u202egpj.exe"
ENDLESS = "abcdefgh" * 32


def identity(**facts: Any) -> bytes:
    """Return node data in our format, with values of any type."""
    return json.dumps({"v": 1, "host": "web1", "pid": 17} | facts).encode()


CONTENDERS = {
    "script": identity(host=SCRIPT, work={"kind": IMAGE, "name": SCRIPT, "id": f'">{IMAGE}'}),
    "endless": identity(host=ENDLESS, work={"kind": "task", "name": ENDLESS, "id": ENDLESS}),
    "megabyte": b"<b>" * 333_000,
    "megabyte of json": identity(host="w" * 1_000_000),
    "not utf-8": b"\xff\xfe\x00{",
    "forged types": identity(pid=1, joined="soon", started=[], thread={}, limit=1e400, work={"kind": 1, "name": []}),
    "forged host": identity(host={"a": 1}, pid="17"),
    "nested": b'{"v":1,"host":' + b"[" * 100_000,
    "turned around": identity(host=OVERRIDE, work={"kind": "task", "name": OVERRIDE, "id": "\u05d0\u05d1"}),
}
FOREIGN = f"<b>{IMAGE.replace('/', '')}"
KEYS = [
    SCRIPT,
    f'"{IMAGE}',
    OVERRIDE,
    ENDLESS * 4,
    "\u05e9\u05dc\u05d5\u05dd",
    "%FF%FE",
    "\x1b[31m",
    "a\nb",
    "\U0001f389",
]


def test_list__hostile_tree(visit: Visit, add_contender: AddContender) -> None:
    """The list shows every lock, runs no script, fits into the window, and keeps text in its cells."""
    for key, data in CONTENDERS.items():
        add_contender(key, data)
    for key in KEYS:
        add_contender(key)
    add_contender("of no recipe", name=FOREIGN)
    visitor = visit()
    page = visitor.page
    page.goto(LIST)
    expect(page.locator("#zklock-list tbody tr")).to_have_count(len(CONTENDERS) + len(KEYS) + 1)
    assert_whole(visitor)


def test_lock__hostile_queue(visit: Visit, add_contender: AddContender) -> None:
    """So does the page of a lock with every contender; all are readers, so that each has a button."""
    for data in CONTENDERS.values():
        add_contender(SCRIPT, data, name=f"_c_{uuid.uuid4()}-__READ__")
    add_contender(SCRIPT, name=FOREIGN)
    visitor = visit()
    page = visitor.page
    page.goto(page_of(SCRIPT))
    expect(page.get_by_role("heading", name=SCRIPT)).to_be_visible()
    expect(page.locator(".zklock-queue tbody tr")).to_have_count(len(CONTENDERS))
    expect(page.get_by_role("button", name="Break the lock")).to_have_count(len(CONTENDERS))
    assert_whole(visitor)


def test_lock__hostile_sent(visit: Visit, add_contender: AddContender, workshop: Workshop) -> None:
    """So do the calls that are sent and have not begun, which any client can write too."""
    add_contender(SCRIPT)
    for number, (task, id) in enumerate(((IMAGE, "4711"), (ENDLESS, "a" * 200), (OVERRIDE, "1"))):  # noqa: A001
        mark = sent.new_mark(workshop.pool, id, number)
        sent.claim(workshop.pool, mark, sent.encode(key=SCRIPT, task=task, max_age=60.0), max_age=60.0)
    visitor = visit()
    page = visitor.page
    page.goto(page_of(SCRIPT))
    shown = page.get_by_role("heading", name="Sent, and not begun").locator("xpath=following::table[1]")
    expect(shown.locator("tbody tr")).to_have_count(3)
    expect(shown).to_contain_text(f"{IMAGE} [4711]")
    assert_whole(visitor)
    sent.prune(workshop.pool, sent.find(workshop.pool, timeout=scaled(20)), timeout=scaled(20))


@pytest.mark.parametrize("data", ["script", "endless"])
def test_break__hostile_holder(visit: Visit, add_contender: AddContender, data: str) -> None:
    """The name that a holder has given itself stays text on the confirmation page, in the message and in the log."""
    key = KEYS[0] if data == "script" else ENDLESS * 4
    add_contender(key, CONTENDERS[data])
    visitor = visit()
    page = visitor.page
    page.goto(page_of(key))
    page.get_by_role("button", name="Break the lock").click()
    expect(page.locator("#content")).to_contain_text(SCRIPT if data == "script" else ENDLESS[:100])
    assert_whole(visitor)
    page.get_by_label("Reason").fill(IMAGE)
    page.get_by_role("button", name="Break the lock").click()
    expect(page.locator(".messagelist .success")).to_be_visible()
    expect(page.locator("#content")).to_contain_text(IMAGE)
    assert_whole(visitor)
    page.get_by_role("link", name="History").click()
    expect(page.locator("#content")).to_contain_text(IMAGE)
    assert_whole(visitor)


def assert_whole(visitor: Visitor) -> None:
    """Assert that no script has run and that the layout is intact in every look."""
    for look in visitor.looks():
        assert visitor.damage() == [], look
