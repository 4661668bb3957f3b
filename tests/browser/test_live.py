"""Pages that update themselves."""

from __future__ import annotations

from kazoo.client import KazooClient
from playwright.sync_api import Request, expect

from tests.browser.conftest import AddContender, Visit
from tests.browser.visitor import LIST, page_of
from tests.toolbox.celery.workshop import Workshop

# Milliseconds: the interval of the script, and longer than its longest pause.
INTERVAL = 2_000
LONG = 60_000


def test_list__lock_comes_and_goes(visit: Visit, workshop: Workshop, key: str) -> None:
    """The open list shows a task that acquires its lock and releases it; the summary has the count."""
    page = visit().page
    page.goto(f"{LIST}?q={key}")
    page.evaluate("window.stayed = true")
    row = page.get_by_role("row").filter(has_text=key)
    summary = page.get_by_role("status")
    expect(summary).to_have_text("0 locks")

    sent = workshop.send("hold", key, f"{key}:gate")
    expect(row).to_contain_text(f"task workshop.tasks.hold [{sent.id}]")
    expect(summary).to_have_text("1 lock")
    workshop.let_go(f"{key}:gate")
    expect(row).to_have_count(0)
    expect(summary).to_have_text("0 locks")
    assert page.evaluate("window.stayed")


def test_lock__queue_grows(visit: Visit, key: str, add_contender: AddContender) -> None:
    """The page of a free lock shows the new holder, then a waiter; the focus stays."""
    page = visit().page
    page.goto(page_of(key))
    expect(page.locator("#zklock-lock")).to_contain_text("This lock has no holder")
    rows = page.locator(".zklock-queue tbody tr")
    add_contender(key)
    expect(rows).to_have_count(1)
    button = page.get_by_role("button", name="Break the lock")
    button.focus()
    add_contender(key)
    expect(rows).to_have_count(2)
    expect(button).to_be_focused()


def test_list__contention(visit: Visit, key: str, add_contender: AddContender, kazoo_client: KazooClient) -> None:
    """The page draws how many wait and hold, by the part of the key before the colon, since it was opened."""
    group = key.replace("-", "_")
    page = visit().page
    add_contender(f"{group}:1")
    page.goto(f"{LIST}?q={group}")
    chart = page.locator("#zklock-contention")
    # No contender has waited: there is nothing to draw.
    expect(page.get_by_role("row").filter(has_text=group)).to_have_count(1)
    expect(chart).to_be_hidden()
    add_contender(f"{group}:2")
    waiter = add_contender(f"{group}:2")
    image = page.get_by_role("img", name=f"{group}: 1 waiting, 2 holding, at most 1 waiting since")
    expect(image).to_be_visible()
    assert "V" in (image.locator(".zklock-waiting-line").get_attribute("d") or "")
    kazoo_client.delete(waiter)
    expect(page.get_by_role("img", name=f"{group}: 0 waiting, 2 holding, at most 1 waiting since")).to_be_visible()


def test_lock__copy(visit: Visit, key: str, add_contender: AddContender) -> None:
    """A button copies the command line beside it."""
    add_contender(key)
    page = visit().page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(page_of(key))
    button = page.get_by_role("button", name="Copy: Show in a terminal")
    button.press("Enter")
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"python manage.py zklock show {key}"
    page.context.clear_permissions()


def test_live__switched_off(visit: Visit, key: str, add_contender: AddContender) -> None:
    """A paused page sends no requests until it is switched on again."""
    page = visit().page
    page.clock.install()
    page.goto(f"{LIST}?q={key}")
    switch = page.get_by_role("button", name="Live")
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.press("Enter")
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#zklock-refresh")).to_contain_text("Updates are paused.")
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))  # noqa: PLW0108 - it takes no method of a builtin
    add_contender(key)
    page.clock.fast_forward(LONG)
    assert requests == []
    switch.press("Space")
    page.clock.fast_forward(INTERVAL)
    expect(page.get_by_role("row").filter(has_text=key)).to_be_visible()


def test_live__logged_out(visit: Visit, key: str) -> None:
    """After a logout the page says so and sends no more requests."""
    page = visit(None).page
    page.goto(page_of(key))
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill("root")
    page.get_by_role("button", name="Log in").click()
    note = page.locator("#zklock-refresh")
    expect(note).to_contain_text("This page updates itself.")
    page.context.clear_cookies()
    expect(note).to_contain_text("You are logged out.")
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
