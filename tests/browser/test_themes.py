"""The pages in the themes of the admin that projects use: usable and undamaged on every screen, in light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from django_zklock.testing import ZooKeeperServer
from tests.browser import pictured_locks
from tests.browser.conftest import OpenSite
from tests.browser.site_process import Site
from tests.browser.visitor import AUDIT, DAMAGE, LIST, SIZES, STILL, TIMEOUT, page_of, rows_on_a_screen
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import GRACE

THEMES = ("unfold", "jazzmin", "grappelli")
# Of our own part of the page: what a theme paints around it is its own.
PART = ".zklock"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def themed(open_site: OpenSite, shop_server: ZooKeeperServer) -> Iterator[Callable[[str], Site]]:
    """Return a function that starts a site with a theme, once."""
    sites: dict[str, Site] = {}
    with ExitStack() as stack:

        def start(theme: str) -> Site:
            if theme not in sites:
                options = {"default": {"HOSTS": shop_server.hosts, "CONNECT_TIMEOUT": GRACE}}
                sites[theme] = stack.enter_context(open_site(options, now=pictured_locks.NOW, theme=theme))
            return sites[theme]

        yield start


@pytest.fixture(params=THEMES)
def page(request: pytest.FixtureRequest, browser: Browser, themed: Callable[[str], Site]) -> Iterator[Page]:
    """Log in to a site with the theme."""
    with visited(browser, themed(request.param)) as page:
        yield page


@contextmanager
def visited(browser: Browser, site: Site) -> Iterator[Page]:
    """Log in to ``site`` with a browser of its own."""
    context = browser.new_context(base_url=site.url, viewport=SIZES["wide"])
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    page.goto("/admin/")
    page.locator("[name=username]").fill("root")
    page.locator("[name=password]").fill("root")
    page.locator("form:has([name=password]) [type=submit]").first.click()
    expect(page).not_to_have_url(re.compile("login"))
    yield page
    context.close()


def look(page: Page, folder: Path, name: str) -> None:
    """Check our part of the page in every look, and take a picture of one that has a fault."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        # unfold asks for the scheme when a page is opened.
        page.reload()
        part = page.locator(PART).first
        expect(part).to_be_visible()
        for width, size in SIZES.items():
            page.set_viewport_size(size)
            # Changes of colour are animated.
            page.wait_for_function(STILL)
            # Links have the colours of the theme.
            barriers = [each for each in part.evaluate(AUDIT) if "<a " not in each and "<bdi" not in each]
            # What is to be seen in the whole page: headings, ids.
            faults = [each for each in [*barriers, *page.evaluate(DAMAGE)] if "zklock" in each]
            if faults:
                page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", animations="disabled")
            assert faults == [], (width, scheme)


def test_list(page: Page, tmp_path: Path) -> None:
    """The list has the most urgent lock first, two lines for each lock, and a search and filters that work."""
    page.goto(LIST)
    rows = page.locator("#zklock-list tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.first).to_contain_text("invoice:42")
    assert rows_on_a_screen(page) >= 8
    look(page, tmp_path, "list")
    page.set_viewport_size(SIZES["wide"])
    search = page.locator("[name=q]").first
    search.fill("cata")
    search.press("Enter")
    expect(page).to_have_url(re.compile("q=cata"))
    expect(rows).to_have_count(1)
    page.goto(f"{LIST}?host=gpu")
    expect(rows).to_have_count(1)


def test_lock(page: Page, tmp_path: Path) -> None:
    """The page of a lock has its key, its queue, buttons and command lines with a button that copies them."""
    page.goto(page_of("invoice:42"))
    # unfold begins a title with a capital letter.
    expect(page.get_by_role("heading", name=re.compile("invoice:42", re.IGNORECASE)).first).to_be_visible()
    expect(page.locator(".zklock-queue tbody tr")).to_have_count(4)
    expect(page.get_by_role("button", name="Copy: Show in a terminal")).to_be_visible()
    expect(page.get_by_role("link", name="History").first).to_be_visible()
    button = page.get_by_role("button", name="Break the lock")
    assert button.evaluate("button => getComputedStyle(button).backgroundColor") == "rgb(186, 33, 33)"
    look(page, tmp_path, "lock")


@pytest.mark.parametrize("action", ["Break the lock", "Request release"])
def test_action(page: Page, tmp_path: Path, action: str) -> None:
    """Both actions ask for a reason, in a field that can be seen, and the way back works."""
    page.goto(page_of("invoice:42"))
    page.get_by_role("button", name=action).click()
    field = page.get_by_label("Reason")
    expect(field).to_be_visible()
    assert field.evaluate("field => parseFloat(getComputedStyle(field).borderTopWidth)") > 0
    look(page, tmp_path, "action")
    page.get_by_role("button", name="No, take me back").click()
    expect(page).to_have_url(re.compile("/change/$"))


def test_other_pages(page: Page, tmp_path: Path) -> None:
    """The servers and the history are there too, and a list in which nothing was found."""
    page.goto(f"{LIST}ensembles/")
    expect(page.get_by_role("heading", name="Servers")).to_be_visible()
    look(page, tmp_path, "ensembles")
    page.goto(page_of("invoice:42").replace("/change/", "/history/"))
    expect(page.get_by_text("Nobody is known to have broken this lock")).to_be_visible()
    page.goto(page_of(pictured_locks.ASKED).replace("/change/", "/history/"))
    expect(page.locator(".zklock-table tbody tr")).to_have_count(3)
    look(page, tmp_path, "history")
    page.goto(f"{LIST}?q=nothing-like-it")
    expect(page.locator(".zklock-empty")).to_be_visible()
    look(page, tmp_path, "nothing")


@pytest.mark.parametrize("theme", THEMES)
def test_outage(browser: Browser, open_site: OpenSite, tmp_path: Path, theme: str) -> None:
    """Without ZooKeeper each page says so, does not claim to be live, and has no button that would act."""
    options = {"default": {"HOSTS": f"{LOOPBACK}:{free_port()}"}}
    with open_site(options, theme=theme) as site, visited(browser, site) as page:
        for name, address in (("list", LIST), ("lock", page_of("invoice:42"))):
            page.goto(address)
            expect(page.get_by_role("alert")).to_contain_text("cannot be shown")
            expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
            expect(page.get_by_role("button", name="Break the lock")).to_have_count(0)
            look(page, tmp_path, name)
