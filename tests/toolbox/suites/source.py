"""The source package of an installed project, which contains its tests."""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path

from tests.toolbox.suites.source_package import SourceError, download, open_archive

__all__ = ["SourceError", "fetch_source"]


def fetch_source(name: str, cache: Path) -> Path:
    """Return the unpacked source of the installed ``name``, from the package index if it is not in ``cache``."""
    version = metadata.version(name)
    folder = cache / f"{name}-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked elsewhere and renamed, so that a folder of this name is complete.
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        workshop = Path(temporary)
        with open_archive(download(name, version, workshop)) as file:
            file.extractall(workshop)
        (workshop / folder.name).rename(folder)
    return folder
