"""Fixtures for the whole suite."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import itertools
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.logging import LogCaptureHandler
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import background
from django_zklock.zk.held import held_stack
from django_zklock.zk.pool import SESSION_BUDGET, Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox import package_limits, timing
from tests.toolbox.curator.clients import Curator
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.processes.process import Process
from tests.toolbox.processes.stacks import STACKS, Stacks
from tests.toolbox.timing import MAX_SESSION, SLOWNESS, scaled
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from pytest_django import Settings

_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _watched(item):
        return (yield)


# Started by the first test that asks, and serving all of them.
DEAR = frozenset({"curator", "database", "reference", "trio"})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the stacks, which are a part of the message, out of the summary: in CI pytest shortens nothing there."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.partition("\n")[0]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile: what is collected stays, and grows to millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


# Before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (timely := item.get_closest_marker("timely")) and not timely.args:
            raise pytest.UsageError(f"{item.nodeid} does not say why it is timely")
    if not hasattr(config, "workerinput"):
        return
    # The long ones first, or the other processes wait for the last of them in the end.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        # And what takes long to start in one process.
        for name in DEAR.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(name))
        # And what would starve beside others of its kind.
        if item.get_closest_marker("timely") and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("timely"))


WITHOUT_SERVICES = "--without-services"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        WITHOUT_SERVICES,
        action="store_true",
        help="use the server for tests instead of ZooKeeper; a test that starts a program other than Python fails",
    )


def _refuse_services(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail the test that starts a program which is not in the environment of this Python."""
    if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).parent != Path(sys.executable).parent:
        pytest.fail(
            f"{os.fsdecode(arguments[0])} is not there in `make check`: the marker `zookeeper` leaves a test out"
        )


# pytest-xdist has started a program of its own by then.
def pytest_collection_finish(session: pytest.Session) -> None:
    # To look through all that pytest knows of thousands of tests stops every thread for a third of a second.
    gc.collect()
    gc.freeze()
    if session.config.getoption(WITHOUT_SERVICES):
        sys.addaudithook(_refuse_services)


def pytest_sessionstart() -> None:
    package_limits.scale_limits(package_limits.LIMITS)
    if importlib.util.find_spec("celery") is not None:
        package_limits.scale_limits(package_limits.LIMITS_WITH_CELERY)


def pytest_report_header() -> str:
    return f"machine: everything takes {SLOWNESS:.2f} times as long as on two quiet cores, and so may all tests"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Say how many processes `--numprocesses auto` is."""
    return timing.processes()


def pytest_configure(config: pytest.Config) -> None:
    Process.slowness = SLOWNESS
    config.stash[STACKS] = Stacks()
    config.stash[STACKS].install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has started us in the background, and all that we start would ignore Ctrl-C as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config), "failures")


class _Failures:
    """Say at once what has failed: a run that is interrupted has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line(f"\n{report.nodeid}, {report.when}:", red=True)
            reporter.write_line(report.longreprtext)


@contextlib.contextmanager
def _watched(item: pytest.Item) -> Iterator[None]:
    """End the process, with the stacks of its threads printed, if a part of a test outlives its limit by a minute.

    That is for what the exception of pytest-timeout does not get out of, and for teardowns: both that limit and
    pytest's own are off from the moment a test has failed.
    """
    limit = scaled(60) + _limit(item)
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        with item.config.stash[STACKS].of_failure():
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit(item: pytest.Item) -> float:
    """Return how many seconds a test may take, fixtures included."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))


# When all limits are there. The first marker counts.
@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_scale_limits(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(scaled(_limit(item))), append=False)


class _WrittenLogs(pytest.LogCaptureFixture):  # type: ignore[misc]  # final, but there is no other way in
    """What is captured when all that was logged until now is written, some of it in the background."""

    @property
    def handler(self) -> LogCaptureHandler:
        assert background.flush_log(10)
        return super().handler


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """Capture logs, those of the connections' threads too."""
    captured = _WrittenLogs(request.node, _ispytest=True)
    yield captured
    captured._finalize()


@pytest.fixture(autouse=True)
def _written_logs() -> Iterator[None]:
    """Write all log records of a test before the next test begins."""
    yield
    background.flush_log(10)


@pytest.fixture(autouse=True)
def _empty_hands() -> Iterator[None]:
    """Release what a test has left held in this thread."""
    yield
    for held in reversed(held_stack()[:]):
        held.release()
    # What is left are the stand-ins of unit tests.
    held_stack().clear()


