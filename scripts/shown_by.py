"""Which tests show what a section of the documents promises: those with the marker ``shows`` that names the section.

``python scripts/shown_by.py faults`` prints the tests of each section of that page, and ``faults#it-dies`` those of one
section, as pytest takes them. ``docs/conf.py`` adds them to the HTML, folded, at the end of each section.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_HEADING = re.compile(r"(#{1,6}) (.+)")
_FENCE = re.compile(r"(`{3,}|:{3,}|~{3,})(.*)")


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and Sphinx make it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@cache
def find_tests(root: Path = ROOT) -> Mapping[str, Sequence[str]]:
    """Return the ids of the tests that show each section, such as ``faults#it-dies``, by its name; sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.shows(" in text:
            for name, section in _marked(ast.parse(text)):
                found.setdefault(section, []).append(f"{file.relative_to(root).as_posix()}::{name}")
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.shows":
                    yield from ((node.name, ast.literal_eval(section)) for section in each.args)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the anchor of each section of a page in Markdown, and its lines; "" for what is before the first."""
    name, fence = "", ""
    lines: list[str] = []
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark is not None and not fence:
            fence = mark[1]
        elif mark is not None and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        heading = None if fence else _HEADING.fullmatch(line)
        if heading is not None:
            yield name, lines
            name, lines = anchor(heading[2]), []
        lines.append(line)
    yield name, lines


def with_tests(page: str, text: str, tests: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a page, by its name, with the tests that show a section at the end of it, folded."""
    parts = []
    for name, lines in sections(text):
        shown_by = tests.get(f"{page}#{name}", ())
        parts += lines
        if shown_by:
            items = [f"<li><code>{each}</code></li>" for each in shown_by]
            number = f"{len(items)} tests" if len(items) > 1 else "1 test"
            parts += ["", f"<details><summary>Shown by {number}</summary><ul>", *items, "</ul></details>", ""]
    return "\n".join(parts) + "\n"


def main(wanted: Sequence[str]) -> None:
    """Print the tests of pages and sections."""
    found = find_tests()
    if unknown := [each for each in wanted if not any(each in {name, name.partition("#")[0]} for name in found)]:
        sys.exit(f"no test shows {', '.join(unknown)}")
    chosen = [(name, test) for name in found for test in found[name] if {name, name.partition("#")[0]} & {*wanted}]
    for name, group in groupby(chosen, key=lambda each: each[0]):
        if name not in wanted:
            sys.stdout.write(f"# {name}\n")
        sys.stdout.writelines(f"{test}\n" for _name, test in group)


if __name__ == "__main__":
    main(sys.argv[1:])
