"""A ZooKeeper for tests and laptops, with faults on demand. Never for production."""

from __future__ import annotations

from .faults import BlackHole, Fault, Faults
from .network import Cut
from .protocol import Opcode
from .requestlog import LoggedRequest, RequestLog
from .sandbox import Sandbox
from .server import SessionInfo, ZooKeeperServer

__all__ = [
    "BlackHole",
    "Cut",
    "Fault",
    "Faults",
    "LoggedRequest",
    "Opcode",
    "RequestLog",
    "Sandbox",
    "SessionInfo",
    "ZooKeeperServer",
]
