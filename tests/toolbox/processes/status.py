"""What Linux counts of a process."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def status(pid: int) -> dict[str, int]:
    """Return the memory (kB) and the counters that the system reports for a process."""
    found = _read(Path(f"/proc/{pid}"))
    return {name: int(found[name].split()[0]) for name in ("VmRSS", "Threads")}


def wakeups(pid: int, duration: float) -> float:
    """Return how many times in a second the threads of a process have waited for something, during ``duration``."""
    began, before = time.monotonic(), _waits(pid)
    time.sleep(duration)
    return (_waits(pid) - before) / (time.monotonic() - began)


def open_files() -> set[tuple[int, int]]:
    """Return the devices and inodes of what this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        # Another thread may close it meanwhile, and one is that of the folder.
        with contextlib.suppress(FileNotFoundError):
            found.add(identity(descriptor.stat()))
    return found


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what no other open file has."""
    return status.st_dev, status.st_ino


def _waits(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(_read(task)["voluntary_ctxt_switches"])
    return total


def _read(folder: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