# Both kinds of server: a short session is given to a client that asks for one, and empty parents go at once and
# not after a minute, so that every test meets that.
MIN_SESSION_TIMEOUT = 0.8
REAP_INTERVAL = 0.5


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """Return one real server for all tests that neither stop nor pause it."""
    with ZooKeeper(
        tick_time=0.2,
        min_session_timeout=MIN_SESSION_TIMEOUT,
        max_session_timeout=MAX_SESSION,
        properties={"znode.container.checkIntervalMs": str(round(REAP_INTERVAL * 1000))},
    ) as server:
        yield server


@pytest.fixture(scope="session")
def testserver() -> Iterator[ZooKeeperServer]:
    """Return one server of ``django_zklock.testing`` for all tests that do it no harm."""
    with ZooKeeperServer(
        min_session_timeout=MIN_SESSION_TIMEOUT, max_session_timeout=MAX_SESSION, reap_interval=REAP_INTERVAL
    ) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_observer(zookeeper: ZooKeeper) -> Iterator[Observer]:
    with contextlib.closing(Observer(zookeeper.hosts)) as observer:
        yield observer


@pytest.fixture(scope="session")
def testserver_observer(testserver: ZooKeeperServer) -> Iterator[Observer]:
    with contextlib.closing(Observer(testserver.hosts)) as observer:
        yield observer


@pytest.fixture(scope="session")
def curator() -> Iterator[Curator]:
    """Return the program in which clients of Apache Curator live."""
    with Curator() as program:
        yield program


@pytest.fixture
def kind_of_server(pytestconfig: pytest.Config) -> str:
    """Say which server a test's locks are on: the real one, unless the folder, module or command says otherwise."""
    return "testserver" if pytestconfig.getoption(WITHOUT_SERVICES) else "zookeeper"


@pytest.fixture
def server(kind_of_server: str, request: pytest.FixtureRequest) -> Server:
    """Return the server that a test's locks are on."""
    server: Server = request.getfixturevalue(kind_of_server)
    return server


@pytest.fixture
def observer(kind_of_server: str, request: pytest.FixtureRequest) -> Observer:
    """Return a look at the tree of that server."""
    observer: Observer = request.getfixturevalue(f"{kind_of_server}_observer")
    return observer


@pytest.fixture
def root() -> str:
    """Return a part of the tree that no other test uses."""
    return f"/test-{next(_numbers)}"


@pytest.fixture
def make_pool(server: Server, root: str) -> Iterator[MakePool]:
    """Return a function that makes pools, of that server unless told otherwise, closed at the end.

    Their times are those of a quiet machine, see :mod:`tests.toolbox.timing`.
    """
    pools: list[Pool] = []

    def make(
        hosts: str = server.hosts,
        *,
        session_timeout: float = 6.0,
        connect_timeout: float = 5.0,
        strict: bool = False,
        size: int = 1,
        budget: int = SESSION_BUDGET,
        root: str = root,
        **connection: Any,
    ) -> Pool:
        pool = Pool(
            f"pool{len(pools)}",
            PoolOptions(
                connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(session_timeout), **connection),
                root=root,
                connect_timeout=scaled(connect_timeout),
                strict=strict,
                size=size,
                budget=budget,
            ),
        )
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close(1.0)


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    """Return a pool of that server."""
    return make_pool()


@pytest.fixture
def zklock(settings: Settings, server: Server, root: str) -> str:
    """Point the alias "default" to that server, with a root of its own; return the root."""
    times = {"SESSION_TIMEOUT": scaled(6), "CONNECT_TIMEOUT": scaled(5)}
    settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "ROOT": root, **times}}
    return root


@pytest.fixture
def kazoo_client(server: Server) -> Iterator[KazooClient]:
    """Return a client that is none of ours, to stand in the queue, to write nonsense and to break locks."""
    client = KazooClient(hosts=server.hosts, timeout=scaled(10))
    client.start(timeout=scaled(20))
    yield client
    client.stop()
    client.close()


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Return a real server that the test may stop, pause and restart."""
    with ZooKeeper(tick_time=0.2, min_session_timeout=0.8, max_session_timeout=MAX_SESSION) as server:
        yield server
        server.resume()


@pytest.fixture
def own_observer(own_zookeeper: ZooKeeper) -> Iterator[Observer]:
    """Return a look at the tree of the test's own server."""
    with contextlib.closing(Observer(own_zookeeper.hosts)) as observer:
        yield observer
        own_zookeeper.resume()
