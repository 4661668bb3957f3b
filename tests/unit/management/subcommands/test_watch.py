"""`zklock watch`: as a log and on a terminal, in this process and in a child process."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from kazoo.client import KazooClient

from django_zklock.management.subcommands import _common, _output, _watch
from django_zklock.management.subcommands import watch as subcommand
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.node_data import Work
from tests.toolbox.django.command import BILL, GUID, NASTY, Hold, Join, Screen, failure, run
from tests.toolbox.network.port import free_port
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.unit.management.command_process import Process, Reader

if TYPE_CHECKING:
    from pytest_django import Settings

HEIGHT, WIDTH = 24, 100
OFTEN = ("--interval", "0.2")

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


class Watch:
    """A `zklock watch` that runs in a thread; ``reads`` has an element for each read."""

    def __init__(self, out: StringIO, reads: list[None], arguments: tuple[str, ...]) -> None:
        self.out = out
        self._reads = reads
        self._runner = Runner(lambda: run("watch", *OFTEN, *arguments, out=out))

    def next_read(self) -> None:
        """Wait until it has read the present state."""
        before = len(self._reads)
        # The read that is under way may have started earlier.
        wait_until(lambda: len(self._reads) >= before + 2 or not self._runner.running, 30)
        if not self._runner.running:
            self._runner.result()

    def events(self) -> list[list[str]]:
        """Return event, key and contender of each line that was written."""
        lines = [line.split("\t") for line in self.out.getvalue().splitlines()]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line[0]) for line in lines)
        return [line[1:] for line in lines]

    def end(self) -> None:
        """Press Ctrl-C; the exit code must be 0."""
        if self._runner.running:
            self._runner.throw(KeyboardInterrupt)
        self._runner.result(30)


Start = Callable[..., Watch]


@pytest.fixture
def watch(zklock: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a watch and waits for its first read; the watch ends with the test."""
    started: list[Watch] = []

    def start(*arguments: str, out: StringIO | None = None) -> Watch:
        reads: list[None] = []
        for view in (_watch.EventLog, _watch.LiveView):
            for name in ("show", "show_error"):
                monkeypatch.setattr(view, name, counted(getattr(view, name), reads))
        started.append(Watch(out or StringIO(), reads, arguments))
        wait_until(lambda: reads, 30)
        return started[-1]

    yield start
    for watch in started:
        watch.end()


def counted(method: Callable[..., None], calls: list[None]) -> Callable[..., None]:
    """Return ``method`` with a list of its calls."""

    def call(*arguments: object) -> None:
        method(*arguments)
        calls.append(None)

    return call


# As a log.


def test_log__each_change(watch: Start, hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """Each change is one line with its event, its key and its contender."""
    log = watch()
    held = hold("k", BILL)
    log.next_read()
    waiting = [join(held) for _ in range(2)]
    log.next_read()
    run("revoke", "k", "--reason", "deploy")
    log.next_read()
    held.release(wait=True)
    log.next_read()
    kazoo_client.delete(waiting[1])
    log.next_read()
    events = log.events()
    assert [event[:2] for event in events] == [
        ["taken", "k"],
        ["joined", "k"],
        ["joined", "k"],
        ["revoked", "k"],
        ["released", "k"],
        ["handed over", "k"],
        ["left", "k"],
    ]
    assert events[0][2].startswith("task billing.bill [77] (pid ")
    assert events[3][2].endswith(": deploy")
    assert events[5][2].startswith("unknown client, session 0x")


def test_log__first_read_is_no_change(watch: Start, hold: Hold) -> None:
    """Locks that exist at the first read are no changes."""
    hold("before")
    log = watch()
    hold("after")
    log.next_read()
    assert [event[:2] for event in log.events()] == [["taken", "after"]]


def test_log__one_lock(watch: Start, hold: Hold) -> None:
    """With a key the log has only this lock."""
    log = watch("a/b")
    hold("other")
    hold("a/b").release(wait=True)
    hold("a/b")
    log.next_read()
    assert ["taken", "a/b"] in [event[:2] for event in log.events()]
    assert {event[1] for event in log.events()} == {"a/b"}


def test_log__filters(watch: Start, hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """It logs locks that match before or after a change; one that stops matching is not logged as released."""
    log = watch("--match", "invoice:*", "--state", "contended")
    hold("other")
    held = hold("invoice:1")
    hold("invoice:2")
    log.next_read()
    assert log.events() == []
    path = join(held)
    log.next_read()
    kazoo_client.delete(path)
    log.next_read()
    assert [event[:2] for event in log.events()] == [["joined", "invoice:1"], ["left", "invoice:1"]]


def test_log__hostile(watch: Start, hold: Hold, join: Join) -> None:
    """Data of other clients adds no line and no column."""
    log = watch()
    held = hold(NASTY + "\t", Work(kind=NASTY, name=NASTY, id=NASTY))
    join(held, b"\xff" * 900_000)
    log.next_read()
    assert {len(event) for event in log.events()} == {3}
    assert log.out.getvalue().replace("\n", "").replace("\t", "").isprintable()


@pytest.fixture
def own_server(zklock: str, settings: Settings) -> Iterator[ZooKeeperServer]:
    """Put the locks on a server that can be stopped and that counts only the requests of the test."""
    with ZooKeeperServer() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 60, "CONNECT_TIMEOUT": 0.5}}
        yield server


