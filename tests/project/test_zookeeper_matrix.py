"""The versions of ZooKeeper and Curator: where they come from, what is run on them, and what documents say of it."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests import zookeeper_matrix
from tests.toolbox.suites.source_package import SourceError
from tests.toolbox.zookeeper.java_releases import PYSPARK, fetch_release
from tests.zookeeper_matrix import PAIRS, STEPS, TESTS, Outcome, Pair, find_homes, main, run_step

ROOT = Path(__file__).resolve().parents[2]
KEPT = ["curator-recipes-5.7.1.jar", "netty-handler-4.1.118.Final.jar", "zookeeper-3.9.3.jar"]
LEFT = ["curator-notes.txt", "netty-handler-proxy-4.1.118.Final.jar", "spark-core.jar"]
# One passes, one is skipped.
GOOD = """\
import pytest

def test_good():
    pass

def test_left_out():
    pytest.skip("not here")
"""
BAD = """
def test_wrong():
    assert False
"""

pytestmark = pytest.mark.once


def in_words(versions: Iterable[str]) -> str:
    *some, last = sorted(set(versions))
    return f"{', '.join(some)} and {last}"


ZOOKEEPERS = in_words(pair.zookeeper for pair in PAIRS)
CURATORS = in_words(pair.curator for pair in PAIRS)


def test_readme__names_the_versions() -> None:
    """The README and the table of versions name those that are run, and no other."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"ZooKeeper 3\.6 or newer; \[tested\]\(\S+\) on (.*), with Apache Curator (.*)\.", readme)
    assert said is not None
    assert said.groups() == (ZOOKEEPERS, CURATORS)
    page = (ROOT / "docs/reference/versions.md").read_text(encoding="utf-8")
    assert f"| ZooKeeper | 3.6 and newer; [tested](#zookeeper-and-curator) on {ZOOKEEPERS} |" in page
    assert f"| Apache Curator | [tested](#zookeeper-and-curator) with {CURATORS} |" in page


def test_page__names_pairs_and_steps() -> None:
    """The page of versions has each pair with its steps, and each step."""
    page = (ROOT / "docs/reference/versions.md").read_text(encoding="utf-8")
    section = page[page.index("### ZooKeeper and Curator") : page.index("## What is stable")]
    pairs = re.findall(r"^\| ([0-9.]+) \| ([0-9.]+) \| (.*) \|$", section, re.MULTILINE)
    assert pairs == [
        (zookeeper, curator, "all" if steps == STEPS else ", ".join(f"`{step}`" for step in steps))
        for zookeeper, curator, steps in PAIRS
    ]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == STEPS


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand in for the package index; return the commands that pip gets."""
    commands = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        package = command[-1].replace("==", "-")
        jars = tmp_path / "jars"
        jars.mkdir(exist_ok=True)
        for name in KEPT + LEFT:
            (jars / name).touch()
        with tarfile.open(Path(command[command.index("--dest") + 1]) / f"{package}.tar.gz", "w:gz") as archive:
            archive.add(jars, f"{package}/deps/jars")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return commands


def test_fetch_release__once(tmp_path: Path, index: list[list[str]]) -> None:
    """Of a large package the jars that ZooKeeper and Curator need are kept, and it is fetched once."""
    cache = tmp_path / "cache"
    home = fetch_release("3.9.3", cache)
    assert sorted(jar.name for jar in (home / "lib").iterdir()) == KEPT
    assert fetch_release("3.9.3", cache) == home
    assert [command[-1] for command in index] == [f"pyspark=={PYSPARK['3.9.3']}"]
    assert list(cache.iterdir()) == [home]


@pytest.mark.usefixtures("index")
def test_fetch_release__another_version(tmp_path: Path) -> None:
    """A package with another ZooKeeper than it should have is an error, and nothing of it stays."""
    with pytest.raises(SourceError, match=r"has no ZooKeeper 3\.6\.3"):
        fetch_release("3.6.3", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for Debian's jars, beside the fetched release ``home``."""
    debian = tmp_path / "debian"
    for jar in ("debian/zookeeper-3.8.0.jar", "debian/curator-recipes-5.4.0.jar", *(f"home/lib/{jar}" for jar in KEPT)):
        (tmp_path / jar).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / jar).touch()
    monkeypatch.setattr(zookeeper_matrix, "DEBIAN_JARS", debian)
    monkeypatch.setattr(zookeeper_matrix, "fetch_release", lambda _version: tmp_path / "home")
    return debian


