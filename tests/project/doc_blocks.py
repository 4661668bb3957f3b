"""The code blocks and the shown outputs of the documents, and which test runs each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")))
    if "_build" not in path.parts
}
FENCE = re.compile(
    r"^(?:<!-- excerpt: (?P<excerpt>[^\n]+) -->\n)?(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (s|min|h|d)(?=[\s;,])"), "AGE"),
    (re.compile(r"_c_[0-9a-f-]+…?-(lock|__READ__|__WRIT__|lease)-\d{10}"), r"_c_GUID-\1-NUMBER"),
    (re.compile(r"\bworker [\w.-]+@[\w.-]+"), "worker NAME@HOST"),
    (re.compile(r"pid \d+ on [\w.-]+"), "pid PID on HOST"),
    (re.compile(r"(localhost/(127\.0\.0\.1|\[::1\])|zk\d/10\.0\.0\.\d+):\d+"), "ADDRESS"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+|zk1:2[12]81(,zk2:2[12]81,zk3:2[12]81)?"), "HOSTS"),
    # The ROOT of a test, before its number is masked.
    (re.compile(r"/test-\d+"), "/django_zklock"),
    (re.compile(r"(?<=token )\d+|\b\d{3,}\b"), "NUMBER"),
    (re.compile(r"[ \t]{2,}|\t"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
)


@dataclass(frozen=True)
class Block:
    """A code block; ``line`` is that of its first line in the page, ``excerpt`` is the reason not to run it."""

    page: str
    line: int
    language: str
    text: str
    excerpt: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What is typed at the prompt."""
        return re.findall(r"^\$ (.+)$", self.text, flags=re.MULTILINE)

    @property
    def output(self) -> str:
        """What is shown below the commands."""
        return re.sub(r"^\$ .+\n", "", self.text, flags=re.MULTILINE)


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the code blocks of a page in their order."""
    return [
        Block(page, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"], found["excerpt"])
        for found in FENCE.finditer(text)
        # A directive of MyST, such as a table of contents, is no code.
        if not found["language"].startswith("{")
    ]


BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]
_run: set[Block] = set()


def runs(page: str, *words: str, language: str = "") -> Callable[[Test], Test]:
    """Pass a test the ``blocks`` of a page that it runs: those that contain one of the words or have the language."""
    here = [block for block in BLOCKS if block.page == page and block.excerpt is None]
    chosen = [block for block in here if block.language == language] if language else []
    for word in words:
        found = [block for block in here if word in block.text]
        assert len(found) == 1, f"{len(found)} blocks of {page} contain {word!r}"
        chosen += found
    assert chosen, f"no block of {page} is in {language}"
    _run.update(chosen)
    return pytest.mark.parametrize("blocks", [chosen], ids=[page])


def neither_run_nor_marked(blocks: Iterable[Block] = BLOCKS) -> list[str]:
    """Return the places of the blocks that no test runs and that are not marked as an excerpt."""
    return [str(block) for block in blocks if block.excerpt is None and block not in _run]


def execute(blocks: Iterable[Block], names: dict[str, Any], *, hosts: str = "", module: str = "") -> dict[str, Any]:
    """Run blocks of Python one after the other in one namespace, and return it.

    ``hosts`` replaces ``zk1:2181``; ``module`` is the name of the module that the blocks are taken for.
    """
    for block in blocks:
        text = block.text.replace("zk1:2181", hosts) if hosts else block.text
        # Tasks of Celery and receivers of signals have the name of their module.
        names["__name__"] = module or f"{Path(block.page).stem}_{block.line}".replace("-", "_")
        # A traceback then names the line of the page.
        exec(compile("\n" * (block.line - 1) + text, str(ROOT / block.page), "exec"), names)
    return names


def masked(text: str) -> str:
    """Return a text with what differs from run to run replaced: times, ages, processes, node names, tokens, widths."""
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text.strip()
