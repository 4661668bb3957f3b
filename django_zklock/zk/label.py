"""What is written on a line itself: its key, where the name does not tell it, and who was last removed from it.

Until somebody is removed it is the bare key, or nothing. Anybody with access to ZooKeeper can write anything there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

MAX_BYTES = 4096
MAX_REASON = 512
MAX_NODE = 256
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The name of a node that was taken out of the line, and why."""

    node: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Label:
    """The key, as far as the label tells it, and the last removal."""

    key: str = ""
    removal: Removal | None = None

    def encode(self) -> bytes:
        """Give the data for the line; the reason is cut to 512 characters."""
        if self.removal is None:
            return self.key.encode()
        removed = {"node": self.removal.node, "why": self.removal.why[:MAX_REASON]}
        facts = {"v": VERSION, "key": self.key, "removed": removed}
        return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def decode(data: bytes) -> Label | None:
    """Read the data of a line; ``None`` for what is longer than any of ours."""
    if len(data) > MAX_BYTES:
        return None
    text = data.decode(errors="replace")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return Label(key=text)
    if not isinstance(facts, dict) or facts.get("v") != VERSION or not isinstance(facts.get("key"), str):
        return Label(key=text)
    return Label(key=facts["key"], removal=_removal(facts.get("removed")))


def _removal(facts: object) -> Removal | None:
    if not isinstance(facts, dict):
        return None
    node, why = facts.get("node"), facts.get("why")
    if not (isinstance(node, str) and isinstance(why, str) and why):
        return None
    return Removal(node=node[:MAX_NODE], why=why[:MAX_REASON])
