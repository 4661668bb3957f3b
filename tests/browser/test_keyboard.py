"""The admin with the keyboard alone."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import AddContender, Visit
from tests.browser.visitor import LIST
from tests.toolbox.celery.workshop import Workshop


def test_break(visit: Visit, workshop: Workshop, key: str, add_contender: AddContender) -> None:
    """The Tab key reaches every control, the focus is visible, and Enter activates the control."""
    add_contender(key)
    visitor = visit()
    page = visitor.page
    page.goto(f"{LIST}?q={key}")
    # An update of the page would remove the marks of the tour.
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