def test_log__away_and_back(watch: Start, own_server: ZooKeeperServer) -> None:
    """An outage is logged once, and once when it is over; the watch goes on."""
    log = watch()
    own_server.stop()
    log.next_read()
    log.next_read()
    own_server.start()
    wait_until(lambda: "\treachable\t" in log.out.getvalue(), 30)
    client = KazooClient(hosts=own_server.hosts)
    client.start(timeout=20)
    client.create(f"/django_zklock/k/_c_{GUID}-lock-", ephemeral=True, sequence=True, makepath=True)
    wait_until(lambda: "\ttaken\t" in log.out.getvalue(), 30)
    client.stop()
    client.close()
    assert [event[:2] for event in log.events()] == [["unreachable", "-"], ["reachable", "-"], ["taken", "k"]]
    assert "ZooKeeper at " in log.events()[0][2]


def test_json__each_change(watch: Start, hold: Hold) -> None:
    """With --format json each change is an object, also on a terminal, with the same entry as in `show`."""
    log = watch("--format", "json", out=Screen())
    held = hold("k\n", BILL)
    log.next_read()
    (shown,) = json.loads(run("show", "k\n", "--format", "json"))["places"]
    held.release(wait=True)
    log.next_read()
    taken, released = map(json.loads, log.out.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", taken.pop("time"))
    assert {**taken, "place": None} == {
        "event": "taken",
        "alias": "default",
        "key": "k\n",
        "path": held.lock.paths[0],
        "place": None,
        "note": None,
    }
    assert taken["place"].pop("age") <= shown.pop("age")
    assert taken["place"] == shown
    assert (released["event"], released["place"]["state"]) == ("released", "held")


def test_json__away_and_back(watch: Start, own_server: ZooKeeperServer) -> None:
    """An outage has a note and no lock."""
    log = watch("--format", "json")
    own_server.stop()
    log.next_read()
    own_server.start()
    wait_until(lambda: len(log.out.getvalue().splitlines()) == 2, 30)
    away, back = map(json.loads, log.out.getvalue().splitlines())
    assert (away["event"], away["key"], away["path"], away["place"]) == ("unreachable", None, None, None)
    assert "ZooKeeper at " in away["note"]
    assert back["event"] == "reachable"


def test_log__away_at_the_start(watch: Start, own_server: ZooKeeperServer) -> None:
    """ZooKeeper may be unreachable when the watch starts."""
    own_server.stop()
    log = watch()
    own_server.start()
    wait_until(lambda: len(log.events()) == 2, 30)
    assert [event[0] for event in log.events()] == ["unreachable", "reachable"]


def test_watch__one_read_for_each_interval(watch: Start, own_server: ZooKeeperServer) -> None:
    """Each read lists the root once, and there are no requests between two reads."""
    log = watch()
    began = time.monotonic()
    before = own_server.requests.count("getChildren")
    for _ in range(4):
        log.next_read()
    lists = own_server.requests.count("getChildren") - before
    assert lists <= (time.monotonic() - began) / subcommand.MIN_INTERVAL + 1


# On a terminal.


def frame(out: StringIO) -> list[str]:
    """Return the lines of the last frame."""
    text = out.getvalue().rpartition(_watch.CURSOR_HOME)[2].partition(_watch.CLEAR_BELOW)[0]
    assert out.getvalue().endswith(_watch.WRAP_ON)
    return text.replace(_output.CLEAR_TO_END_OF_LINE, "").splitlines()


def test_screen__list(watch: Start, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present list is redrawn in place, sorted and cut to the terminal."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "8")
    hold("k9")
    terminal = watch("--sort", "key", "--reverse", out=Screen())
    assert re.fullmatch(r"Locks, read at \d\d:\d\d:\d\d UTC, every 0\.2 s, Ctrl-C ends", frame(terminal.out)[0])
    assert [line.split()[0] for line in frame(terminal.out)[2:]] == ["KEY", "k9"]
    for number in range(8):
        hold(f"k{number}")
    terminal.next_read()
    rows = frame(terminal.out)
    assert len(rows) == 7
    assert [row.split()[0] for row in rows[2:6]] == ["KEY", "k9", "k7", "k6"]
    assert rows[6] == "… and 6 more"
    assert terminal.out.getvalue().count(_watch.CLEAR_SCREEN) == 1


def test_screen__very_many(
    watch: Start, hold: Hold, zklock: str, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many locks those are read that the terminal has room for."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setattr(subcommand, "MANY", 8)
    for number in range(7):
        hold(f"k{number}")
    kazoo_client.create(f"{zklock}/k7")
    terminal = watch(out=Screen())
    assert frame(terminal.out)[-1] == "… and 6 more"
    kazoo_client.create(f"{zklock}/k8")
    terminal.next_read()
    # One of the six that were read is shown, and three were not read.
    assert [row.split()[0] for row in frame(terminal.out)[2:-1]] == ["KEY", "k0"]
    assert frame(terminal.out)[-1] == "… and at most 8 more"


def test_screen__queue(watch: Start, hold: Hold) -> None:
    """With a key the present queue is redrawn."""
    terminal = watch("k", out=Screen())
    assert frame(terminal.out)[0].startswith("Lock k, read at ")
    assert frame(terminal.out)[2:] == ["Lock k is free: it has no holder and no waiter."]
    hold("k", BILL)
    terminal.next_read()
    assert "task billing.bill [77]" in frame(terminal.out)[3]


def test_screen__away(watch: Start, own_server: ZooKeeperServer) -> None:
    """During an outage the last result stays, with a header that says so."""
    terminal = watch("k", out=Screen())
    own_server.stop()
    wait_until(lambda: frame(terminal.out)[0].startswith("Lock k, not read at "), 30)
    rows = frame(terminal.out)
    assert " ZooKeeper at " in rows[1]
    assert rows[-1].startswith("Lock k is free")
    own_server.start()
    wait_until(lambda: frame(terminal.out)[0].startswith("Lock k, read at "), 30)


def test_screen__servers_refuse(watch: Start, settings: Settings) -> None:
    """An outage is shown before ``CONNECT_TIMEOUT`` if the servers refuse."""
    limit = _common.SECOND_TRY + GRACE
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": limit + GRACE}}
    began = time.monotonic()
    terminal = watch(out=Screen())
    assert time.monotonic() - began < limit
    assert "Connection refused" in frame(terminal.out)[1]


# What is refused.


@pytest.mark.parametrize("interval", ["0.1", "0", "inf", "soon"])
def test_interval__refused(interval: str) -> None:
    """The interval must not be too short or infinite."""
    with pytest.raises(CommandError, match="--interval"):
        call_command("zklock", "watch", f"--interval={interval}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k", "--state", "held"], "filters have no meaning with KEY"),
        ([""], "must not be empty"),
        (["--using", "reports"], "no alias 'reports'"),
    ],
)
def test_arguments__refused(zklock: str, arguments: list[str], message: str) -> None:
    """Wrong arguments are an error at once."""
    error = failure("watch", *arguments)
    assert error.returncode == 2
    assert message in str(error)


