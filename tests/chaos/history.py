"""What everybody writes down while chaos reigns: one row for each event, in a file for each process.

The time of a row, ``at``, is on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_JOURNAL"

Row = dict[str, Any]


@functools.cache
def _file(pid: int, folder: str) -> int:
    return os.open(Path(folder, f"{pid}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def write(what: str, *, at: float | None = None, **facts: Any) -> None:
    """Add a row, whole and at once: this process may be killed at any time."""
    row = {"at": time.monotonic() if at is None else at, "what": what, "pid": os.getpid(), **facts}
    os.write(_file(os.getpid(), os.environ[FOLDER]), f"{json.dumps(row)}\n".encode())


def read(path: Path) -> list[Row]:
    """Return the rows of a file, or of all files in a folder, in the order of time."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    # A process that is killed while it writes can leave a part of its last row.
    rows = [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]
    return sorted(rows, key=lambda row: row["at"])


def save(rows: list[Row], path: Path) -> None:
    """Write all rows to one file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
