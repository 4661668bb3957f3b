"""The stacks of processes for which a test has waited in vain: of all their threads and greenlets.

The processes that a failing test has started are asked, before it kills them or at its end, and what they answer is
added to the failure. :mod:`tests.toolbox.processes.stacks.sitecustomize` is their side.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.toolbox.processes.stacks.sitecustomize import ASK, END, VARIABLE, answer
from tests.toolbox.timing import scaled

HERE = str(Path(__file__).parent)
# Seconds. What fails sooner has waited for nothing.
SHORTEST_WAIT = 2.0
# Seconds in which a process must have written all.
TIMEOUT = scaled(5)
# Java writes this after the last of its threads.
END_OF_JAVA = "JNI global refs"


# Where pytest's configuration keeps the instance.
STACKS = pytest.StashKey["Stacks"]()


class Seen(NamedTuple):
    """What the system tells about a process."""

    pid: int
    name: str
    state: str
    parent: int
    group: int

    def catches(self, number: int) -> bool:
        """Tell whether the process has a handler for a signal."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(mask, 16) >> (number - 1) & 1)


class Stacks:
    """Asks what this process has started; one for each process of pytest.

    Any thread may end a process. ``_lock`` keeps apart the answers, which all go to one file.
    """

    def __init__(self) -> None:
        """Make the file for the answers."""
        self.shortest_wait, self.timeout = SHORTEST_WAIT, TIMEOUT
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._begun = time.monotonic()
        self._asked: set[int] = set()
        # A file without a name: nothing is left of it, however this process ends.
        self._file = os.memfd_create("stacks")
        self._kill, self._killpg = os.kill, os.killpg

    def install(self) -> None:
        """Look at each killing, and let all that is started from now on answer."""
        os.environ[VARIABLE] = f"/proc/{self._owner}/fd/{self._file}"
        # A process of pytest-xdist has them from the first process.
        if HERE not in sys.path:
            # Some programs get `sys.path` of this one, the others only its environment.
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), HERE]))
            sys.path.append(HERE)
        # For forks of this process.
        answer(os.environ[VARIABLE])
        os.kill = self._asking_before(self._kill, lambda target, each: target == each.pid)
        os.killpg = self._asking_before(self._killpg, lambda target, each: target == each.group)

    def _asking_before(
        self, kill: Callable[[int, int], None], concerns: Callable[[int, Seen], bool]
    ) -> Callable[[int, int], None]:
        def ask_and_kill(target: int, number: int, /) -> None:
            error = sys.exception()
            if error is not None:
                self.add_to(error, lambda each: concerns(target, each))
            kill(target, number)

        return ask_and_kill

    @contextmanager
    def of_failure(self) -> Iterator[None]:
        """Add the stacks of what still runs to the exception that leaves the block, which is a part of a test."""
        self._begun = time.monotonic()
        self._asked.clear()
        try:
            yield
        except BaseException as error:
            self.add_to(error, lambda _each: True)
            raise

    def add_to(self, error: BaseException, chosen: Callable[[Seen], bool]) -> None:
        """Add the stacks of the chosen processes and their children to an exception, unless nothing was waited for."""
        if (
            os.getpid() != self._owner
            or time.monotonic() < self._begun + self.shortest_wait
            # Not a test that is skipped or interrupted.
            or not isinstance(error, (Exception, pytest.fail.Exception))
        ):
            return
        with self._lock:
            for each in _family(self._owner, chosen):
                if each.pid not in self._asked:
                    self._asked.add(each.pid)
                    error.add_note(f"Process {each.pid}, {each.name}: {self._ask(each)}")

    def _ask(self, each: Seen) -> str:
        if each.state in {"T", "t"}:
            return "it is stopped, and answers nothing"
        try:
            if self._is_enabled(each):
                return self._answer(each, ASK, self._file, END)
            if each.name == "java" and each.catches(signal.SIGQUIT):
                return self._ask_java(each)
        except OSError as error:
            return f"it has ended, or is not ours: {error}"
        return "it has no stacks to tell"

    def _is_enabled(self, each: Seen) -> bool:
        """Tell whether the signal makes the process answer; others would die of it."""
        ours = os.fstat(self._file)
        files = Path(f"/proc/{each.pid}/fd").iterdir()
        return each.catches(ASK) and any(file.exists() and os.path.samestat(file.stat(), ours) for file in files)

    def _ask_java(self, each: Seen) -> str:
        output = Path(f"/proc/{each.pid}/fd/1")
        if not stat.S_ISREG(output.stat().st_mode):
            return "Java would write its stacks into a pipe, to a reader who expects other lines"
        descriptor = os.open(output, os.O_RDONLY)
        try:
            return self._answer(each, signal.SIGQUIT, descriptor, END_OF_JAVA)
        finally:
            os.close(descriptor)

    def _answer(self, each: Seen, number: int, file: int, end: str) -> str:
        """Send the signal, and return what is added to the file, up to the end."""
        length = os.fstat(file).st_size
        self._kill(each.pid, number)
        deadline = time.monotonic() + self.timeout
        while True:
            text = os.pread(file, os.fstat(file).st_size - length, length).decode(errors="replace")
            if end in text:
                return f"\n{text.partition(end)[0]}"
            if time.monotonic() > deadline:
                return f"no more than this within {self.timeout:g} s, as it runs no Python code\n{text}"
            time.sleep(0.01)


def _family(owner: int, chosen: Callable[[Seen], bool]) -> list[Seen]:
    """Return those of the owner's descendants that are chosen, or descend from a chosen one."""
    children: dict[int, list[Seen]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (folder / "stat").read_text().rpartition(")")
        except OSError:
            # It has ended.
            continue
        state, parent, group = after.split()[:3]
        each = Seen(int(folder.name), before.partition("(")[2], state, int(parent), int(group))
        children.setdefault(each.parent, []).append(each)

    def below(parent: int, *, all_of_them: bool) -> Iterator[Seen]:
        for each in children.get(parent, []):
            wanted = all_of_them or chosen(each)
            if wanted and each.state != "Z":
                yield each
            yield from below(each.pid, all_of_them=wanted)

    return list(below(owner, all_of_them=False))
