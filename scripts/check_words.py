"""Refuse words that the project does not use: ``python scripts/check_words.py [--summary] PATH...``.

The glossary is in ``docs/explanation/architecture.md``. Three things are checked in the Python files below each path:

- a docstring says "Return ...", "Wait ...", "Make ..." and does not begin with "Give" or "Have";
- in the package, no name that is bound (of a module, class, function, parameter, variable or attribute) contains a word
  of :data:`NAMES`, for which the field has another one;
- in the package, comments and docstrings speak of processes, nodes and callers as things, so not with a word of
  :data:`PRONOUNS`. What stands in backquotes is code and is not checked.

Words with other meanings ("line", "place", "entry") are left to the reader. The exit status is 1 if anything is found.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "django_zklock"
# A word that is not used in names -> the one that is.
NAMES = {
    **dict.fromkeys(["tenant", "watchman", "told", "tell", "tells", "news"], "listener, callback, notify, on_..."),
    **dict.fromkeys(["vigil", "lookout", "sight", "ear", "mouth"], "watch"),
    **dict.fromkeys(["look", "looks", "looked", "glance", "survey", "inquiry", "wondered"], "list, read, poll"),
    **dict.fromkeys(["hear", "hears", "heard", "say", "says", "said"], "receive, send, notify"),
    **dict.fromkeys(["alarm", "bell"], "event"),
    **dict.fromkeys(["claim", "stand", "stands", "standing", "crowd"], "contender"),
    **dict.fromkeys(["somebody", "nobody"], "holder, waiter, caller"),
    "board": "scoreboard",
    "errand": "call, script",
    "outlook": "plan",
    "patience": "timeout, deadline",
}
# Constants that are called so and no more.
CONSTANTS = {"MOST": "MAX_...", "TOGETHER": "MAX_...", "PORTION": "MAX_..."}
OPENINGS = re.compile(r"(Gives?|Have)\b")
PRONOUNS = re.compile(r"\b(who|whom|whoever|somebody|nobody)\b", re.IGNORECASE)
CODE = re.compile(r"``.*?``|`.*?`", re.DOTALL)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# (Path or its beginning, word) -> why it is used there. One that allows nothing is refused.
ALLOWED: dict[tuple[str, str], str] = {
    ("django_zklock/contrib/celery/", "claim"): "a process claims a run or a slot: the usual meaning, and no contender",
}


@dataclass(frozen=True, order=True)
class Finding:
    """A word that is not used, where it is, and what is wrong with it."""

    path: str
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def check(path: str, source: str) -> Iterator[Finding]:
    """Find all refused words in the text of one file; ``path`` is relative to the checkout."""
    tree = ast.parse(source)
    docstrings = list(docstrings_of(tree))
    for line, text in docstrings:
        if opening := OPENINGS.match(text):
            word = opening[1]
            yield Finding(path, line, word, f'a docstring begins with "{word}": say "Return", or what is done')
    if not path.startswith(f"{PACKAGE}/"):
        return
    for line, name in [(1, Path(path).stem), *bound_names(tree)]:
        for word in map(str.lower, WORD.findall(name)):
            if word in NAMES:
                yield Finding(path, line, word, f'"{word}" in the name {name}: say {NAMES[word]}')
        if name.lstrip("_") in CONSTANTS:
            yield Finding(path, line, name, f"the name {name}: say {CONSTANTS[name.lstrip('_')]}")
    for line, text in [*docstrings, *comments_of(source)]:
        plain = CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for found in PRONOUNS.finditer(plain):
            at = line + plain.count("\n", 0, found.start())
            yield Finding(path, at, found[1].lower(), f'"{found[1]}" in a comment or docstring: name the thing')


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find the docstrings of a file with the lines in which they begin."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                text = first.value.value
                if isinstance(text, str):
                    yield first.lineno, text


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    """Find the comments of a file with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find the names that a file gives to things; what it imports was named elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def without_allowed(
    findings: Iterable[Finding], allowed: dict[tuple[str, str], str]
) -> tuple[list[Finding], list[str]]:
    """Return the findings that nothing allows, and the allowances that allow nothing."""
    used = set()
    left = []
    for finding in findings:
        reasons = [key for key in allowed if finding.path.startswith(key[0]) and finding.word == key[1]]
        used.update(reasons)
        if not reasons:
            left.append(finding)
    return sorted(left), [
        f"{path} {word}: allowed, and not there" for path, word in allowed if (path, word) not in used
    ]


def main(arguments: list[str]) -> int:
    """Check the files below the given paths, print what is found, and return the exit status."""
    files = [file for path in arguments if path != "--summary" for file in sorted(Path(path).rglob("*.py"))]
    found = [each for file in files for each in check(file.as_posix(), file.read_text(encoding="utf-8"))]
    allowed = {key: why for key, why in ALLOWED.items() if any(file.as_posix().startswith(key[0]) for file in files)}
    left, unused = without_allowed(found, allowed)
    if "--summary" in arguments:
        for folder, count in sorted(Counter(str(Path(each.path).parent) for each in left).items()):
            sys.stdout.write(f"{count:5} {folder}\n")
    else:
        sys.stdout.writelines(f"{each}\n" for each in [*left, *unused])
    return 1 if left or unused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
