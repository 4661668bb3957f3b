"""The admin without a mouse."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Stand, Visit
from tests.browser.visitor import LIST
from tests.contrib.celery.conftest import Workshop


def test_break(visit: Visit, workshop: Workshop, key: str, stand: Stand) -> None:
    """Every control on the way can be reached by the Tab key, shows that it has the focus, and is worked by Enter."""
    stand(key)
    visitor = visit()
    page = visitor.page
    page.goto(f"{LIST}?q={key}")
    # What renews itself would take the marks of the tour away.
    page.get_by_role("button", name="Live").press("Enter")
    assert visitor.tour() == []
    visitor.tab_to(page.get_by_role("link", name=key))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=key)).to_be_visible()
    page.get_by_role("button", name="Live").press("Enter")
    assert visitor.tour() == []
    visitor.tab_to(page.get_by_role("button", name="Break the lock"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_visible()
    assert visitor.tour() == []
    visitor.tab_to(page.get_by_label("Reason"))
    page.keyboard.type("The bank does not answer")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_be_visible()
    assert workshop.nodes(key) == []
