"""A process of the test project itself, such as its worker and its web server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.toolbox.processes.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT = Path(__file__).resolve().parents[3] / "testproject"


class ProjectProcess(Process):
    """A program that starts in the project's folder and can import what this program can."""

    def environment(self) -> Mapping[str, str]:
        """Pass on the places for imports, and keep temporary files in the process's folder."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)]),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),
        }

    def working_folder(self) -> Path:
        """Start where manage.py and Celery's app are."""
        return PROJECT
