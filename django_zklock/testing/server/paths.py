"""The paths that ZooKeeper accepts, after its ``PathUtils``."""

from __future__ import annotations

import re

from .protocol import Code, RefusedError

# Java checks UTF-16 characters: a code point above U+FFFF is encoded as surrogates, which are forbidden.
_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
SYSTEM = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})


def check(path: str | None) -> str:
    """Return the path if a node can have it; otherwise raise RefusedError(BAD_ARGUMENTS)."""
    if path == "/":
        return path
    if path is None or not path.startswith("/") or _FORBIDDEN.search(path):
        raise RefusedError(Code.BAD_ARGUMENTS)
    if any(name in {"", ".", ".."} for name in path[1:].split("/")):
        raise RefusedError(Code.BAD_ARGUMENTS)
    return path


def canonical(path: str) -> str:
    """Return the path that a read uses: an empty path is the root."""
    return path or "/"
