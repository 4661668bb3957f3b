"""Source packages from the package index, for what is tested against other projects."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path


class SourceError(Exception):
    """The source package is not to be had; the message says why."""


def download(name: str, version: str, target: Path) -> Path:
    """Fetch the source package into the folder ``target``; return the archive."""
    # Of this project alone the source is wanted: pip builds its metadata with tools that may come as wheels.
    options = ["--no-deps", "--no-binary", name, "--dest", str(target), "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"{name}=={version}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(target.glob(f"{name}-*.tar.gz"))
    if finished.returncode != 0 or len(archives) != 1:
        raise SourceError(f"{name} {version} could not be fetched from the package index\n{finished.stderr}")
    return archives[0]


def open_archive(path: Path) -> tarfile.TarFile:
    """Open an archive so that nothing in it is written elsewhere than where it is unpacked."""
    file = tarfile.open(path)  # noqa: SIM115 - the caller closes it
    # Some Pythons that are in use, 3.11.2 for one, have no filters yet.
    file.extraction_filter = getattr(tarfile, "data_filter", _as_it_is)
    return file


def _as_it_is(member: tarfile.TarInfo, _path: str) -> tarfile.TarInfo:
    return member
