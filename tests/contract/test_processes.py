"""Locks between processes: real ones, that crash, freeze, fork and exit."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest

from django_zklock.zk.lock import Lock
from tests.server import Server
from tests.zk.onlooker import MakePool, Onlooker, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class Player:
    """A process of :mod:`tests.zk.player`."""

    def __init__(self, hosts: str, root: str, part: str, *arguments: object, timeout: float, before: str = "") -> None:
        start = f"{before}\nfrom tests.zk.player import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, hosts, root, str(timeout), part, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=REPOSITORY,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def hear(self, timeout: float = 20.0) -> str:
        try:
            return self._lines.get(timeout=timeout)
        except Empty:
            pytest.fail(f"the player said nothing: {self.end()[1]}")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, timeout: float = 20.0) -> tuple[int, str]:
        """Wait for the end; give the status and what went to standard error."""
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        return self.process.wait(timeout), errors

    def end(self) -> tuple[int, str]:
        self.process.kill()
        outcome = self.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return outcome


MakePlayer = Callable[..., Player]


@pytest.fixture
def play(server: Server, root: str) -> Iterator[MakePlayer]:
    """Give a function that starts players, ended with the test."""
    players: list[Player] = []

    def make(part: str, *arguments: object, timeout: float = 10.0, before: str = "") -> Player:
        players.append(Player(server.hosts, root, part, *arguments, timeout=timeout, before=before))
        return players[-1]

    yield make
    for player in players:
        if player.process.stdin is not None and not player.process.stdin.closed:
            player.end()


@pytest.mark.slow
@pytest.mark.timeout(400)  # 2,000 hand-overs among eight processes on however few cores there are
def test_counter__eight_processes(play: MakePlayer, kind_of_server: str, tmp_path: Path) -> None:
    """Eight processes add one many times each to a number in a plain file: none is lost, and the tokens only grow."""
    # The server for tests hands over as surely, but some five times as slowly: it shares the cores with them.
    rounds = {"zookeeper": 250, "testserver": 50}[kind_of_server]
    counter = tmp_path / "counter"
    counter.write_text("0")
    players = [play("count", counter, rounds, timeout=20.0) for _ in range(8)]
    for player in players:
        assert player.hear() == "ready"
    for player in players:
        player.say("go")
    for player in players:
        assert player.hear(300) == "done"
    assert counter.read_text() == str(8 * rounds)
    tokens = [int(line) for line in counter.with_suffix(".grants").read_text().split()]
    assert len(tokens) == 8 * rounds
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))


def test_process__killed(play: MakePlayer, make_pool: MakePool) -> None:
    """The lock of a process that is killed is free within the session timeout and two ticks."""
    player = play("hold", timeout=2.0)
    token = int(player.hear().split()[1])
    player.process.kill()
    began = time.monotonic()
    with Lock("k", make_pool()).acquire(timeout=10) as held:
        assert time.monotonic() - began < 2.0 + 2 * 0.2 + 1
        assert held.token > token


@pytest.mark.parametrize(("order", "status"), [("end", 0), ("exit", 3), ("raise", 1)])
def test_process__exits(play: MakePlayer, make_pool: MakePool, order: str, status: int) -> None:
    """The lock of a process that exits, in whatever orderly way, is free at once, and the exit is not delayed."""
    player = play("hold", timeout=30.0)
    player.hear()
    began = time.monotonic()
    player.say(order)
    Lock("k", make_pool()).acquire(timeout=10).release()
    assert time.monotonic() - began < 5
    code, errors = player.wait()
    assert code == status
    assert ("Traceback" in errors) == (order == "raise"), errors
    assert time.monotonic() - began < 10


def test_process__frozen(play: MakePlayer, make_pool: MakePool) -> None:
    """A holder that was frozen for longer than its session has lost, knows it at once, and does not recover."""
    player = play("hold", timeout=1.0)
    player.hear()
    os.kill(player.process.pid, signal.SIGSTOP)
    later = Lock("k", make_pool()).acquire(timeout=10)
    player.say("check")
    os.kill(player.process.pid, signal.SIGCONT)
    assert player.hear() == "lost"
    assert player.hear() == "still lost"
    assert player.wait()[0] == 0
    later.check()
    later.release()


def test_waiter__frozen(play: MakePlayer, make_pool: MakePool, onlooker: Onlooker) -> None:
    """A waiter that sleeps through its turn and its session does not believe that it holds when it wakes."""
    lock = Lock("k", make_pool())
    held = lock.acquire()
    player = play("hold", timeout=1.0)
    onlooker.wait_count(lock.paths[0], 2)
    os.kill(player.process.pid, signal.SIGSTOP)
    held.release()
    onlooker.wait_empty(lock.paths[0])
    other = lock.acquire()
    os.kill(player.process.pid, signal.SIGCONT)
    onlooker.wait_count(lock.paths[0], 2)
    other.check()
    other.release()
    assert int(player.hear().split()[1]) > other.token


def test_fork__inside_a_block(play: MakePlayer) -> None:
    """A forked child that leaves an inherited block, locks, and exits touches nothing of its parent's."""
    player = play("fork", timeout=2.0)
    assert [player.hear() for _ in range(7)] == [
        "child lost True",
        "child was told True",
        "child waits for parent True",
        "child has its own True True",
        "child ends True",
        "parent True True True",
        "parent again True",
    ]
    assert player.wait()[0] == 0


def test_fork__that_python_is_not_told_of(play: MakePlayer) -> None:
    """A child of a fork in C, as uWSGI makes them, has a session of its own and leaves the parent's alone."""
    player = play("fork_in_c")
    assert player.hear() == "child True True True"
    assert player.hear() == "child ends True"
    assert player.hear() == "parent True True"
    assert player.wait()[0] == 0


def test_signal__raises_at_any_instant(play: MakePlayer, make_pool: MakePool, onlooker: Onlooker) -> None:
    """Whatever instant a signal handler raises at, while another process takes turns, no node is left."""
    player = play("alarm", 1500)
    pool = make_pool()
    stop = threading.Event()

    def take_turns() -> None:
        while not stop.is_set():
            Lock("k", pool).acquire(timeout=10).release()

    turns = threading.Thread(target=take_turns)
    turns.start()
    try:
        word, count = player.hear(40).split()
    finally:
        stop.set()
        turns.join(10)
    assert word == "struck"
    assert int(count) > 100
    assert player.hear() == "alive"
    onlooker.wait_empty(Lock("k", pool).paths[0], 3)
    player.say("end")
    assert player.wait()[0] == 0


def test_gevent(play: MakePlayer) -> None:
    """Greenlets of a patched process exclude each other, and the hub turns while they wait."""
    player = play("greenlets", before="from gevent import monkey; monkey.patch_all()")
    assert player.hear() == "greenlets True True True"
    assert player.hear() == "turned True True"
    assert player.hear() == "free GeventHandler"
    assert player.wait()[0] == 0
    wait_until(lambda: player.process.poll() is not None)
