"""The page of log events has each event of the code, with its logger, and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import django_zklock
from tests.project.reference_pages import sections

PACKAGE = Path(django_zklock.__file__).parent
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
PREFIX = "event="
# A level that is computed is not compared.
LEVELS = {"debug", "info", "warning", "error", "exception"}


def loggers_of(tree: ast.Module) -> dict[str, str]:
    """Return the names of the loggers of a module, by variable."""
    return {
        node.targets[0].id: node.value.args[0].value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and node.value.args
        and isinstance(node.value.args[0], ast.Constant)
        and isinstance(node.value.args[0].value, str)
        and node.value.args[0].value.startswith("django_zklock.")
    }


def texts(node: ast.AST) -> Iterator[str]:
    """Return the texts below a node that begin with an event."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith(PREFIX):
            yield each.value


def events() -> set[tuple[str, str]]:
    """Return the logger and the name of each event of the package.

    In a module with two loggers, the call that has the text names the logger.
    """
    found = set()
    for tree in TREES:
        loggers = loggers_of(tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            used = {
                node.value.id
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in loggers
            }
            for text in texts(function):
                assert len(used) == 1, f"{function.name} has {text!r} and the loggers {used}"
                (logger,) = used
                found.add((loggers[logger], text.removeprefix(PREFIX).split()[0]))
    return found


# The levels of each row of the page, by the logger and the name of the event.
ROWS = {
    (logger, line.split("`")[1]): line.split("|")[2]
    for logger, text in sections("log-events.md").items()
    for line in text.splitlines()
    if line.startswith("| `")
}


def test_events__are_those_of_the_code() -> None:
    """An operator's search for an event of a log finds it on the page, below its logger."""
    assert ROWS.keys() == events()


def test_texts__have_an_event() -> None:
    """No event is outside of a function, where :func:`events` would miss it."""
    every = {text.removeprefix(PREFIX).split()[0] for tree in TREES for text in texts(tree)}
    assert every == {name for _logger, name in events()}


def written_levels() -> dict[tuple[str, str], set[str]]:
    """Return the levels of the calls that log each event, by its logger and name."""
    levels: dict[tuple[str, str], set[str]] = {}
    for tree in TREES:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS:
                names = [text.removeprefix(PREFIX).split()[0] for each in call.args[:1] for text in texts(each)]
                for logger, name in product(loggers_of(tree).values(), names):
                    levels.setdefault((logger, name), set()).add(call.func.attr.upper())
    return levels


def test_levels() -> None:
    """The page names the levels of each event."""
    levels = written_levels()
    wrong = [
        (*event, level) for event, row in ROWS.items() for level in levels.get(event, ()) if f"`{level}`" not in row
    ]
    assert len(levels) > len(ROWS) / 2
    assert wrong == []
