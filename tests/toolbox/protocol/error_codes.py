"""What every error code of ZooKeeper 3.6 to 3.9 means to a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# No version has it.
UNKNOWN = -4711


@dataclass(frozen=True)
class Meaning:
    """The name that messages have, and what becomes of the request, the connection and the session."""

    name: str
    kind: Literal["passing", "final", "connection", "session"]


def passing(name: str) -> Meaning:
    return Meaning(name, "passing")


def final(name: str) -> Meaning:
    return Meaning(name, "final")


def of_connection(name: str) -> Meaning:
    return Meaning(name, "connection")


# All of ``KeeperException.Code``, and one of a later version.
CODES_OF_ZOOKEEPER = {
    -1: passing("SystemZookeeperError()"),
    -2: passing("RuntimeInconsistency()"),
    -3: passing("DataInconsistency()"),
    -4: of_connection("ConnectionLoss()"),
    -5: passing("MarshallingError()"),
    -6: Meaning("ZooKeeper 3.6 or newer is required", "session"),
    -7: passing("OperationTimeoutError()"),
    -8: final("BadArgumentsError()"),
    -12: passing("UnknownSessionError()"),
    -13: passing("NewConfigNoQuorumError()"),
    -14: passing("ReconfigInProcessError()"),
    -100: passing("APIError()"),
    -101: final("NoNodeError()"),
    -102: final("NoAuthError()"),
    -103: final("BadVersionError()"),
    -108: final("NoChildrenForEphemeralsError()"),
    -110: final("NodeExistsError()"),
    -111: final("NotEmptyError()"),
    -112: of_connection("SessionExpiredError()"),
    -113: final("InvalidCallbackError()"),
    -114: final("InvalidACLError()"),
    -115: final("AuthFailedError()"),
    -118: of_connection("SessionMovedError()"),
    -119: passing("NotReadOnlyCallError()"),
    -120: final("EphemeralOnLocalSessionError()"),
    -121: final("NoWatcherError()"),
    -122: passing("RequestTimeoutError()"),
    -123: final("ReconfigDisabledError()"),
    -124: Meaning("authentication was refused", "session"),
    -125: passing("QuotaExceededError()"),
    -127: passing("ThrottledOpError()"),
    UNKNOWN: passing('KazooException("ZooKeeper\'s error -4711")'),
}
