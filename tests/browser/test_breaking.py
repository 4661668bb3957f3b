"""Breaking and revoking a lock in the browser."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import AddContender, Visit
from tests.browser.visitor import LIST, page_of
from tests.toolbox.celery.workshop import Workshop

BREAK = "Break the lock"
REASON = "The bank does not answer"


@pytest.fixture
def node(key: str, add_contender: AddContender) -> str:
    """Create a holder of the key; return the path of its node."""
    return add_contender(key)


def ask_to_break(page: Page, key: str) -> None:
    """Go from the page of a lock to the confirmation page."""
    page.goto(page_of(key))
    page.get_by_role("button", name=BREAK).click()
    expect(page.get_by_label("Reason")).to_be_visible()


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


def test_break__reason_is_missing(visit: Visit, workshop: Workshop, key: str, node: str) -> None:
    """Without a reason nothing happens, even without the browser's own validation."""
    page = visit().page
    ask_to_break(page, key)
    page.get_by_role("button", name=BREAK).click()
    expect(page.get_by_label("Reason")).to_be_focused()
    page.locator("#content form").evaluate("form => form.noValidate = true")
    page.get_by_role("button", name=BREAK).click()
    expect(page.locator(".errorlist")).to_contain_text("This field is required.")
    assert workshop.nodes(key) == [node.rpartition("/")[2]]


def test_break__another_holder_by_now(
    visit: Visit, workshop: Workshop, key: str, node: str, add_contender: AddContender
) -> None:
    """A later holder keeps the lock, and the page says that nothing was done."""
    page = visit().page
    ask_to_break(page, key)
    page.get_by_label("Reason").fill(REASON)
    workshop.delete(node)
    successor = add_contender(key)
    page.get_by_role("button", name=BREAK).click()
    expect(page.get_by_role("alert").or_(page.locator(".messagelist"))).to_contain_text("Nothing was done")
    expect(page.locator(".zklock-queue tbody tr")).to_contain_text(successor.rpartition("/")[2])
    assert workshop.nodes(key) == [successor.rpartition("/")[2]]


def test_break__by_address(visit: Visit, workshop: Workshop, key: str, node: str) -> None:
    """A GET with every field of the form breaks nothing."""
    page = visit().page
    ask_to_break(page, key)
    fields = {
        name: page.locator(f"#content input[name={name}]").input_value()
        for name in ("node", "token", "csrfmiddlewaretoken")
    }
    address = urlsplit(page.url)
    assert parse_qs(address.query)["node"] == [fields["node"]]
    response = page.request.get(address.path, params={**fields, "reason": REASON})
    assert response.ok
    assert workshop.nodes(key) == [node.rpartition("/")[2]]


def test_break__without_the_token_of_the_form(visit: Visit, workshop: Workshop, key: str, node: str) -> None:
    """A POST without the CSRF token, as another site could send it, is refused."""
    page = visit().page
    ask_to_break(page, key)
    fields = {name: page.locator(f"input[name={name}]").input_value() for name in ("node", "token")}
    response = page.request.post(urlsplit(page.url).path, form={**fields, "reason": REASON})
    assert response.status == 403
    assert workshop.nodes(key) == [node.rpartition("/")[2]]


def test_break__viewer(visit: Visit, workshop: Workshop, key: str, node: str) -> None:
    """A user with only the view permission gets no buttons and is refused."""
    boss, viewer = visit().page, visit("viewer").page
    ask_to_break(boss, key)
    fields = {name: boss.locator(f"input[name={name}]").input_value() for name in ("node", "token")}
    viewer.goto(page_of(key))
    expect(viewer.get_by_role("button", name=BREAK)).to_have_count(0)
    expect(viewer.get_by_role("button", name="Request release")).to_have_count(0)
    [cookie] = [each["value"] for each in viewer.context.cookies() if each["name"] == "csrftoken"]
    path = urlsplit(boss.url).path
    assert viewer.request.get(path, params={"node": fields["node"]}).status == 403
    response = viewer.request.post(path, form={**fields, "reason": REASON}, headers={"X-CSRFToken": cookie})
    assert response.status == 403
    assert workshop.nodes(key) == [node.rpartition("/")[2]]


def test_revoke(visit: Visit, workshop: Workshop, key: str, node: str) -> None:
    """The holder keeps the lock, and the page shows the user and the reason of the request."""
    page = visit().page
    page.goto(page_of(key))
    page.get_by_role("button", name="Request release").click()
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name="Request release").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Release was requested")
    expect(page.locator("#zklock-lock")).to_contain_text(f"asked by root: {REASON}")
    assert workshop.nodes(key) == [node.rpartition("/")[2]]
