"""``python -m tests.weblate``: install Weblate into an environment of its own, and run its tests there.

It needs a package index. Weblate's requirements are exact, so they stay apart from those of this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from email import message_from_bytes
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "weblate"
TESTS = REPOSITORY / "tests" / "weblate" / "test_weblate.py"


def main(options: list[str]) -> int:
    """Return the exit code of pytest."""
    environment = CACHE / "environment"
    if not (environment / "ready").exists():
        install(environment)
        (environment / "ready").touch()
    # This package as it is now, whatever was installed.
    pip(environment, "install", "--editable", f"{REPOSITORY}[celery]")
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(TESTS), "-rP", *options],
        cwd=REPOSITORY,
        env={**os.environ, "ZKLOCK_WEBLATE": str(environment / "bin")},
        check=False,
    ).returncode


def install(environment: Path) -> None:
    """Install Weblate with its driver for PostgreSQL.

    Borg, a program for backups that no test runs, would have to be compiled: an empty package of its name and version
    takes its place.
    """
    venv.create(environment, with_pip=True, clear=True)
    # Its requirements are in the wheel.
    pip(environment, "download", "--no-deps", "--only-binary", "weblate", "--dest", str(CACHE), "weblate")
    wheel = max(CACHE.glob("weblate-*.whl"), key=lambda path: path.stat().st_mtime)
    stub = CACHE / "borgbackup"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "pyproject.toml").write_text(
        dedent(f"""
            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"
            [project]
            name = "borgbackup"
            version = "{version_of_borg(wheel)}"
            [tool.setuptools]
            py-modules = []
            """)
    )
    pip(environment, "install", str(stub))
    pip(environment, "install", f"{wheel}[postgres]")


def version_of_borg(wheel: Path) -> str:
    """Return the version that a wheel of Weblate requires."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    (version,) = (each.partition("==")[2] for each in required if each.startswith("borgbackup=="))
    return version


def pip(environment: Path, *words: str) -> None:
    """Run pip of an environment."""
    program = str(environment / "bin" / "python")
    subprocess.run([program, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
