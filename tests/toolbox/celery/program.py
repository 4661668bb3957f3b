"""The real ``celery`` and ``python``, as typed in a shell, with the entry points of this package as if installed."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.toolbox.timing import scaled

ROOT = Path(__file__).resolve().parents[3]


def install_entry_points(folder: Path) -> Path:
    """Write the metadata of this package into ``folder``, from which Python reads its entry points, and return that.

    The metadata of an earlier installation may be older than the source.
    """
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    groups = settings["options.entry_points"]
    metadata = folder / "django_zklock-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: django-zklock\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("".join(f"[{name}]\n{groups[name].strip()}\n" for name in groups))
    return folder


def run_in_shell(
    line: str, environment: Mapping[str, str], folder: Path, *, where: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell that knows the programs ``celery`` and ``python`` of this environment.

    The metadata of this package is written into ``folder``; the shell begins in the folder ``where``.
    """
    # The program of this environment.
    program = shutil.which("celery", path=str(Path(sys.executable).parent))
    assert program is not None
    paths = [str(Path(program).parent), os.environ["PATH"]]
    places = [str(install_entry_points(folder)), environment["PYTHONPATH"]]
    return subprocess.run(
        line,
        shell=True,
        cwd=where,
        env={**os.environ, **environment, "PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
