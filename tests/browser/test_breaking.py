"""Breaking and revoking a lock in the browser; what is refused is in ``tests/unit/admin/test_actions.py``."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import AddContender, Visit
from tests.browser.visitor import LIST, page_of
from tests.toolbox.celery.workshop import Workshop

BREAK = "Break the lock"
REASON = "The bank does not answer"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_break__task_of_a_worker(
    visit: Visit, workshop: Workshop, key: str, add_contender: AddContender, scripts: bool
) -> None:
    """The page names the holder; its task fails with the reason, the next waiter holds, and the log has an entry."""
    sent = workshop.send("watch_itself", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    successor = add_contender(key)
    page = visit(scripts=scripts).page

    page.goto(LIST)
    page.locator("#searchbar").fill(key)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=key, exact=True).click()
    page.get_by_role("button", name=BREAK).click()
    expect(page.locator("#content")).to_contain_text(f"task workshop.tasks.watch_itself [{sent.id}]")
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name=BREAK).click()

    expect(page.locator(".messagelist .success")).to_contain_text(f"[{sent.id}]")
    expect(page.locator(".zklock-queue tbody tr")).to_contain_text(successor.rpartition("/")[2])
    expect(page.get_by_role("row").filter(has=page.get_by_role("cell", name="root", exact=True))).to_contain_text(
        REASON
    )
    error = workshop.outcome(sent)
    assert type(error).__name__ == "LockLost"
    assert f"broken by root: {REASON}" in str(error)
    page.get_by_role("link", name="History").click()
    # ZooKeeper's trail, and the log of the site.
    rows = page.get_by_role("row").filter(has=page.get_by_role("cell", name="root", exact=True))
    expect(rows).to_have_count(2)
    for number in range(2):
        expect(rows.nth(number)).to_contain_text(REASON)


def test_revoke(visit: Visit, workshop: Workshop, key: str, add_contender: AddContender) -> None:
    """The holder keeps the lock, and the page shows the user and the reason of the request."""
    node = add_contender(key)
    page = visit().page
    page.goto(page_of(key))
    page.get_by_role("button", name="Request release").click()
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name="Request release").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Release was requested")
    expect(page.locator("#zklock-lock")).to_contain_text(f"asked by root: {REASON}")
    assert workshop.nodes(key) == [node.rpartition("/")[2]]
