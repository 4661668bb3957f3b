"""Pages during and after an outage of ZooKeeper."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from playwright.sync_api import expect

from django_zklock.testing import ZooKeeperServer
from tests.browser.conftest import OpenSite, Visit
from tests.browser.site_process import Site
from tests.browser.visitor import LIST, page_of
from tests.toolbox.timing import GRACE, scaled
from tests.toolbox.zookeeper.server import ZooKeeper

CONNECT_TIMEOUT = scaled(1)
ROOT = "/django_zklock"


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Start a server that only this module uses, so that tests can stop it."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def own_site(open_site: OpenSite, own_zookeeper: ZooKeeper) -> Iterator[Site]:
    options = {"HOSTS": own_zookeeper.hosts, "SESSION_TIMEOUT": scaled(4), "CONNECT_TIMEOUT": CONNECT_TIMEOUT}
    with open_site({"default": options}) as site:
        yield site


def hold(server: ZooKeeper, key: str) -> None:
    """Create a node that survives the restart of a server."""
    client = KazooClient(server.hosts)
    client.start(timeout=scaled(20))
    client.create(f"{ROOT}/{key}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-", sequence=True, makepath=True)
    client.stop()
    client.close()


def test_list__zookeeper_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """The page arrives in time and shows the error; when ZooKeeper is back, it shows the locks."""
    hold(own_zookeeper, "invoice:42")
    page = visit(at=own_site).page
    page.goto(LIST)
    row = page.get_by_role("row").filter(has_text="invoice:42")
    expect(row).to_be_visible()

    own_zookeeper.pause()
    began = time.monotonic()
    page.goto(LIST)
    assert time.monotonic() - began < CONNECT_TIMEOUT + GRACE
    expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
    expect(row).to_be_hidden()

    own_zookeeper.resume()
    # Without a reload: the page updates itself, and the site reconnects.
    expect(row).to_be_visible()


def test_list__last_known_state(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """An open page keeps what was read last, with its time, and replaces it when ZooKeeper is back."""
    hold(own_zookeeper, "invoice:42")
    page = visit(at=own_site).page
    page.goto(LIST)
    row = page.get_by_role("row").filter(has_text="invoice:42")
    expect(row).to_be_visible()
    read_at = page.locator(".zklock-read").get_attribute("data-read-at")
    own_zookeeper.pause()
    try:
        expect(page.locator(".zklock-as-of")).to_contain_text("Last known state, read at ")
        expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
        expect(page.locator(".zklock-stale").filter(has=row)).to_be_visible()
        # It does not claim to be live.
        expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
        expect(page.locator("#zklock-refresh")).to_contain_text("Updates have stopped: ZooKeeper cannot be read.")
        # Later updates keep it as well.
        with page.expect_response(f"**{LIST}"):
            pass
        expect(page.locator(".zklock-as-of")).to_have_count(1)
        expect(row).to_be_visible()
        shown = page.locator(".zklock-as-of").inner_text()
        moment = shown.removeprefix("Last known state, read at ").removesuffix(":")
        assert read_at is not None
        assert read_at <= moment
    finally:
        own_zookeeper.resume()
    expect(page.locator(".zklock-as-of")).to_have_count(0)
    expect(page.locator(".zklock-stale")).to_have_count(0)
    expect(row).to_be_visible()


def test_lock__last_known_state(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """So does the open page of a lock; its buttons do nothing until ZooKeeper is back."""
    hold(own_zookeeper, "invoice:42")
    page = visit(at=own_site).page
    page.goto(page_of("invoice:42"))
    rows = page.locator(".zklock-stale .zklock-queue tbody tr")
    button = page.get_by_role("button", name="Break the lock")
    expect(button).to_have_attribute("href", re.compile("/break/"))
    expect(page.locator(".zklock-queue tbody tr").first).to_be_visible()
    own_zookeeper.pause()
    try:
        expect(rows.first).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
        expect(button).to_have_attribute("aria-disabled", "true")
        expect(button).not_to_have_attribute("href", re.compile(""))
    finally:
        own_zookeeper.resume()
    expect(rows).to_have_count(0)
    expect(button).to_have_attribute("href", re.compile("/break/"))


def test_list__one_of_two_aliases_away(visit: Visit, own_zookeeper: ZooKeeper, open_site: OpenSite) -> None:
    """If one ensemble cannot be read, its last known locks stay below the current ones of the other."""
    with ZooKeeperServer() as other:
        client = KazooClient(other.hosts)
        client.start(timeout=scaled(20))
        client.create(f"{ROOT}/remote/_c_01234567-89ab-cdef-0123-456789abcdef-lock-", sequence=True, makepath=True)
        client.stop()
        client.close()
        hold(own_zookeeper, "local")
        aliases = {
            "default": {"HOSTS": own_zookeeper.hosts, "CONNECT_TIMEOUT": GRACE},
            "other": {"HOSTS": other.hosts, "CONNECT_TIMEOUT": CONNECT_TIMEOUT},
        }
        with open_site(aliases) as site:
            page = visit(at=site).page
            page.goto(LIST)
            remote = page.get_by_role("row").filter(has_text="remote")
            local = page.get_by_role("row").filter(has_text="local")
            expect(remote).to_be_visible()
            other.stop()
            expect(page.get_by_role("alert")).to_contain_text("Locks of “other” cannot be shown.")
            expect(page.locator("tr.zklock-stale").filter(has_text="remote")).to_be_visible()
            expect(local).to_be_visible()
            expect(page.locator("tr.zklock-stale").filter(has_text="local")).to_have_count(0)
            other.start()
            expect(page.locator("tr.zklock-stale")).to_have_count(0)
            expect(remote).to_be_visible()
            page.goto("about:blank")


def test_list__site_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """While the site does not answer, the page says that updates fail; afterwards it updates again."""
    visitor = visit(at=own_site)
    page = visitor.page
    page.goto(LIST)
    note = page.locator("#zklock-refresh")
    expect(note).to_contain_text("This page updates itself.")
    own_site.stop()
    expect(note).to_contain_text("the site does not answer")
    expect(page.locator(".zklock-as-of, .zklock-empty").first).to_be_visible()
    own_site.start()
    expect(note).to_contain_text("This page updates itself.")
    # The browser logs these errors itself while the server is unavailable.
    visitor.complaints = [each for each in visitor.complaints if "net::ERR_" not in each]
