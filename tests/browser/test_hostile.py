"""What anybody may have written to ZooKeeper: the pages show it, and do not act upon it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Stand, Visit
from tests.browser.visitor import LIST, Visitor, page_of

# Each would leave a mark on the window.
SCRIPT = "<script>window.attacked = true</script>"
IMAGE = "<img src=x onerror='window.attacked = true'>"
OVERRIDE = "\u202egpj.exe"
ENDLESS = "abcdefgh" * 32


def identity(**facts: Any) -> bytes:
    """Give node data in our form, with any types in it."""
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
KEYS = [SCRIPT, f'"{IMAGE}', OVERRIDE, ENDLESS * 4, "\u05e9\u05dc\u05d5\u05dd", "%FF%FE", "\x1b[31m", "a\nb"]


def test_list__hostile_tree(visit: Visit, stand: Stand) -> None:
    """The list shows each of the locks, runs no script, is not wider than the window, and keeps text in its cell."""
    for key, data in CONTENDERS.items():
        stand(key, data)
    for key in KEYS:
        stand(key)
    stand("of no recipe", name=FOREIGN)
    visitor = visit()
    page = visitor.page
    page.goto(LIST)
    expect(page.locator("#result_list tbody tr")).to_have_count(len(CONTENDERS) + len(KEYS) + 1)
    assert_whole(visitor)


def test_lock__hostile_line(visit: Visit, stand: Stand) -> None:
    """So does the page of a lock show everybody in its line; each of them reads, so that each can be broken."""
    for data in CONTENDERS.values():
        stand(SCRIPT, data, name=f"_c_{uuid.uuid4()}-__READ__")
    stand(SCRIPT, name=FOREIGN)
    visitor = visit()
    page = visitor.page
    page.goto(page_of(SCRIPT))
    expect(page.get_by_role("heading", name=SCRIPT)).to_be_visible()
    expect(page.locator(".zklock-line tbody tr")).to_have_count(len(CONTENDERS))
    expect(page.get_by_role("button", name="Break the lock")).to_have_count(len(CONTENDERS))
    assert_whole(visitor)


@pytest.mark.parametrize("who", ["script", "endless"])
def test_break__hostile_holder(visit: Visit, stand: Stand, who: str) -> None:
    """Who is asked about is named as they name themselves, and what they call themselves stays text to the end."""
    key = KEYS[0] if who == "script" else ENDLESS * 4
    stand(key, CONTENDERS[who])
    visitor = visit()
    page = visitor.page
    page.goto(page_of(key))
    page.get_by_role("button", name="Break the lock").click()
    expect(page.locator("#content")).to_contain_text(SCRIPT if who == "script" else ENDLESS[:100])
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
    """The page has done nothing that a text told it, and keeps its shape in every look."""
    for look in visitor.looks():
        assert visitor.damage() == [], look
