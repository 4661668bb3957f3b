"""A znode: data, who may use it, and what its Stat tells."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from .acl import Entry

STAT = struct.Struct("!qqqqiiiqiiq")
CONTAINER_OWNER = -(2**63)
TTL_MARK = 0xFF
TTL_MASK = 0x0000_00FF_FFFF_FFFF
MAX_TTL = TTL_MASK


class Kind(Enum):
    """What ends a node besides a delete; the server keeps it in the field of the owner."""

    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    CONTAINER = "container"
    TTL = "ttl"


def ttl_owner(milliseconds: int) -> int:
    """Give what stands for a time to live in the field of the owner."""
    return (TTL_MARK << 56 | milliseconds) - 2**64


@dataclass
class Znode:
    """One node of a tree; times are milliseconds since 1970, as on the wire.

    ``creations`` counts the children ever created, in 32 bits: it gives sequences their number.
    """

    __slots__ = (
        "acl",
        "acl_version",
        "changed_at",
        "children",
        "children_zxid",
        "created_at",
        "created_zxid",
        "creations",
        "data",
        "modified_zxid",
        "owner",
        "version",
    )

    data: bytes | None
    acl: tuple[Entry, ...]
    owner: int
    created_zxid: int
    modified_zxid: int
    children_zxid: int
    created_at: int
    changed_at: int
    version: int
    creations: int
    acl_version: int
    children: dict[str, None]

    @classmethod
    def new(cls, data: bytes | None, acl: tuple[Entry, ...], owner: int, zxid: int, now: int) -> Znode:
        """Make a node as a create does."""
        return cls(
            data=data,
            acl=acl,
            owner=owner,
            created_zxid=zxid,
            modified_zxid=zxid,
            children_zxid=zxid,
            created_at=now,
            changed_at=now,
            version=0,
            creations=0,
            acl_version=0,
            children={},
        )

    @property
    def kind(self) -> Kind:
        """What ends this node."""
        if self.owner == 0:
            return Kind.PERSISTENT
        if self.owner == CONTAINER_OWNER:
            return Kind.CONTAINER
        if self.owner >> 56 & 0xFF == TTL_MARK:
            return Kind.TTL
        return Kind.EPHEMERAL

    @property
    def time_to_live(self) -> int:
        """Milliseconds, of a TTL node."""
        return self.owner & TTL_MASK

    def stat(self) -> bytes:
        """Encode the Stat, whose cversion counts the creations and the deletions of children."""
        children = len(self.children)
        return STAT.pack(
            self.created_zxid,
            self.modified_zxid,
            self.created_at,
            self.changed_at,
            self.version,
            signed32(self.creations * 2 - children),
            self.acl_version,
            # Only a session is shown: of the other kinds the server keeps to itself how they end.
            self.owner if self.kind is Kind.EPHEMERAL else 0,
            len(self.data or b""),
            children,
            self.children_zxid,
        )

    def copy(self) -> Znode:
        """Copy the node, so that the two can change apart."""
        return Znode(
            **{
                **{name: getattr(self, name) for name in self.__slots__},
                "children": dict(self.children),
            }
        )


def signed32(number: int) -> int:
    """Cut a number to 32 bits with a sign, as Java's int does."""
    return (number + 2**31) % 2**32 - 2**31
