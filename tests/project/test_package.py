"""What users install: the wheel and the sdist."""

from __future__ import annotations

import configparser
import email
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "django_zklock"

pytestmark = [
    pytest.mark.packaging,
    # In one process: two builds at once would write into the same folder.
    pytest.mark.xdist_group("packaging"),
    # The first test pays for the build, the install and the downloads of both.
    pytest.mark.timeout(600),
]


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False)
    assert finished.returncode == 0, f"{command}:\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist from the tree and the wheel from the sdist, as a release does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Distributions(wheel, sdist)


@pytest.fixture(scope="session")
def empty_environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel where nothing else is; the path of that environment's Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    # Hardly any of it is imported, so it need not be compiled.
    install = ("install", "--quiet", "--no-compile", distributions.wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    return python


def source_files() -> set[str]:
    """Return what the wheel must contain: all of the package's tree but what Python leaves behind."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel__has_every_file_of_the_package(distributions: Distributions) -> None:
    """Templates, static files, translations, migrations, py.typed: the wheel is the tree, no less or more."""
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    assert names == source_files()


def test_wheel__has_what_django_looks_for() -> None:
    """The parts without which an installed package fails silently are there to be packed."""
    assert {"django_zklock/py.typed", "django_zklock/migrations/__init__.py"} <= source_files()
    assert any(name.startswith("django_zklock/migrations/0001") for name in source_files())


def test_sdist__has_the_package_and_what_builds_it(distributions: Distributions) -> None:
    """The sdist has the package, the license and what builds it, and no tests, which would lack most of their files."""
    with tarfile.open(distributions.sdist) as sdist:
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    made = {name for name in names if name.startswith("django_zklock.egg-info/")} | {"PKG-INFO"}
    build = {"LICENSE", "CHANGELOG.md", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert names - made == source_files() | build


@pytest.fixture(scope="session")
def metadata(distributions: Distributions) -> Message:
    """Return what a package index knows."""
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_metadata__description_without_broken_links(metadata: Message) -> None:
    """The description is the README; it has no link and no picture that leads into the repository."""
    text, readme = str(metadata.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    inside = r"\((?!http|#)[^)]*\)"
    assert re.findall(rf"\]{inside}", text) == []
    # The words of a link stay.
    words = re.findall(rf"(?<!!)\[([^\]]+)\]{inside}", readme)
    assert words
    assert [each for each in words if each not in text] == []
    assert re.findall(r"^#+ .*", text, re.MULTILINE) == re.findall(r"^#+ .*", readme, re.MULTILINE)
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_metadata__versions_that_are_tested(metadata: Message) -> None:
    """The classifiers name the versions of Django that the matrix has."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    tested = {
        f"{major}.{minor}" for major, minor in re.findall(r"^django(\d)(\d):", setup["testenv"]["deps"], re.MULTILINE)
    }
    named = re.findall(r"Framework :: Django :: (\S+)", "\n".join(metadata.get_all("Classifier", [])))
    assert set(named) == tested


def test_install__imports_in_an_empty_environment(empty_environment: Path) -> None:
    """The wheel brings its requirements, and no name needs Celery, nor settings, but for a model and its updates."""
    code = (
        "import django_zklock, importlib.util as u; "
        "models = {'FencedModel', 'afenced_update', 'fenced_update'}; "
        "[getattr(django_zklock, name) for name in {*django_zklock.__all__} - models]; "
        "print(django_zklock.__file__, u.find_spec('celery'))"
    )
    # -I: not from the working directory nor from PYTHONPATH.
    file, celery = run(empty_environment, "-I", "-c", code, cwd=empty_environment.parent).split()
    assert Path(file).is_relative_to(empty_environment.parent.parent)
    assert celery == "None"


def test_install__pytest_finds_the_plugin(empty_environment: Path) -> None:
    """The installed package names its plugin as pytest looks for it."""
    code = "from importlib.metadata import entry_points; print(*entry_points(group='pytest11'))"
    found = run(empty_environment, "-I", "-c", code, cwd=empty_environment.parent).strip()
    assert found == "EntryPoint(name='zklock', value='django_zklock.testing.plugin', group='pytest11')"


def test_install__has_the_version_of_setup_cfg(empty_environment: Path, distributions: Distributions) -> None:
    """The number in setup.cfg is the one that an installed package tells."""
    code = "from importlib.metadata import version; print(version('django-zklock'))"
    version = run(empty_environment, "-I", "-c", code, cwd=empty_environment.parent).strip()
    assert distributions.wheel.name.startswith(f"django_zklock-{version}-")
