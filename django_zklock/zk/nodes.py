"""The names of the nodes in a lock's line.

Ours are Apache Curator's names (``InterProcessMutex``, ``InterProcessReadWriteLock``, protection prefix
``_c_<guid>-``); kazoo's own (``<uuid>__lock__``, ``<uuid>__rlock__``) are honoured as contenders too.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

SEQUENCE_END = 2**31 - 1
# Orders by sequence are trusted only this far from the end of the 32-bit counter; beyond it ZooKeeper 3.6+
# hands out the same number again and again (ZOOKEEPER-2719 and the Programmer's Guide, "Sequence Nodes").
SEQUENCE_MARGIN = 2**20


class Kind(enum.Enum):
    """What a node in a line asks for."""

    EXCLUSIVE = "exclusive"
    WRITE = "write"
    READ = "read"
    LEASE = "lease"


_LABELS = {Kind.EXCLUSIVE: "lock-", Kind.WRITE: "__WRIT__", Kind.READ: "__READ__", Kind.LEASE: "lease-"}
_KINDS = {label: kind for kind, label in _LABELS.items()} | {
    "__lock__": Kind.EXCLUSIVE,
    "__rlock__": Kind.READ,
}
# Java's "%010d" counts the sign of a sequence that has wrapped.
_NAME = re.compile(
    r"(?:_c_(?P<guid>[0-9a-f-]{36})-)?(?P<label>lock-|lease-|__WRIT__|__READ__)(?P<sequence>\d{10}|-\d{9,10})"
    r"|(?P<uuid>[0-9a-f]{32})(?P<kazoo>__lock__|__rlock__)(?P<number>\d{10}|-\d{9,10})",
)


class Node(NamedTuple):
    """One node of a line, as its name tells it."""

    name: str
    kind: Kind
    guid: str
    sequence: int


def prefix(guid: str, kind: Kind) -> str:
    """Give the name of a node before ZooKeeper appends the sequence."""
    return f"_c_{guid}-{_LABELS[kind]}"


def parse(name: str) -> Node | None:
    """Read a node's name; ``None`` if it is not one of a lock recipe that we know."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    label = found["label"] or found["kazoo"]
    guid = found["guid"] or found["uuid"] or ""
    return Node(name, _KINDS[label], guid, int(found["sequence"] or found["number"]))


def parse_all(names: Iterable[str]) -> list[Node]:
    """Read the names that we know, in the order of their sequence."""
    return in_sequence(node for name in names if (node := parse(name)))


def in_sequence(line: Iterable[Node]) -> list[Node]:
    """Sort by sequence."""
    return sorted(line, key=attrgetter("sequence"))


def order_is_safe(line: Sequence[Node]) -> bool:
    """Whether the sequences of a sorted line alone tell who came first; if not, order by the creating transaction."""
    if not line:
        return True
    within = line[0].sequence >= 0 and line[-1].sequence < SEQUENCE_END - SEQUENCE_MARGIN
    return within and len({node.sequence for node in line}) == len(line)
