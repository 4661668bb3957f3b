"""`zklock watch`: as a log, and on a terminal; in this process, and as one of its own."""

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

from django_zklock.management import journal, screen
from django_zklock.management.actions import watching
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.identity import Work
from tests.command import GUID, Hold, Screen, failure, run
from tests.process import Process, Reader
from tests.zk.onlooker import wait_until
from tests.zk.runner import Runner

if TYPE_CHECKING:
    from pytest_django import Settings

NASTY = "\x1b[2J\u202egpj.exe\r\nfake row"
BILL = Work(kind="task", name="billing.bill", id="77")
HEIGHT, WIDTH = 24, 100
OFTEN = ("--interval", "0.2")

pytest_plugins = ["tests.operating"]

pytestmark = pytest.mark.zookeeper


class Watch:
    """One that runs in a thread; ``looks`` counts how often it has read."""

    def __init__(self, out: StringIO, looks: list[None], arguments: tuple[str, ...]) -> None:
        self.out = out
        self._looks = looks
        self._runner = Runner(lambda: run("watch", *OFTEN, *arguments, out=out))

    def look(self) -> None:
        """Wait until it has read what is there now."""
        seen = len(self._looks)
        # The one that is under way may have begun before.
        wait_until(lambda: len(self._looks) >= seen + 2 or not self._runner.running, 30)
        if not self._runner.running:
            self._runner.result()

    def events(self) -> list[list[str]]:
        """Give event, key and the beginning of the rest, of what was written so far."""
        lines = [line.split("\t") for line in self.out.getvalue().splitlines()]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line[0]) for line in lines)
        return [line[1:] for line in lines]

    def end(self) -> None:
        """Press Ctrl-C; the status must be 0."""
        if self._runner.running:
            self._runner.throw(KeyboardInterrupt)
        self._runner.result(30)


Start = Callable[..., Watch]


