"""An initial snapshot for a real server, so that a test need not create two billion nodes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from tests.toolbox.protocol.jute import acl, buffer, integer, long, text

# The snapshot's ACL "world: all", and its number.
OPEN, READ_ONLY = -1, 1


def write(folder: Path, counted: Mapping[str, int]) -> None:
    """Let the server of this data folder start with these nodes, each with a next sequence number.

    The root counts them as created, as if clients had created them.
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
