"""Projects of users; a process that loads one has this folder on its path for imports."""

from __future__ import annotations

from pathlib import Path

PROJECTS = Path(__file__).resolve().parent
