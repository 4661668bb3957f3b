"""The numbers of ZooKeeper's client protocol: requests, errors, events, permissions.

They are those of ``ZooDefs`` and ``KeeperException.Code`` of ZooKeeper 3.8.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Opcode(IntEnum):
    """What a request asks for; ``NOTIFICATION`` is no request but what a watch sends."""

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
        """Find an opcode by its name, ``"getData"`` or ``"GET_DATA"``; raise ValueError with those there are."""
        if isinstance(name, Opcode):
            return name
        plain = name.replace("_", "").lower()
        for opcode in cls:
            if opcode.name.replace("_", "").lower() == plain:
                return opcode
        known = ", ".join(opcode.label for opcode in cls)
        msg = f"there is no request {name!r}; there are {known}"
        raise ValueError(msg)

    @property
    def label(self) -> str:
        """The name as ZooKeeper writes it, ``"getData"``."""
        first, *rest = self.name.lower().split("_")
        return first + "".join(word.capitalize() for word in rest)


class Code(IntEnum):
    """What went wrong; nought is nothing."""

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
    """A request cannot be done, for the reason of ``code``."""

    def __init__(self, code: Code) -> None:
        """Keep the code that the client will see."""
        super().__init__(code.name)
        self.code = code


class EventType(IntEnum):
    """What a watch tells."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchKind(Enum):
    """How long a watch lasts, and what it sees."""

    STANDARD = "standard"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


class Perms(IntFlag):
    """What an entry of an ACL permits."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


# Special xids, by which a client tells these replies from those to its own requests.
NOTIFICATION_XID = -1
PING_XID = -2
AUTH_XID = -4
SET_WATCHES_XID = -8
