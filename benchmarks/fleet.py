"""What many processes cost three servers: ``make bench WHAT=fleet``.

Sessions of clients at the two followers do nothing, wait behind one holder, or hold a lock each. The servers tell how
many requests they got, and the leader how many reached it; the system tells their CPU time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.clients.dialogue import serve
from benchmarks.peers.counters import cpu_seconds
from benchmarks.peers.program import Program
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.session import HEARTBEATS_PER_SESSION, IDLE_HEARTBEATS
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper

# The setting's default, in seconds, and the ticks of which it has enough.
SESSION_TIMEOUT = 15.0
TICK = 2.0
IDLE_AFTER = IDLE_HEARTBEATS / HEARTBEATS_PER_SESSION * SESSION_TIMEOUT
START_TIMEOUT = 300.0


class Clients:
    """One process of many sessions, each of a pool of its own."""

    def __init__(self, hosts: str, name: str) -> None:
        """Remember the servers."""
        self._hosts, self._name = hosts, name
        self._stack = ExitStack()
        self._pools: list[Pool] = []
        self._state = ExitStack()

    def open(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Open so many sessions, and use each of them once."""
        connection = ConnectionOptions(hosts=self._hosts, session_timeout=SESSION_TIMEOUT)
        options = PoolOptions(connection=connection, connect_timeout=60.0)
        for number in range(int(words["sessions"])):
            pool = self._stack.enter_context(closing(Pool(f"pool{number}", options)))
            Lock(self._key(number), pool).acquire(60).release()
            self._pools.append(pool)
        return {}

    def _key(self, number: int) -> str:
        return f"{self._name}-{number}"

    def hold(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Hold a lock in each session."""
        for number, pool in enumerate(self._pools):
            self._state.callback(Lock(self._key(number), pool).acquire(60).release)
        return {}

    def wait(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Let each session but the first wait for what that one holds."""
        first, *others = [Lock(f"{self._name} all", pool) for pool in self._pools]
        held = first.acquire(60)
        waiting = [Runner(partial(_take_a_turn, lock)) for lock in others]
        wait_until(lambda: all(pool.sessions()[0].listeners for pool in self._pools), 60)

        def end() -> None:
            held.release()
            for each in waiting:
                each.result()

        self._state.callback(end)
        return {}

    def rest(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """End what was begun."""
        self._state.close()
        return {}

    def serve(self) -> None:
        """Do what the other process says."""
        serve({"open": self.open, "hold": self.hold, "wait": self.wait, "rest": self.rest})


def _take_a_turn(lock: Lock) -> None:
    with lock:
        pass


@dataclass(frozen=True)
class Reading:
    """What the servers have done until then."""

    received: int
    at_leader: int
    leader_cpu: float
    follower_cpu: float

    @classmethod
    def of(cls, leader: ZooKeeper, followers: Sequence[ZooKeeper]) -> Reading:
        """Read the counters; the questions themselves do not count."""
        return cls(
            sum(each.packets_received() for each in followers),
            int(leader.mntr()["zk_prep_processor_request_queued"]),
            cpu_seconds(leader.pid),
            sum(cpu_seconds(each.pid) for each in followers),
        )


def measure(ensemble: Ensemble, sessions: int, seconds: float) -> str:
    """Return what so many sessions have cost in that time, as a row."""
    leader, followers = ensemble.leader(), ensemble.followers()
    before = Reading.of(leader, followers)
    time.sleep(seconds)
    after = Reading.of(leader, followers)
    timeouts = seconds / SESSION_TIMEOUT
    requests, forwarded = after.received - before.received, after.at_leader - before.at_leader
    # Milliseconds in a second, for a thousand sessions.
    share = 1000 * 1000 / sessions / seconds
    figures = [
        requests / sessions / timeouts,
        forwarded / sessions / timeouts,
        (after.leader_cpu - before.leader_cpu) * share,
        (after.follower_cpu - before.follower_cpu) * share,
    ]
    return "".join(f"{each:14.2f}" for each in figures)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(tick_time=TICK, min_session_timeout=2 * TICK))
        hosts = ",".join(each.hosts for each in ensemble.followers())
        command = [sys.executable, "-m", "benchmarks.fleet", "--clients", hosts]
        programs = [stack.enter_context(Program([*command, str(number)])) for number in range(options.processes)]

        def ask(word: str, **words: object) -> None:
            for each in programs:
                each.ask(word, START_TIMEOUT, **words)

        print(f"{options.sessions} sessions of {options.processes} processes, at the followers of three servers")
        print(f"{'':24}{'of a session in one timeout':>28}{'CPU of 1000 sessions, ms/s':>28}")
        print(f"{'':24}{'requests':>14}{'at the leader':>14}{'leader':>14}{'followers':>14}")
        ask("open", sessions=options.sessions // options.processes)
        for name, word, pause in (
            ("used a while ago", "rest", SESSION_TIMEOUT),
            ("idle", "rest", IDLE_AFTER),
            # What waiters ask about once, after a session timeout, is not what waiting costs.
            ("waiting", "wait", 2 * SESSION_TIMEOUT),
            ("holding", "hold", SESSION_TIMEOUT),
        ):
            ask(word)
            time.sleep(pause)
            seconds = options.seconds if word != "rest" or name == "idle" else SESSION_TIMEOUT
            print(f"{name:24}{measure(ensemble, options.sessions, seconds)}", flush=True)
            ask("rest")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--clients"]:
        Clients(*sys.argv[2:]).serve()
    else:
        main()
