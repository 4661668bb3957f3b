"""kazoo's source package, which is where its tests come from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path


class SourceError(Exception):
    """The source package is not to be had; the message says why."""


def fetch_source(cache: Path) -> Path:
    """Return the unpacked source of the kazoo that is installed, from the package index if it is not in ``cache``."""
    version = metadata.version("kazoo")
    folder = cache / f"kazoo-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked elsewhere and renamed, so that a folder under its name is complete.
    with tempfile.TemporaryDirectory(dir=cache) as name:
        workshop = Path(name)
        archive = _download(version, workshop)
        with tarfile.open(archive) as file:
            # Some Pythons that are in use, 3.11.2 for one, have no filters yet.
            file.extraction_filter = getattr(tarfile, "data_filter", _as_it_is)
            file.extractall(workshop)
        (workshop / folder.name).rename(folder)
    return folder


def _download(version: str, target: Path) -> Path:
    # Of kazoo alone the source is wanted: pip builds its metadata with tools that may come as wheels.
    options = ["--no-deps", "--no-binary", "kazoo", "--dest", str(target), "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"kazoo=={version}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(target.glob("kazoo-*.tar.gz"))
    if finished.returncode != 0 or len(archives) != 1:
        raise SourceError(f"kazoo {version} could not be fetched from the package index\n{finished.stderr}")
    return archives[0]


def _as_it_is(member: tarfile.TarInfo, _path: str) -> tarfile.TarInfo:
    return member
