"""Pages while ZooKeeper is away, and after."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from playwright.sync_api import expect
from services.zookeeper import ZooKeeper

from tests.browser.conftest import OpenSite, Visit
from tests.browser.site import Site
from tests.browser.visitor import LIST, page_of

CONNECT_TIMEOUT = 1.0
ROOT = "/django_zklock"


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Give a server of the module's own, to be stopped."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def own_site(open_site: OpenSite, own_zookeeper: ZooKeeper) -> Iterator[Site]:
    options = {"HOSTS": own_zookeeper.hosts, "SESSION_TIMEOUT": 4, "CONNECT_TIMEOUT": CONNECT_TIMEOUT}
    with open_site({"default": options}) as site:
        yield site


def hold(server: ZooKeeper, key: str) -> None:
    """Leave a node that outlives the restart of a server."""
    client = KazooClient(server.hosts)
    client.start(timeout=20)
    client.create(f"{ROOT}/{key}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-", sequence=True, makepath=True)
    client.stop()
    client.close()


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "gone"])
def test_list__zookeeper_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site, silent: bool) -> None:
    """The page comes in time and says what is wrong; when ZooKeeper is back, so are its locks."""
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
    assert time.monotonic() - began < CONNECT_TIMEOUT + 2
    expect(page.get_by_role("alert")).to_contain_text("Locks of “default” cannot be shown.")
    expect(row).to_be_hidden()

    if silent:
        own_zookeeper.resume()
    else:
        own_zookeeper.start()
    # By itself: the page renews itself, and the site finds its way back.
    expect(row).to_be_visible()


def test_lock__zookeeper_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """So it is with the page of a lock, and with the servers of the ensemble."""
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
        assert time.monotonic() - began < 2 * (CONNECT_TIMEOUT + 2)
    finally:
        own_zookeeper.resume()
    expect(page.get_by_role("row").filter(has_text="standalone")).to_be_visible()


def test_list__site_away(visit: Visit, own_zookeeper: ZooKeeper, own_site: Site) -> None:
    """While the site itself does not answer the page says that what it shows is old, and catches up afterwards."""
    visitor = visit(at=own_site)
    page = visitor.page
    page.goto(LIST)
    note = page.locator("#zklock-refresh")
    expect(note).to_contain_text("This page renews itself.")
    own_site.stop()
    expect(note).to_contain_text("This page could not be renewed")
    own_site.start()
    expect(note).to_contain_text("This page renews itself.")
    # What the browser itself says of a server that is away.
    visitor.complaints = [each for each in visitor.complaints if "net::ERR_" not in each]
