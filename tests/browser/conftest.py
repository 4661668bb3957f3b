"""A site, a worker whose tasks hold locks, and users at a browser."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.node_data import Identity, Work
from tests.browser import pictured_locks
from tests.browser.site_process import Site
from tests.browser.visitor import TIMEOUT, WIDE, Visitor
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.browser import chromium
from tests.toolbox.celery.workshop import Workshop
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

HERE = Path(__file__).resolve().parent

Visit = Callable[..., Visitor]
AddContender = Callable[..., str]
OpenSite = Callable[..., Site]

# The keys are site, user name, and whether scripts run.
Contexts = dict[tuple[str, str | None, bool], BrowserContext]
DATA = Identity(host="web1", pid=17, work=Work(kind="command", name="report")).encode()

expect.set_options(timeout=TIMEOUT)
TIMES = {"SESSION_TIMEOUT": scaled(6), "CONNECT_TIMEOUT": scaled(5)}


# Before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and run one browser at a time in parallel runs."""
    for item in items:
        if HERE in item.path.parents:
            for marker in (pytest.mark.browser, pytest.mark.celery, pytest.mark.zookeeper):
                item.add_marker(marker)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="module")
def shop_server() -> Iterator[ZooKeeperServer]:
    """Start a server with the locks of the screenshots."""
    with ZooKeeperServer(zxid=pictured_locks.ZXID) as server, pictured_locks.played(server):
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[Redis]:
    """Start the broker of the worker."""
    with Redis() as redis:
        yield redis


@pytest.fixture(scope="session")
def workshop(zookeeper: ZooKeeper, broker: Redis, zookeeper_observer: Observer) -> Iterator[Workshop]:
    """Start a worker whose tasks end on request."""
    with contextlib.closing(
        Workshop(zookeeper, broker, broker, zookeeper_observer, session_timeout=4.0, gate=True)
    ) as workshop:
        workshop.start(concurrency=2)
        yield workshop


@pytest.fixture(scope="session")
def open_site(tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Return a function that creates a site, not started yet, with the given ``ZKLOCK``."""
    database = tmp_path_factory.mktemp("site") / "site.sqlite3"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.browser.site_settings",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TESTPROJECT_DATABASE": str(database),
    }
    subprocess.run([sys.executable, "-m", "tests.browser.make_database"], env=environment, check=True)
    return functools.partial(Site, database)


@pytest.fixture(scope="session")
def site(open_site: OpenSite, workshop: Workshop) -> Iterator[Site]:
    """Start a site that shows the locks of the worker."""
    options = {"HOSTS": workshop.zookeeper.hosts, "ROOT": workshop.root, **TIMES}
    with open_site({"default": options}) as site:
        yield site


@pytest.fixture
def key() -> str:
    """Return a key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def add_contender(kazoo_client: KazooClient, workshop: Workshop) -> AddContender:
    """Return a function that creates a node with any data in the queue of a key until the end of the test."""

    def create(key: str, data: bytes = DATA, *, name: str = "") -> str:
        path = f"{workshop.pool.path(key)}/{name or f'_c_{uuid.uuid4()}-lock-'}"
        node: str = kazoo_client.create(path, data, ephemeral=True, sequence=True, makepath=True)
        return node

    return create


# Not session-scoped: its event loop runs in this thread, and other tests start loops there.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as playwright, contextlib.closing(chromium.launch(playwright)) as browser:
        yield browser


@pytest.fixture(scope="package")
def contexts(browser: Browser) -> Contexts:
    """Return the browser contexts of users that have logged in, with their cookies and cached files."""
    return {}


@pytest.fixture
def visit(
    browser: Browser,
    contexts: Contexts,
    request: pytest.FixtureRequest,
) -> Iterator[Visit]:
    """Return a function that opens a page of a site, with or without a login.

    The test fails if one of these pages has an error.
    """
    visitors: list[Visitor] = []

    def enter(name: str | None = "root", *, at: Site | None = None, scripts: bool = True) -> Visitor:
        # Not every test needs the site with the worker.
        url = (at or request.getfixturevalue("site")).url
        member = url, name, scripts
        context = contexts.get(member) or browser.new_context(base_url=url, viewport=WIDE, java_script_enabled=scripts)
        visitor = Visitor(context.new_page(), url)
        visitors.append(visitor)
        if name is not None and member not in contexts:
            visitor.log_in(name)
            contexts[member] = context
        return visitor

    yield enter
    for visitor in visitors:
        visitor.close()