def test_settings__refused(settings: Settings) -> None:
    """Wrong settings end it: they are no outage."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk1:no-port"}}
    assert failure("watch").returncode == 2


# As a process.


@pytest.mark.zookeeper
def test_process__terminal(hold: Hold, shared_hosts: str) -> None:
    """On a real terminal the list is redrawn in colour, and Ctrl-C ends it with exit code 0."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    process = Process(shared_hosts, theirs, "watch", *OFTEN, "--match", "watched-on-a-terminal")
    try:
        reader = Reader(ours)
        reader.until("Locks, read at ")
        hold("watched-on-a-terminal", BILL)
        reader.until("billing.bill")
        assert "\x1b[32;1mheld" in reader.text
        # The terminal is not the controlling terminal of the process, so the key alone would not reach it.
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == (0, "")
    finally:
        process.popen.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.zookeeper
def test_process__pipe(hold: Hold, shared_hosts: str) -> None:
    """In a pipe each line is flushed; after the reader has closed it, the next line ends the watch without error."""
    ours, theirs = os.pipe()
    process = Process(shared_hosts, theirs, "watch", *OFTEN, "--match", "watched-in-a-pipe")
    os.close(theirs)
    numbers = itertools.count()

    def take_until(condition: Callable[[], object]) -> None:
        wait_until(lambda: hold(f"watched-in-a-pipe:{next(numbers)}").token and condition(), 60)

    try:
        take_until(lambda: select.select([ours], [], [], 0.3)[0])
        Reader(ours).until("\ttaken\twatched-in-a-pipe:")
        os.close(ours)
        take_until(lambda: process.has_ended(within=0.3))
        assert process.end() == (0, "")
    finally:
        process.popen.kill()
