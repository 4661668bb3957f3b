"""A znode: its data, its access control list, and its Stat."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from .acl import AclEntry

STAT = struct.Struct("!qqqqiiiqiiq")
CONTAINER_OWNER = -(2**63)
TTL_MARK = 0xFF
TTL_MASK = 0x0000_00FF_FFFF_FFFF
MAX_TTL = TTL_MASK


class NodeKind(Enum):
    """What ends a node besides a delete; encoded in the field of the owner."""

    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    CONTAINER = "container"
    TTL = "ttl"


def ttl_owner(milliseconds: int) -> int:
    """Return the owner that encodes a time to live."""
    return (TTL_MARK << 56 | milliseconds) - 2**64


@dataclass
class Znode:
    """One node of a tree; times are milliseconds since 1970, as on the wire.

    ``creations`` counts all children ever created, in 32 bits: it is the next sequence number.
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
    acl: tuple[AclEntry, ...]
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
    def new(cls, data: bytes | None, acl: tuple[AclEntry, ...], owner: int, zxid: int, now: int) -> Znode:
        """Return a node in the state after its creation."""
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
    def kind(self) -> NodeKind:
        """What ends this node besides a delete."""
        if self.owner == 0:
            return NodeKind.PERSISTENT
        if self.owner == CONTAINER_OWNER:
            return NodeKind.CONTAINER
        if self.owner >> 56 & 0xFF == TTL_MARK:
            return NodeKind.TTL
        return NodeKind.EPHEMERAL

    @property
    def time_to_live(self) -> int:
        """The time to live of a TTL node, in milliseconds."""
        return self.owner & TTL_MASK

    def stat(self) -> bytes:
        """Return the encoded Stat; its cversion counts creations and deletions of children."""
        children = len(self.children)
        return STAT.pack(
            self.created_zxid,
            self.modified_zxid,
            self.created_at,
            self.changed_at,
            self.version,
            signed32(self.creations * 2 - children),
            self.acl_version,
            # Only the session of an ephemeral node is shown; containers and TTL nodes show 0.
            self.owner if self.kind is NodeKind.EPHEMERAL else 0,
            len(self.data or b""),
            children,
            self.children_zxid,
        )

    def copy(self) -> Znode:
        """Return an independent copy."""
        return Znode(
            **{
                **{name: getattr(self, name) for name in self.__slots__},
                "children": dict(self.children),
            }
        )


def signed32(number: int) -> int:
    """Return a number reduced to 32 bits with a sign, like Java's int."""
    return (number + 2**31) % 2**32 - 2**31
