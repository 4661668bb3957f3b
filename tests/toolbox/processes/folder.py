"""Temporary folders that do not outlive the program, however it ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.toolbox.processes.interruption import postponed
from tests.toolbox.processes.reaper import Reaper


def make_folder(name: str) -> Path:
    """Make a folder whose name begins with the given one."""
    with postponed():
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
        Reaper.current().watch_folder(str(folder))
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that make_folder has made; fine if it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    Reaper.current().forget_folder(str(folder))
