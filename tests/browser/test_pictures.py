"""The pictures in the documents. `make screenshots` renews them; any other run takes them all the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from services.ensemble import Ensemble

from django_zklock.testing import ZooKeeperServer
from tests.browser import night
from tests.browser.conftest import OpenSite, Visit
from tests.browser.site import Site
from tests.browser.visitor import LIST, Visitor, page_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
VARIABLE = "ZKLOCK_SCREENSHOTS"
MAX_BYTES = 150_000

Photograph = Callable[[Visitor, str], None]


@pytest.fixture(scope="module")
def shop(open_site: OpenSite) -> Iterator[Site]:
    """Give a site with the locks of a night."""
    with (
        ZooKeeperServer(zxid=night.ZXID) as server,
        night.played(server),
        open_site({"default": {"HOSTS": server.hosts}}) as site,
    ):
        yield site


@pytest.fixture(scope="module")
def three_servers(open_site: OpenSite) -> Iterator[Site]:
    """Give a site with the locks of a real ensemble."""
    with Ensemble() as ensemble, open_site({"default": {"HOSTS": ensemble.hosts}}) as site:
        yield site


@pytest.fixture
def photograph(tmp_path: Path) -> Photograph:
    """Give a function that takes pictures of a page in every look, in which it is whole and for everybody.

    They go to where the documents have theirs if that is wished for: on a narrow screen what one sees at first.
    """
    folder = Path(os.environ.get(VARIABLE) or tmp_path)

    def take(visitor: Visitor, name: str) -> None:
        for look in visitor.looks():
            assert visitor.audit() == [], look
            assert visitor.damage() == [], look
            file = folder / f"{name}-{look}.png"
            visitor.page.screenshot(path=file, full_page=look.startswith("wide"), animations="disabled")
            assert file.stat().st_size < MAX_BYTES

    return take


def without_sidebar(visitor: Visitor) -> Visitor:
    """Have more room for what the picture is about."""
    visitor.page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    return visitor


def test_list(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """The list, as an operator finds it at night."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(LIST)
    expect(visitor.page.get_by_role("row").filter(has_text="invoice:42")).to_be_visible()
    photograph(visitor, "list")


def test_lock(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """The line of one lock."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(page_of("invoice:42"))
    expect(visitor.page.locator(".zklock-line tbody tr")).to_have_count(4)
    photograph(visitor, "lock")


def test_break(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """What is asked before a lock is broken."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(page_of("invoice:42"))
    visitor.page.get_by_role("button", name="Break the lock").click()
    visitor.page.get_by_label("Reason").fill("The bank does not answer")
    photograph(visitor, "break")


def test_ensembles(visit: Visit, three_servers: Site, photograph: Photograph) -> None:
    """Three servers, one of which leads."""
    visitor = without_sidebar(visit(at=three_servers))
    visitor.page.goto(LIST)
    visitor.page.get_by_role("link", name="Ensembles").click()
    expect(visitor.page.get_by_role("row").filter(has_text="leader")).to_be_visible()
    photograph(visitor, "ensembles")


def test_documents() -> None:
    """The documents show each of the pictures that are there, and no other."""
    page = (DOCS / "howto" / "look-at-locks.md").read_text(encoding="utf-8")
    shown = re.findall(r"_static/screenshots/([\w-]+\.png)", page)
    assert sorted(shown) == sorted(file.name for file in (DOCS / "_static" / "screenshots").iterdir())