@pytest.fixture
def watch(zklock: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give a function that starts one, and waits for its first reading; it is ended with the test."""
    started: list[Watch] = []

    def start(*arguments: str, out: StringIO | None = None) -> Watch:
        looks: list[None] = []
        for view in (journal.Journal, screen.Screen):
            for name in ("show", "miss"):
                monkeypatch.setattr(view, name, counted(getattr(view, name), looks))
        started.append(Watch(out or StringIO(), looks, arguments))
        wait_until(lambda: looks, 30)
        return started[-1]

    yield start
    for watch in started:
        watch.end()


def counted(method: Callable[..., None], calls: list[None]) -> Callable[..., None]:
    """Give ``method``, with its calls counted."""

    def call(*arguments: object) -> None:
        method(*arguments)
        calls.append(None)

    return call


# As a log.


def test_log__each_change(watch: Start, hold: Hold, outsider: KazooClient) -> None:
    """Taken, joined, revoked, released, handed over, left: each is a line, with key and who."""
    log = watch()
    held = hold("k", BILL)
    line = held.lock.paths[0]
    log.look()
    waiting = [outsider.create(f"{line}/_c_{GUID}-lock-", ephemeral=True, sequence=True) for _ in range(2)]
    log.look()
    run("revoke", "k", "--reason", "deploy")
    log.look()
    held.release(wait=True)
    log.look()
    outsider.delete(waiting[1])
    log.look()
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


def test_log__begins_with_nothing(watch: Start, hold: Hold) -> None:
    """What was there before is no change."""
    hold("before")
    log = watch()
    hold("after")
    log.look()
    assert [event[:2] for event in log.events()] == [["taken", "after"]]


def test_log__one_lock(watch: Start, hold: Hold) -> None:
    """With a key the others do not matter."""
    log = watch("a/b")
    hold("other")
    hold("a/b").release(wait=True)
    hold("a/b")
    log.look()
    assert ["taken", "a/b"] in [event[:2] for event in log.events()]
    assert {event[1] for event in log.events()} == {"a/b"}


def test_log__chosen(watch: Start, hold: Hold, outsider: KazooClient) -> None:
    """Locks that are chosen before a change or after it, and no lock is said to be free for being chosen no more."""
    log = watch("--match", "invoice:*", "--state", "contended")
    hold("other")
    held = hold("invoice:1")
    hold("invoice:2")
    log.look()
    assert log.events() == []
    path = outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    log.look()
    outsider.delete(path)
    log.look()
    assert [event[:2] for event in log.events()] == [["joined", "invoice:1"], ["left", "invoice:1"]]


def test_log__hostile(watch: Start, hold: Hold, outsider: KazooClient) -> None:
    """What others wrote makes no line and no column of its own."""
    log = watch()
    held = hold(NASTY + "\t", Work(kind=NASTY, name=NASTY, id=NASTY))
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", b"\xff" * 900_000, ephemeral=True, sequence=True)
    log.look()
    assert {len(event) for event in log.events()} == {3}
    assert log.out.getvalue().replace("\n", "").replace("\t", "").isprintable()


def test_log__broken(watch: Start, hold: Hold) -> None:
    """A lock that is broken is released, whatever its holder does."""
    hold("k", BILL)
    log = watch()
    run("break", "k", "--yes", "--reason", "why")
    log.look()
    assert [event[0] for event in log.events()] == ["released"]


@pytest.fixture
def own_server(zklock: str, settings: Settings) -> Iterator[ZooKeeperServer]:
    """Have the locks on a server that may be stopped, and whose requests are those of the test."""
    with ZooKeeperServer() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 60, "CONNECT_TIMEOUT": 0.5}}
        yield server


def test_log__away_and_back(watch: Start, own_server: ZooKeeperServer) -> None:
    """A ZooKeeper that is away is told once, and once when it is back; the watch goes on."""
    log = watch()
    own_server.stop()
    log.look()
    log.look()
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
    """Asked for JSON it writes an object for each change, also on a terminal, with the place as `show` has it."""
    log = watch("--format", "json", out=Screen())
    held = hold("k\n", BILL)
    log.look()
    (shown,) = json.loads(run("show", "k\n", "--format", "json"))["places"]
    held.release(wait=True)
    log.look()
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
    """Of a ZooKeeper that is away it says why, and names no lock."""
    log = watch("--format", "json")
    own_server.stop()
    log.look()
    own_server.start()
    wait_until(lambda: len(log.out.getvalue().splitlines()) == 2, 30)
    away, back = map(json.loads, log.out.getvalue().splitlines())
    assert (away["event"], away["key"], away["path"], away["place"]) == ("unreachable", None, None, None)
    assert "ZooKeeper at " in away["note"]
    assert back["event"] == "reachable"


def test_log__away_from_the_beginning(watch: Start, own_server: ZooKeeperServer) -> None:
    """It may be away when the watch begins."""
    own_server.stop()
    log = watch()
    own_server.start()
    wait_until(lambda: len(log.events()) == 2, 30)
    assert [event[0] for event in log.events()] == ["unreachable", "reachable"]


def test_watch__one_look_an_interval(watch: Start, own_server: ZooKeeperServer) -> None:
    """Each look lists the root once, and nothing is asked between two looks."""
    log = watch()
    began = time.monotonic()
    before = own_server.requests.count("getChildren")
    for _ in range(4):
        log.look()
    asked = own_server.requests.count("getChildren") - before
    assert asked <= (time.monotonic() - began) / watching.LEAST_INTERVAL + 1


# On a terminal.


def picture(out: StringIO) -> list[str]:
    """Give the lines of the last picture."""
    text = out.getvalue().rpartition(screen.HOME)[2].partition(screen.CLEAR_BELOW)[0]
    assert out.getvalue().endswith(screen.WRAP_LINES)
    return text.replace(screen.CLEAR_TO_END_OF_LINE, "").splitlines()


def test_screen__list(watch: Start, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list as it is now, in the same place, sorted and cut to the terminal."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "8")
    hold("k9")
    terminal = watch("--sort", "key", "--reverse", out=Screen())
    assert re.fullmatch(r"Locks, read at \d\d:\d\d:\d\d UTC, every 0\.2 s, Ctrl-C ends", picture(terminal.out)[0])
    assert [line.split()[0] for line in picture(terminal.out)[2:]] == ["KEY", "k9"]
    for number in range(8):
        hold(f"k{number}")
    terminal.look()
    rows = picture(terminal.out)
    assert len(rows) == 7
    assert [row.split()[0] for row in rows[2:6]] == ["KEY", "k9", "k7", "k6"]
    assert rows[6] == "… and 6 more"
    assert terminal.out.getvalue().count(screen.CLEAR) == 1


def test_screen__line(watch: Start, hold: Hold) -> None:
    """With a key, its line as it is now."""
    terminal = watch("k", out=Screen())
    assert picture(terminal.out)[0].startswith("Lock k, read at ")
    assert picture(terminal.out)[2:] == ["Lock k is free: nobody holds it and nobody waits for it."]
    hold("k", BILL)
    terminal.look()
    assert "task billing.bill [77]" in picture(terminal.out)[3]


def test_screen__away(watch: Start, own_server: ZooKeeperServer) -> None:
    """What was read last stays, and it says that it is old."""
    terminal = watch("k", out=Screen())
    own_server.stop()
    wait_until(lambda: picture(terminal.out)[0].startswith("Lock k, not read at "), 30)
    rows = picture(terminal.out)
    assert rows[1].startswith("ZooKeeper at ")
    assert rows[-1].startswith("Lock k is free")
    own_server.start()
    wait_until(lambda: picture(terminal.out)[0].startswith("Lock k, read at "), 30)


# What cannot be.


@pytest.mark.parametrize("interval", ["0.1", "0", "inf", "soon"])
def test_interval__refused(interval: str) -> None:
    """Nobody may ask without a pause, or never."""
    with pytest.raises(CommandError, match="--interval"):
        call_command("zklock", "watch", f"--interval={interval}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k", "--state", "held"], "nothing to choose from"),
        ([""], "must not be empty"),
        (["--using", "reports"], "no alias 'reports'"),
    ],
)
def test_arguments__refused(zklock: str, arguments: list[str], message: str) -> None:
    """What cannot be watched is an error at once."""
    error = failure("watch", *arguments)
    assert error.returncode == 2
    assert message in str(error)


def test_settings__refused(settings: Settings) -> None:
    """Settings that no outage explains end it."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk1:no-port"}}
    assert failure("watch").returncode == 2


# As a process.


def test_process__terminal(hold: Hold, shop: str) -> None:
    """On a real terminal the list is drawn again and again, coloured, and Ctrl-C ends it with status 0."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    process = Process(shop, theirs, "watch", *OFTEN, "--match", "watched-on-a-terminal")
    try:
        reader = Reader(ours)
        reader.until("Locks, read at ")
        hold("watched-on-a-terminal", BILL)
        reader.until("billing.bill")
        assert "\x1b[32;1mheld" in reader.text
        # Not the terminal of that session, so the key alone would reach nobody.
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == (0, "")
    finally:
        process.popen.kill()
        os.close(ours)
        os.close(theirs)


def test_process__pipe(hold: Hold, shop: str) -> None:
    """In a pipe each line comes at once; when the reader is gone, the next one ends it quietly."""
    ours, theirs = os.pipe()
    process = Process(shop, theirs, "watch", *OFTEN, "--match", "watched-in-a-pipe")
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
