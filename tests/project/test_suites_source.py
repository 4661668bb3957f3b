"""The origin of another project's tests."""

from __future__ import annotations

import subprocess
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.toolbox.suites.source import SourceError, fetch_source

NAME = f"kazoo-{metadata.version('kazoo')}"


class Pip:
    """Replaces pip; writes the source package to the requested folder, unless there is none."""

    def __init__(self, package: Path | None) -> None:
        self.calls = 0
        self._package = package

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        if self._package is None:
            return subprocess.CompletedProcess(command, 1, "", "no such package")
        target = Path(command[command.index("--dest") + 1])
        with tarfile.open(target / f"{NAME}.tar.gz", "w:gz") as archive:
            archive.add(self._package, NAME)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "setup.py").touch()
    return folder


def test_fetch_source__once(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is fetched and unpacked the first time, and read from the cache from then on."""
    pip = Pip(package)
    monkeypatch.setattr(subprocess, "run", pip)
    folder = fetch_source("kazoo", tmp_path / "cache")
    assert [file.name for file in folder.iterdir()] == ["setup.py"]
    assert fetch_source("kazoo", tmp_path / "cache") == folder
    assert pip.calls == 1
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [NAME]


def test_fetch_source__index_is_away(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error shows pip's output, and leaves nothing that would be taken for the package the next time."""
    monkeypatch.setattr(subprocess, "run", Pip(None))
    with pytest.raises(SourceError, match="no such package"):
        fetch_source("kazoo", tmp_path)
    monkeypatch.setattr(subprocess, "run", Pip(package))
    assert (fetch_source("kazoo", tmp_path) / "setup.py").exists()
