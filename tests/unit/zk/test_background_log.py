"""Log records of the connections' threads: written in the background, in order, none lost, no lock lost by them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from django_zklock.zk import background
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.lock import Lock
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server

NAME = "django_zklock.test"


class Blocking(logging.Handler):
    """Writes nothing until it is let go on, and keeps what it has written, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.written: list[str] = []
        self.threads: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.began.set()
        assert self.go_on.wait(60)
        self.threads.add(threading.get_ident())
        self.written.append(record.getMessage())


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    """Let the log records of ``django_zklock`` wait for a handler that blocks."""
    assert background.flush_log(10)
    handler = Blocking()
    logger = logging.getLogger("django_zklock")
    logger.addHandler(handler)
    yield handler
    handler.go_on.set()
    assert background.flush_log(10)
    logger.removeHandler(handler)


@pytest.mark.shows("faults#a-log-handler-blocks")
def test_handler__blocks(blocking: Blocking, make_pool: MakePool, server: Server) -> None:
    """A handler that blocks does not keep a connection from coming back, and no lock is lost."""
    host, port = server.hosts.rsplit(":", 1)
    with Proxy((host, int(port))) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=2.0)
        with Lock("k", pool).acquire(timeout=120) as held:
            (session,) = pool.sessions()
            proxy.cut()
            assert blocking.began.wait(10)
            wait_until(lambda: session.epoch and session.connected)
            assert not held.lost
            # Our own lines and kazoo's are both behind the one that blocks.
            assert blocking.written == []
            blocking.go_on.set()
            assert background.flush_log(10)
    assert any("event=suspended" in line for line in blocking.written)
    assert any("Connection dropped" in line for line in blocking.written)
    assert threading.get_ident() not in blocking.threads


def test_order(blocking: Blocking) -> None:
    """Records are written in the order in which they were made, by whichever logger, with what they say then."""
    loggers = [DeferredLogger(f"{NAME}.{number}") for number in range(3)]
    for number in range(300):
        loggers[number % 3].warning("number %d", number)
    assert blocking.written == []
    blocking.go_on.set()
    assert background.flush_log(10)
    assert blocking.written == [f"number {number}" for number in range(300)]


def test_record__says_where_it_was_made(caplog: pytest.LogCaptureFixture) -> None:
    """A record names the thread and the line that made it."""
    DeferredLogger(NAME).warning("here")
    (record,) = caplog.records
    assert record.thread == threading.get_ident()
    assert record.funcName == "test_record__says_where_it_was_made"


def test_level(caplog: pytest.LogCaptureFixture) -> None:
    """The level of the logger of the same name counts when the record is made."""
    logger = DeferredLogger(NAME)
    caplog.set_level(logging.ERROR, NAME)
    logger.warning("unheard")
    caplog.set_level(logging.DEBUG, NAME)
    logger.debug("heard")
    assert (logger.isEnabledFor(logging.DEBUG), logger.getEffectiveLevel()) == (True, logging.DEBUG)
    assert caplog.messages == ["heard"]


@pytest.mark.shows("faults#a-log-handler-blocks")
def test_bound(blocking: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records that wait for a handler, those above a bound are dropped, and counted in a line."""
    monkeypatch.setattr(background, "MAX_RECORDS", 10)
    logger = DeferredLogger(NAME)
    logger.warning("the one that is being written")
    assert blocking.began.wait(10)
    for number in range(15):
        logger.warning("number %d", number)
    blocking.go_on.set()
    assert background.flush_log(10)
    logger.warning("last")
    assert background.flush_log(10)
    assert blocking.written[1:11] == [f"number {number}" for number in range(10)]
    assert blocking.written[11:] == ["event=records_dropped count=5 reason=handlers_too_slow", "last"]


def test_handler__raises(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """What raises in a filter is written to standard error, and the next record is written."""

    def refuse(record: logging.LogRecord) -> bool:
        if record.getMessage() == "wrong":
            raise ValueError("refused by a filter")
        return True

    target = logging.getLogger(NAME)
    target.addFilter(refuse)
    try:
        logger = DeferredLogger(NAME)
        logger.warning("wrong")
        logger.warning("right")
        assert caplog.messages == ["right"]
    finally:
        target.removeFilter(refuse)
    assert "refused by a filter" in capfd.readouterr().err


EXIT = f"""
import logging, sys, time
from django_zklock.zk.background import DeferredLogger

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.01)
        print(record.getMessage(), flush=True)

logging.getLogger("{NAME}").addHandler(Slow())
for number in range(20):
    DeferredLogger("{NAME}").warning("number %d", number)
"""


@pytest.mark.shows("faults#a-log-handler-blocks")
def test_exit() -> None:
    """What was logged before a normal end of the process is written."""
    said = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=scaled(60), check=True
    ).stdout
    assert said.splitlines() == [f"number {number}" for number in range(20)]


FORK = f"""
import logging, os, sys, threading
from django_zklock.zk import background
from django_zklock.zk.background import DeferredLogger
from tests.toolbox.processes.raw_fork import raw_fork

began, go_on = threading.Event(), threading.Event()

class Blocking(logging.Handler):
    def emit(self, record):
        began.set()
        go_on.wait()
        print(record.getMessage(), flush=True)

target = logging.getLogger("{NAME}")
target.addHandler(Blocking())
logger = DeferredLogger("{NAME}")
logger.warning("the parent's")
began.wait()
child = os.fork() if sys.argv[1] == "fork" else raw_fork()
if child == 0:
    # The inherited handler's lock is held by a thread that is not here.
    target.handlers[:] = [logging.StreamHandler(sys.stdout)]
    logger.warning("the child's")
    os._exit(0 if background.flush_log(10) else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("the child has ended", status, flush=True)
go_on.set()
"""


@pytest.mark.shows("faults#it-forks-while-another-thread-makes-a-connection")
@pytest.mark.parametrize("how", ["fork", "raw_fork"])
def test_fork(how: str) -> None:
    """What waits at a fork is written by the parent alone, and the child writes its own.

    In a process of its own: a raw fork copies CPython's own locks, also those that another thread is about to release.
    """
    script = [sys.executable, "-W", "ignore:.*fork:DeprecationWarning", "-c", FORK, how]
    said = subprocess.run(script, capture_output=True, text=True, timeout=scaled(60), check=True).stdout
    assert said.splitlines() == ["the child's", "the child has ended 0", "the parent's"]
