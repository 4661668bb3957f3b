"""A contestant in Python: ``python -m benchmarks.peers.clients.locks NAME``.

It answers three commands: ``open`` connects the contenders, ``run`` lets them work, ``close`` disconnects them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module

from benchmarks.peers.clients.crew import Crew, open_crew
from benchmarks.peers.clients.dialogue import serve
from benchmarks.peers.clients.recipe import Recipe
from benchmarks.peers.load import Load

# By the contestant's name; each module has a recipe `connect`.
MODULES = {
    "ours": "ours",
    "kazoo": "kazoo_recipes",
    "redis-py": "redis_py",
    "python-redis-lock": "python_redis_lock",
    "raw": "raw_socket",
}


class Client:
    """The state between two commands."""

    def __init__(self, recipe: Recipe) -> None:
        """Be without a connection."""
        self._recipe = recipe
        self._opened = ExitStack()
        self._crew: Crew | None = None

    def open(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Connect the contenders of a load and warm them up."""
        self._crew = self._opened.enter_context(open_crew(Load.parse(words), self._recipe))
        return {}

    def run(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Let the contenders work for some seconds, from a moment of the monotonic clock."""
        assert self._crew is not None
        start = float(words["start"])
        return asdict(self._crew.run(start, start + float(words["seconds"])))

    def close(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Disconnect."""
        self._opened.close()
        self._crew = None
        return {}


def main(name: str) -> None:
    """Serve as the contestant of that name."""
    module = import_module(f"benchmarks.peers.clients.{MODULES[name]}")
    client = Client(module.connect)
    serve({"open": client.open, "run": client.run, "close": client.close})


if __name__ == "__main__":
    main(*sys.argv[1:])
