"""A ZooKeeper for tests and laptops, with faults on demand. Never for production."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .faults import BlackHole, Fault, Faults
    from .network import Cut
    from .protocol import Opcode
    from .requestlog import LoggedRequest, RequestLog
    from .runner import SandboxRunner
    from .sandbox import Sandbox
    from .server import SessionInfo, ZooKeeperServer

# The module of each name, imported at the first use of the name: see the parent package.
_MODULES = {
    "BlackHole": "faults",
    "Cut": "network",
    "Fault": "faults",
    "Faults": "faults",
    "LoggedRequest": "requestlog",
    "Opcode": "protocol",
    "RequestLog": "requestlog",
    "Sandbox": "sandbox",
    "SandboxRunner": "runner",
    "SessionInfo": "server",
    "ZooKeeperServer": "server",
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