def test_find_homes(jars: Path) -> None:
    """Debian's versions need no variable; the others are fetched."""
    home = jars.parent / "home"
    assert find_homes(Pair("3.8.0", "5.4.0")) == {}
    assert find_homes(Pair("3.8.0", "5.7.1")) == {"CURATOR_HOME": f"{home}/lib"}
    assert find_homes(Pair("3.9.3", "5.4.0")) == {"ZOOKEEPER_HOME": str(home)}


def test_find_homes__another_debian(jars: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is not said to be on 3.8.0 where Debian has another version."""
    (jars / "zookeeper-3.8.0.jar").rename(jars / "zookeeper-3.9.3.jar")
    assert main(["--only", "3.8.0"]) == 2
    assert capsys.readouterr().out == f"could not run: zookeeper 3.8.0 is wanted, and in {jars} is 3.9.3\n"


# A pytest of its own takes a second, and minutes where the machine is very busy.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "expected"), [(GOOD, (True, 1, 0, 1)), (GOOD + BAD, (False, 1, 1, 1))], ids=["good", "bad"]
)
def test_run_step(text: str, expected: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that passes and one that fails are told apart, and tests that were skipped are not counted as passed."""
    module = tmp_path / "test_some.py"
    module.write_text(text, encoding="utf-8")
    monkeypatch.setitem(TESTS, "interruptions", [str(module), f"--rootdir={tmp_path}", "-p", "no:django"])
    good, _seconds, *counts = run_step("interruptions", {}, "1")
    assert (good, *counts) == expected


def test_run_step__chaos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chaos has the versions in its environment, and an end with an error fails the step; it counts no tests."""
    monkeypatch.setenv("ZOOKEEPER_HOSTS", "somewhere:2181")
    check = "import os, sys; sys.exit('ZOOKEEPER_HOSTS' in os.environ or os.environ.get('ZOOKEEPER_HOME') != 'here')"
    monkeypatch.setattr(zookeeper_matrix, "CHAOS", ["-c", check])
    assert run_step("chaos", {"ZOOKEEPER_HOME": "here"}, "1")[2:] == (None, None, None)
    assert run_step("chaos", {"ZOOKEEPER_HOME": "here"}, "1").good
    assert not run_step("chaos", {}, "1").good


@pytest.mark.usefixtures("jars")
def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps that are asked for run, one after the other; the table has all of them, and one failure is enough."""

    def run(step: str, homes: Mapping[str, str], _processes: str) -> Outcome:
        return Outcome(step != "faults" or "ZOOKEEPER_HOME" in homes, 12.3, 5, 0, 2)

    monkeypatch.setattr(zookeeper_matrix, "run_step", run)
    assert main(["--only", "3.8.0", "--step", "contract", "--step", "faults"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "",
        "ZooKeeper  Curator  step           passed  failed  skipped  seconds",
        "3.8.0      5.4.0    contract            5       0        2       12  ok",
        "3.8.0      5.4.0    faults              5       0        2       12  NOT OK",
    ]
    assert main(["--only", "3.9.3", "--without-chaos"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        step for step in STEPS if step != "chaos"
    ]


def test_steps__exist() -> None:
    """What the steps run is there."""
    paths = {path for arguments in TESTS.values() for path in arguments if path.startswith("tests/")}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
