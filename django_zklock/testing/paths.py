"""Which paths ZooKeeper takes, after its ``PathUtils``."""

from __future__ import annotations

import re

from .protocol import Code, RefusedError

# What Java sees as single characters of UTF-16: all beyond U+FFFF is made of surrogates, which are forbidden.
_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
SYSTEM = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})


def check(path: str | None) -> str:
    """Give the path if it may name a node, else raise RefusedError(BAD_ARGUMENTS)."""
    if path == "/":
        return path
    if path is None or not path.startswith("/") or _FORBIDDEN.search(path):
        raise RefusedError(Code.BAD_ARGUMENTS)
    if any(name in {"", ".", ".."} for name in path[1:].split("/")):
        raise RefusedError(Code.BAD_ARGUMENTS)
    return path


def canonical(path: str) -> str:
    """Give the path by which a read finds its node: an empty one is the root."""
    return path or "/"
