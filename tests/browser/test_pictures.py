"""The pages of the documents, and others: without fault on any screen, and as their references show them.

`make screenshots` renews the references and the pictures of the documents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from playwright.sync_api import Page, expect

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.node_data import Work
from tests.browser import pictured_locks, references
from tests.browser.conftest import OpenSite, Visit
from tests.browser.pictured_locks import Contender
from tests.browser.site_process import Site
from tests.browser.test_hostile import ENDLESS, KEYS
from tests.browser.visitor import LIST, SIZES, Visitor, page_of, rows_on_a_screen
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.ensemble import Ensemble

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCREENSHOTS = DOCS / "_static" / "screenshots"
VARIABLE = "ZKLOCK_SCREENSHOTS"
MAX_BYTES = 150_000
# What differs between two ensembles: addresses, latencies, numbers.
UNIFORM = "cells => cells.forEach(cell => { cell.textContent = '0' })"
# The interval of the updates, in milliseconds.
INTERVAL = 2_000
# How many more wait for the invoice at each update while the list is open.
WAITERS = (1, 2, 4, 6, 5, 3, 3, 1, 0, 0)

Photograph = Callable[..., None]


@pytest.fixture(scope="module")
def shop(open_site: OpenSite, shop_server: ZooKeeperServer) -> Iterator[Site]:
    """Start a site that shows them, always at the same time."""
    with open_site({"default": {"HOSTS": shop_server.hosts}}, now=pictured_locks.NOW) as site:
        yield site


@pytest.fixture
def own_server() -> Iterator[ZooKeeperServer]:
    """Start a server without locks."""
    with ZooKeeperServer(zxid=pictured_locks.ZXID) as server:
        yield server


@pytest.fixture
def own_client(own_server: ZooKeeperServer) -> Iterator[KazooClient]:
    own_server.service.sessions._last = pictured_locks.SESSION
    with pictured_locks.connect(own_server) as client:
        yield client


@pytest.fixture
def own_site(open_site: OpenSite, own_server: ZooKeeperServer) -> Iterator[Site]:
    with open_site(
        {"default": {"HOSTS": own_server.hosts, "CONNECT_TIMEOUT": scaled(1)}}, now=pictured_locks.NOW
    ) as site:
        yield site


@pytest.fixture(scope="module")
def three_servers(open_site: OpenSite) -> Iterator[Site]:
    """Start a site with a real ensemble of three servers."""
    with Ensemble() as ensemble, open_site({"default": {"HOSTS": ensemble.hosts}}) as site:
        yield site


@pytest.fixture
def photograph(tmp_path: Path) -> Photograph:
    """Return a function that checks a page in every look, and compares its picture with the reference.

    Pictures of a wide screen show the whole page, the others its first part.
    """
    renewed = os.environ.get(VARIABLE)

    def take(visitor: Visitor, name: str, *, document: bool = True, uniform: str = "") -> None:
        differences = []
        for look in visitor.looks():
            assert visitor.audit() == [], look
            assert visitor.damage() == [], look
            width = look.partition("-")[0]
            picture = visitor.page.screenshot(full_page=width == "wide", animations="disabled")
            # The whole page is as wide as the window: nothing sticks out.
            assert int.from_bytes(picture[16:20]) == SIZES[width]["width"], look
            file = f"{name}-{look}.png"
            if renewed and document and width != "medium":
                references.save_document(picture, Path(renewed) / file)
            if uniform:
                picture = _uniform(visitor.page, uniform, full_page=width == "wide")
            (tmp_path / file).write_bytes(picture)
            if renewed:
                references.save(picture, references.FOLDER / file)
            differences.append(references.compare(picture, references.FOLDER / file))
        assert not any(differences), (
            f"{list(filter(None, differences))}: look at the pictures in {tmp_path}; `make screenshots` renews them"
        )

    return take


def _uniform(page: Page, selector: str, *, full_page: bool) -> bytes:
    """Take a picture with the same text in all these elements, and restore them."""
    before = page.locator(selector).evaluate_all("cells => cells.map(cell => cell.innerHTML)")
    page.locator(selector).evaluate_all(UNIFORM)
    picture = page.screenshot(full_page=full_page, animations="disabled")
    restore = "(cells, before) => cells.forEach((cell, number) => { cell.innerHTML = before[number] })"
    page.locator(selector).evaluate_all(restore, before)
    return picture


def open_page(visitor: Visitor, address: str) -> Page:
    """Open a page whose clock stands still: it updates itself when the test moves the clock."""
    visitor.page.clock.install(time=pictured_locks.NOW - 1)
    visitor.page.clock.pause_at(pictured_locks.NOW)
    visitor.page.goto(address)
    expect(visitor.page.locator("#zklock-refresh")).to_contain_text("This page updates itself.")
    return visitor.page


def update(page: Page) -> None:
    """Move the clock to the next update, and wait for it: only then does the page plan another one."""
    page.evaluate("document.addEventListener('zklock:read', () => { window.hasRead = true }, { once: true })")
    page.clock.run_for(INTERVAL)
    page.wait_for_function("() => window.hasRead")
    page.evaluate("window.hasRead = false")


def test_list(visit: Visit, shop: Site, shop_server: ZooKeeperServer, photograph: Photograph) -> None:
    """The list has no fault on any screen, in light or in dark; it shows how a queue has grown and shrunk."""
    visitor = visit(at=shop)
    page = open_page(visitor, LIST)
    row = page.get_by_role("row").filter(has_text="invoice:42")
    waiters: list[str] = []
    with pictured_locks.connect(shop_server) as client:
        for size in WAITERS:
            while len(waiters) > size:
                client.delete(waiters.pop())
            while len(waiters) < size:
                work = Work(kind="task", name="billing.tasks.bill", id=str(len(waiters)))
                waiter = Contender(key="invoice:42", ago=0, host="worker1", pid=68, work=work)
                waiters.append(pictured_locks.join(client, waiter))
            update(page)
            expect(row.locator(".zklock-col-waiters")).to_have_text(f"{3 + size} waiting")
    chart = page.get_by_role("img", name="invoice: 3 waiting, 1 holding, at most 9 waiting since")
    expect(chart).to_be_visible()
    # With the chart above them.
    assert rows_on_a_screen(page) >= 8
    photograph(visitor, "list")


def test_lock(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """Nor has the page of a lock with its queue."""
    visitor = visit(at=shop)
    page = open_page(visitor, page_of("invoice:42"))
    expect(page.locator(".zklock-queue tbody tr")).to_have_count(4)
    update(page)
    expect(page.locator("#zklock-contention")).to_be_visible()
    photograph(visitor, "lock")


def test_break(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """Nor has the question before a lock is broken."""
    visitor = visit(at=shop)
    visitor.page.goto(page_of("invoice:42"))
    visitor.page.get_by_role("button", name="Break the lock").click()
    visitor.page.get_by_label("Reason").fill("The bank does not answer")
    visitor.page.get_by_label("Reason").blur()
    photograph(visitor, "break")


def test_history(visit: Visit, shop: Site, photograph: Photograph) -> None:
    """Nor has the history of a lock, with what has become of each holder."""
    visitor = visit(at=shop)
    visitor.page.goto(page_of(pictured_locks.ASKED).replace("/change/", "/history/"))
    outcomes = visitor.page.locator(".zklock-table [data-label='Since then']")
    expect(outcomes).to_have_text(["still held", "no longer held", "broken"])
    photograph(visitor, "history", document=False)


def test_ensembles(visit: Visit, three_servers: Site, photograph: Photograph) -> None:
    """Nor has the page of an ensemble of three servers."""
    visitor = visit(at=three_servers)
    page = open_page(visitor, f"{LIST}ensembles/")
    expect(page.get_by_role("row").filter(has_text="leader")).to_be_visible()
    photograph(visitor, "ensembles", uniform=".zklock-cards td, .zklock-cards tbody th")


def test_empty(visit: Visit, own_site: Site, photograph: Photograph) -> None:
    """Nor has the list without locks."""
    visitor = visit(at=own_site)
    page = open_page(visitor, LIST)
    expect(page.locator(".zklock-empty")).to_be_visible()
    photograph(visitor, "empty", document=False)


def test_hostile(visit: Visit, own_site: Site, own_client: KazooClient, photograph: Photograph) -> None:
    """Nor has the list of hostile names."""
    work = Work(kind="task", name=ENDLESS, id=ENDLESS)
    for key in KEYS:
        for ago in (60.0, 5.0):
            pictured_locks.join(own_client, Contender(key=key, ago=ago, host=ENDLESS, pid=17, work=work))
    visitor = visit(at=own_site)
    page = open_page(visitor, LIST)
    expect(page.locator("#zklock-list tbody tr")).to_have_count(len(KEYS))
    photograph(visitor, "hostile", document=False)


def test_outage(
    visit: Visit, own_site: Site, own_server: ZooKeeperServer, own_client: KazooClient, photograph: Photograph
) -> None:
    """Nor has the last known state of the list after ZooKeeper has gone."""
    for contender in pictured_locks.SCENE[:4]:
        pictured_locks.join(own_client, contender)
    visitor = visit(at=own_site)
    page = open_page(visitor, LIST)
    expect(page.locator("#zklock-list tbody tr")).to_have_count(2)
    own_server.stop()
    page.clock.run_for(INTERVAL)
    expect(page.locator(".zklock-as-of")).to_contain_text("Last known state, read at 03:07:12 UTC")
    photograph(visitor, "outage", document=False, uniform=".zklock-problems li")


def test_german(visit: Visit, open_site: OpenSite, shop_server: ZooKeeperServer) -> None:
    """The longer words of German fit too."""
    with open_site({"default": {"HOSTS": shop_server.hosts}}, now=pictured_locks.NOW, language="de") as site:
        visitor = visit(at=site)
        for address, heading in ((LIST, "Benutzte Locks"), (page_of("invoice:42"), "invoice:42")):
            visitor.page.goto(address)
            expect(visitor.page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            for look in visitor.looks():
                assert visitor.damage() == [], look
        # Before the site ends: a live page asks it again and again.
        visitor.close()


def test_documents() -> None:
    """The documents show every screenshot in the folder, and no other; each is as its reference."""
    page = (DOCS / "howto" / "look-at-locks.md").read_text(encoding="utf-8")
    shown = re.findall(r"_static/screenshots/([\w-]+\.png)", page)
    assert sorted(shown) == sorted(file.name for file in SCREENSHOTS.iterdir())
    for name in shown:
        # The reference of the ensembles has other texts.
        if not name.startswith("ensembles"):
            assert references.compare((SCREENSHOTS / name).read_bytes(), references.FOLDER / name) == ""
        assert (SCREENSHOTS / name).stat().st_size < MAX_BYTES
