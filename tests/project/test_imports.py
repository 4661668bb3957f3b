"""What imports what outside of the package, whose layers are in setup.cfg."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLBOX = "tests.toolbox"
FOLDERS = sorted({path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*.py")})

pytestmark = pytest.mark.once


def imports(folder: str) -> Iterator[tuple[str, str]]:
    """Find each module that a file below the folder imports, with the file."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from ((str(path.relative_to(ROOT)), name) for name in names)


def is_in(name: str, *packages: str) -> bool:
    """Tell whether a module, or a name in it, is in one of the packages."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def test_toolbox__imports_none_of_its_users() -> None:
    """The toolbox imports neither other folders of the tests nor the benchmarks nor the demo."""
    demo = [path.stem for path in (ROOT / "testproject").glob("*.py")]
    found = list(imports("tests/toolbox"))
    assert any(is_in(name, TOOLBOX) for _, name in found)
    users = ("benchmarks", "tests", *demo)
    assert [each for each in found if is_in(each[1], *users) and not is_in(each[1], TOOLBOX)] == []


@pytest.mark.parametrize("folder", ["benchmarks", "testproject"])
def test_programs__import_the_toolbox_alone(folder: str) -> None:
    """Of the tests, the benchmarks and the demo import the toolbox, and nothing else."""
    found = [each for each in imports(folder) if is_in(each[1], "tests")]
    assert found
    assert [each for each in found if not is_in(each[1], TOOLBOX)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders__keep_to_themselves(folder: str) -> None:
    """Of the tests a folder imports itself and the toolbox; the benchmarks are imported by their own tests alone."""
    others = [f"tests.{other}" for other in FOLDERS if other not in {folder, "toolbox"}]
    if folder != "benchmarks":
        others.append("benchmarks")
    assert [each for each in imports(f"tests/{folder}") if is_in(each[1], *others)] == []
