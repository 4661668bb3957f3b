"""Pages during and after an outage of ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from playwright.sync_api import expect
from services.zookeeper import ZooKeeper

from tests.browser.conftest import OpenSite, Visit
from tests.browser.site_process import Site
from tests.browser.visitor import LIST, page_of
from tests.support.timing import GRACE

CONNECT_TIMEOUT = 1.0
ROOT = "/django_zklock"


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Start a server that only this module uses, so that tests can stop it."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def own_site(open_site: OpenSite, own_zookeeper: ZooKeeper) -> Iterator[Site]:
    options = {"HOSTS": own_zookeeper.hosts, "SESSION_TIMEOUT": 4, "CONNECT_TIMEOUT": CONNECT_TIMEOUT}
    with open_site({"default": options}) as site:
        yield site


def hold(server: ZooKeeper, key: str) -> None:
    """Create a node that survives the restart of a server."""
    client = KazooClient(server.hosts)
    client.start(timeout=20)
    client.create(f"{ROOT}/{key}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-", sequence=True, makepath=True)
    client.stop()
    client.close()


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "gone"])
def test_list__zookeeper_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site, silent: bool) -> None:
    """The page arrives in time and shows the error; when ZooKeeper is back, it shows the locks."""
    hold(own_zookeeper, "invoice:42")
    page = visit(at=own_site).page
    page.goto(LIST)
    row = page.get_by_role("row").filter(has_text="invoice:42")
    expect(row).to_be_visible()

    if silent:
        own_zookeeper.pause()
    else:
        own_zookeeper.kill()
    began = time.monotonic()
    page.goto(LIST)
    assert time.monotonic() - began < CONNECT_TIMEOUT + GRACE
    expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
    expect(row).to_be_hidden()

    if silent:
        own_zookeeper.resume()
    else:
        own_zookeeper.start()
    # Without a reload: the page updates itself, and the site reconnects.
    expect(row).to_be_visible()


def test_lock__zookeeper_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """The page of a lock and the page of the ensembles show the error too."""
    hold(own_zookeeper, "invoice:42")
    visitor = visit(at=own_site)
    page = visitor.page
    own_zookeeper.pause()
    try:
        began = time.monotonic()
        page.goto(page_of("invoice:42"))
        expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
        page.goto(f"{LIST}ensembles/")
        expect(page.get_by_role("row").filter(has_text="No answer")).to_contain_text(own_zookeeper.hosts)
        assert time.monotonic() - began < 2 * CONNECT_TIMEOUT + GRACE
    finally:
        own_zookeeper.resume()
    expect(page.get_by_role("row").filter(has_text="standalone")).to_be_visible()


def test_list__site_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """While the site does not answer, the page says that updates fail; afterwards it updates again."""
    visitor = visit(at=own_site)
    page = visitor.page
    page.goto(LIST)
    note = page.locator("#zklock-refresh")
    expect(note).to_contain_text("This page updates itself.")
    own_site.stop()
    expect(note).to_contain_text("The last update failed")
    own_site.start()
    expect(note).to_contain_text("This page updates itself.")
    # The browser logs these errors itself while the server is unavailable.
    visitor.complaints = [each for each in visitor.complaints if "net::ERR_" not in each]
