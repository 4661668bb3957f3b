"""What Linux counts of a process."""

from __future__ import annotations

from pathlib import Path


def status(pid: int) -> dict[str, int]:
    """Return the memory (kB) and the counters that the system reports for a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[name].split()[0]) for name in ("VmRSS", "Threads")}
