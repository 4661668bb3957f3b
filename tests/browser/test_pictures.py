"""The pages that the documents show: without fault on any screen. `make screenshots` puts their pictures there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from django_zklock.testing import ZooKeeperServer
from tests.browser import pictured_locks
from tests.browser.conftest import OpenSite, Visit
from tests.browser.site_process import Site
from tests.browser.visitor import LIST, NARROW, WIDE, Visitor, page_of
from tests.support.servers.ensemble import Ensemble

DOCS = Path(__file__).resolve().parents[2] / "docs"
VARIABLE = "ZKLOCK_SCREENSHOTS"
MAX_BYTES = 150_000

Photograph = Callable[[Visitor, str], None]


@pytest.fixture(scope="module")
def shop(open_site: OpenSite) -> Iterator[Site]:
    """Start a site with the locks of the screenshots."""
    with (
        ZooKeeperServer(zxid=pictured_locks.ZXID) as server,
        pictured_locks.played(server),
        open_site({"default": {"HOSTS": server.hosts}}) as site,
    ):
        yield site


@pytest.fixture(scope="module")
def three_servers(open_site: OpenSite) -> Iterator[Site]:
    """Start a site with a real ensemble of three servers."""
    with Ensemble() as ensemble, open_site({"default": {"HOSTS": ensemble.hosts}}) as site:
        yield site


@pytest.fixture
def photograph(tmp_path: Path) -> Photograph:
    """Return a function that checks a page in every look and takes a screenshot of it.

    Screenshots of a wide screen show the whole page, those of a narrow screen its first part.
    """
    folder = Path(os.environ.get(VARIABLE) or tmp_path)

    def take(visitor: Visitor, name: str) -> None:
        for look in visitor.looks():
            assert visitor.audit() == [], look
            assert visitor.damage() == [], look
            file = folder / f"{name}-{look}.png"
            picture = visitor.page.screenshot(path=file, full_page=look.startswith("wide"), animations="disabled")
            assert len(picture) < MAX_BYTES
            # The whole page is as wide as the window: nothing sticks out.
            window = WIDE if look.startswith("wide") else NARROW
            assert int.from_bytes(picture[16:20]) == window["width"], look

    return take


def without_sidebar(visitor: Visitor) -> Visitor:
    """Hide the sidebar, so that the page has more room."""
    visitor.page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    return visitor


def test_list(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """The list has no fault on a wide or a narrow screen, in light or in dark."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(LIST)
    expect(visitor.page.get_by_role("row").filter(has_text="invoice:42")).to_be_visible()
    photograph(visitor, "list")


def test_lock(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """Nor has the page of a lock with its queue."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(page_of("invoice:42"))
    expect(visitor.page.locator(".zklock-queue tbody tr")).to_have_count(4)
    photograph(visitor, "lock")


def test_break(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """Nor has the question before a lock is broken."""
    visitor = without_sidebar(visit(at=shop))
    visitor.page.goto(page_of("invoice:42"))
    visitor.page.get_by_role("button", name="Break the lock").click()
    visitor.page.get_by_label("Reason").fill("The bank does not answer")
    photograph(visitor, "break")


def test_ensembles(visit: Visit, three_servers: Site, photograph: Photograph) -> None:
    """Nor has the page of an ensemble of three servers."""
    visitor = without_sidebar(visit(at=three_servers))
    visitor.page.goto(LIST)
    visitor.page.get_by_role("link", name="Ensembles").click()
    expect(visitor.page.get_by_role("row").filter(has_text="leader")).to_be_visible()
    photograph(visitor, "ensembles")


def test_documents() -> None:
    """The documents show every screenshot in the folder, and no other."""
    page = (DOCS / "howto" / "look-at-locks.md").read_text(encoding="utf-8")
    shown = re.findall(r"_static/screenshots/([\w-]+\.png)", page)
    assert sorted(shown) == sorted(file.name for file in (DOCS / "_static" / "screenshots").iterdir())
