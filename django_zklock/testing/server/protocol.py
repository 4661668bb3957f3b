"""The numbers of ZooKeeper's client protocol: requests, errors, events, permissions.

They are those of ``ZooDefs`` and ``KeeperException.Code`` of ZooKeeper 3.8.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Opcode(IntEnum):
    """The kind of a request; ``NOTIFICATION`` is the event of a watch, not a request."""

    NOTIFICATION = 0
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CONNECT = -10
    CLOSE = -11
    ERROR = -1

    @classmethod
    def named(cls, name: str | Opcode) -> Opcode:
        """Return an opcode by its name, ``"getData"`` or ``"GET_DATA"``; raise ValueError with all names."""
        if isinstance(name, Opcode):
            return name
        plain = name.replace("_", "").lower()
        for opcode in cls:
            if opcode.name.replace("_", "").lower() == plain:
                return opcode
        known = ", ".join(opcode.label for opcode in cls)
        msg = f"unknown request {name!r}; the requests are {known}"
        raise ValueError(msg)

    @property
    def label(self) -> str:
        """The name as ZooKeeper writes it, ``"getData"``."""
        first, *rest = self.name.lower().split("_")
        return first + "".join(word.capitalize() for word in rest)


class Code(IntEnum):
    """The error in a reply; 0 is success."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123


class RefusedError(Exception):
    """A request is refused with the error ``code``."""

    def __init__(self, code: Code) -> None:
        """Keep the code for the reply."""
        super().__init__(code.name)
        self.code = code


class EventType(IntEnum):
    """The type of the event of a watch."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchKind(Enum):
    """Whether a watch is one-time, persistent, or persistent for a subtree."""

    STANDARD = "standard"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


class Perms(IntFlag):
    """The permissions of an entry of an access control list."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


# Special xids, by which a client distinguishes these replies from those to its numbered requests.
NOTIFICATION_XID = -1
PING_XID = -2
AUTH_XID = -4
SET_WATCHES_XID = -8
