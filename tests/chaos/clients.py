"""The processes of the clients, and what can happen to them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.toolbox.processes.process import Process
from tests.toolbox.timing import scaled, wait_until

from .cluster import Cluster, faketime
from .history import FOLDER, write
from .nemesis import Fault, Kind

ROOT_OF_TESTS = Path(__file__).resolve().parents[2]
ROOT = "/chaos"
# Seconds for all turns to end when the faults have ended, and for the last sessions to be closed.
SETTLE, CLOSE = 150.0, 90.0
# How Python reports an error that nothing has caught, in a thread, a callback or a finalizer.
UNCAUGHT = re.compile(
    rb"^(?:Traceback |Exception |Fatal Python error|.* was never (?:awaited|retrieved)).*", re.MULTILINE
)


class Client(Process):
    """One process of clients; ``folder`` has the words that it is told."""

    name = "chaos-client"
    start_timeout = 60.0

    def __init__(self, name: str, kind: str, *, seed: str, hosts: str, session_timeout: float, journal: Path) -> None:
        super().__init__()
        self.who = name
        self.kind = kind
        self.session_timeout = session_timeout
        self._journal = journal
        self._arguments = [
            *(sys.executable, "-m", "tests.chaos.client", "--name", name, "--kind", kind, "--seed", seed),
            *(
                "--hosts",
                hosts,
                "--root",
                ROOT,
                "--session-timeout",
                str(session_timeout),
                "--folder",
                str(self.folder),
            ),
        ]
        # Of a killed one, its successor draws something else.
        self.starts = 0

    def arguments(self) -> list[str]:
        """Run the program."""
        return [*self._arguments, "--start", str(self.starts)]

    def environment(self) -> Mapping[str, str]:
        """Say where the journal is, and what sets the clock."""
        path = os.pathsep.join([str(ROOT_OF_TESTS), str(ROOT_OF_TESTS / "testproject")])
        clock = faketime(self.clock) if self.has_a_clock else {}
        return {**os.environ, FOLDER: str(self._journal), "PYTHONPATH": path, **clock}

    @property
    def has_a_clock(self) -> bool:
        """Tell whether its clock can be set.

        libfaketime has a lock that a fork does not make free: of 1,600 children of a process with threads that did
        nothing but look at the clock four stood still for ever, and without libfaketime none of 4,600.
        """
        return self.kind != "forking"

    @property
    def clock(self) -> Path:
        """What its clock is set by."""
        return self.folder / "clock"

    def working_folder(self) -> Path:
        """Return where ``tests`` is."""
        return ROOT_OF_TESTS

    def is_ready(self) -> bool:
        """Tell whether it has begun."""
        return self._file.exists() and self._file.stat().st_size > 0

    @property
    def _file(self) -> Path:
        return self._journal / f"{self.pid}.jsonl"

    def tell(self, word: str) -> None:
        """Let it go on."""
        (self.folder / word).touch()

    def has(self, what: str) -> bool:
        """Tell whether a row of this kind is among its last; what its connection tells may follow."""
        if not self.is_ready():
            return False
        with self._file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            return f'"what": "{what}"'.encode() in file.read()

    def stacks(self) -> str:
        """Return what its threads and its children do, by the signal for that."""
        self.signal(signal.SIGUSR1, group=True)
        time.sleep(1.0)
        return self.log_tail(200)


def uncaught(log: bytes) -> list[str]:
    """Return the first line of each report of an error that nothing has caught."""
    return [found.decode(errors="replace") for found in UNCAUGHT.findall(log)]


class Clients:
    """All of them."""

    def __init__(
        self, cluster: Cluster, names: Mapping[str, str], *, seed: str, session_timeouts: Sequence[float], journal: Path
    ) -> None:
        self._cluster = cluster
        self.all = {
            name: Client(
                name,
                kind,
                seed=seed,
                hosts=cluster.hosts(name),
                session_timeout=session_timeouts[number % len(session_timeouts)],
                journal=journal,
            )
            for number, (name, kind) in enumerate(names.items())
        }

    def start(self) -> None:
        """Start all of them."""
        for client in self.all.values():
            client.launch()
        for client in self.all.values():
            client.wait_ready()

    def logs(self) -> dict[str, bytes]:
        """Return what each has logged."""
        return {client.who: client.log.read_bytes() for client in self.all.values()}

    def close(self) -> None:
        """End all of them."""
        for client in self.all.values():
            client.kill()
            client.close()

    # What can happen to them.

    def kinds(self, session: float) -> dict[str, Kind]:
        """Return the faults by name."""
        names = list(self.all)
        clocks = [name for name, client in self.all.items() if client.has_a_clock]
        kinds = {
            "client stopped": Kind(act=self._stop, weight=6, victims=names, longest=2.0 * session),
            "client killed": Kind(act=self._kill, weight=4, victims=names, longest=3.0),
        }
        if clocks:
            kinds["clock of a client set"] = Kind(act=self._set_clock, weight=3, victims=clocks, longest=5.0)
        return kinds

    @contextlib.contextmanager
    def _stop(self, fault: Fault) -> Iterator[None]:
        client = self.all[fault.victim]
        write("stopped", victim=client.pid, until=time.monotonic() + fault.lasts)
        client.signal(signal.SIGSTOP, group=True)
        yield
        client.resume()

    @contextlib.contextmanager
    def _kill(self, fault: Fault) -> Iterator[None]:
        client = self.all[fault.victim]
        victim = client.pid
        write("killed", victim=victim, client=client.who)
        client.kill()
        write("gone", victim=victim)
        yield
        client.starts += 1
        client.launch()

    @contextlib.contextmanager
    def _set_clock(self, fault: Fault) -> Iterator[None]:
        client = self.all[fault.victim]
        client.clock.write_text(f"{fault.dice.choice((-1, 1)) * fault.dice.randrange(1, 100_000):+d}\n")
        yield
        client.clock.write_text("+0\n")

    # The end.

    def settle(self) -> list[str]:
        """Let all turns end, and return what is wrong."""
        for client in self.all.values():
            client.tell("settle")
        return self._wait("idle", SETTLE)

    def end(self) -> list[str]:
        """Let all sessions be closed and the processes end, and return what is wrong."""
        for client in self.all.values():
            client.tell("close")
        found = self._wait("closed", CLOSE)
        for client in self.all.values():
            status = client.wait(scaled(20))
            if status != 0:
                found.append(f"{client.who} has ended with {status}:\n{client.log_tail(60)}")
        return found + [f"{name} has logged {text}" for name, log in self.logs().items() for text in uncaught(log)]

    def _wait(self, what: str, timeout: float) -> list[str]:
        waiting = set(self.all.values())

        def is_over() -> bool:
            for client in list(waiting):
                if not client.is_running() or client.has(what):
                    waiting.discard(client)
            return not waiting

        with contextlib.suppress(AssertionError):
            wait_until(is_over, timeout, what)
        return [f"{client.who} is not {what} after {timeout:g} s:\n{client.stacks()}" for client in waiting]
