"""A ZooKeeper for tests and laptops, with faults on demand. Never for production."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runner import SandboxRunner
    from .sandbox import Sandbox
    from .server.faults import BlackHole, Fault, Faults
    from .server.network import Cut
    from .server.protocol import Opcode
    from .server.requestlog import LoggedRequest, RequestLog
    from .server.server import SessionInfo, ZooKeeperServer

# The module of each name, imported at the first use of the name: see the parent package.
_MODULES = {
    "BlackHole": "server.faults",
    "Cut": "server.network",
    "Fault": "server.faults",
    "Faults": "server.faults",
    "LoggedRequest": "server.requestlog",
    "Opcode": "server.protocol",
    "RequestLog": "server.requestlog",
    "Sandbox": "sandbox",
    "SandboxRunner": "runner",
    "SessionInfo": "server.server",
    "ZooKeeperServer": "server.server",
}

__all__ = [
    "BlackHole",
    "Cut",
    "Fault",
    "Faults",
    "LoggedRequest",
    "Opcode",
    "RequestLog",
    "Sandbox",
    "SandboxRunner",
    "SessionInfo",
    "ZooKeeperServer",
]


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
