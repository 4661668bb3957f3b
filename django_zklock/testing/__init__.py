"""A ZooKeeper for tests and laptops, with faults on demand. Never for production."""

from __future__ import annotations

from .faults import Fault, Faults
from .network import Cut
from .protocol import Opcode
from .requestlog import LoggedRequest, RequestLog
from .server import SessionInfo, ZooKeeperServer

__all__ = ["Cut", "Fault", "Faults", "LoggedRequest", "Opcode", "RequestLog", "SessionInfo", "ZooKeeperServer"]
