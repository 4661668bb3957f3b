"""Where the newer Curator comes from."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.newer_curator import PYSPARK, fetch_curator
from tests.support.source_package import SourceError

FILES = ["curator-recipes-5.7.1.jar", "zookeeper-3.9.3.jar", "netty-handler-4.1.jar", "netty-handler-proxy-4.1.jar",
         "curator-notes.txt", "spark-core.jar"]  # fmt: skip


def test_fetch_curator__once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large package the jars that Curator needs are kept, and it is fetched once."""
    calls = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        jars = tmp_path / "jars"
        jars.mkdir()
        for name in FILES:
            (jars / name).touch()
        with tarfile.open(Path(command[command.index("--dest") + 1]) / f"pyspark-{PYSPARK}.tar.gz", "w:gz") as archive:
            archive.add(jars, f"pyspark-{PYSPARK}/deps/jars")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    folder = fetch_curator(tmp_path / "cache")
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES[:3])
    assert fetch_curator(tmp_path / "cache") == folder
    assert len(calls) == 1
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_fetch_curator__index_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip says is told, and nothing is left that would be taken for Curator the next time."""
    failed = subprocess.CompletedProcess([], 1, "", "no such package")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SourceError, match="no such package"):
        fetch_curator(tmp_path)
    assert list(tmp_path.iterdir()) == []
