"""The child's side of a dialogue: a line with a command on stdin, a line with its figures on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

# Takes the words of the line, and returns figures.
Command = Callable[[Mapping[str, str]], Mapping[str, float]]


def serve(commands: Mapping[str, Command]) -> None:
    """Run commands until stdin ends. An exception ends the program, and its traceback goes to stderr."""
    for line in sys.stdin:
        name, *words = line.split()
        figures = commands[name](dict(word.split("=", 1) for word in words))
        print("ok", *(f"{name}={value!r}" for name, value in figures.items()), flush=True)
