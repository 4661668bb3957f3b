"""The source package of kazoo, which contains its tests."""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path

from tests.support.source_package import SourceError, download, open_archive

__all__ = ["SourceError", "fetch_source"]


def fetch_source(cache: Path) -> Path:
    """Return the unpacked source of the installed kazoo, from the package index if it is not in ``cache``."""
    version = metadata.version("kazoo")
    folder = cache / f"kazoo-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked elsewhere and renamed, so that a folder of this name is complete.
    with tempfile.TemporaryDirectory(dir=cache) as name:
        workshop = Path(name)
        with open_archive(download("kazoo", version, workshop)) as file:
            file.extractall(workshop)
        (workshop / folder.name).rename(folder)
    return folder
