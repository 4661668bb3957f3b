"""A snapshot for a real server to begin with, so that a test need not create two thousand million nodes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from tests.testing.jute import acl, buffer, integer, long, text

# What a snapshot knows as "anyone may do all", and the number of the one ACL that this one brings along.
OPEN, READ_ONLY = -1, 1


def write(folder: Path, counted: Mapping[str, int]) -> None:
    """Have the server of this data folder begin with these nodes, each with a number for its next sequential child.

    The root counts them as created, so that it looks as if they had been.
    """
    content = (
        # Magic, format, database; no sessions; one ACL.
        b"ZKSN"
        + integer(2)
        + long(-1)
        + integer(0)
        + integer(1)
        + long(READ_ONLY)
        + acl(((1, "world", "anyone"),))
        + _node("", len(counted))
        + _node("/zookeeper")
        + _node("/zookeeper/config", access=READ_ONLY, access_version=-1)
        + _node("/zookeeper/quota")
        + b"".join(_node(path, number) for path, number in counted.items())
        + text("/")
    )
    folder = folder / "version-2"
    folder.mkdir()
    (folder / "snapshot.0").write_bytes(content + long(zlib.adler32(content)) + text("/"))


def _node(path: str, number: int = 0, *, access: int = OPEN, access_version: int = 0) -> bytes:
    zxids_and_times = long(0) * 4
    versions = integer(0) + integer(number) + integer(access_version)
    owner_and_pzxid = long(0) * 2
    return text(path) + buffer(b"") + long(access) + zxids_and_times + versions + owner_and_pzxid
