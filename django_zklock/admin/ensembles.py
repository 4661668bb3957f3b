"""The page of the ensembles: the servers of each alias, and the sessions of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from django_zklock.admin.reader import AliasReader, map_parallel
from django_zklock.connections import connections
from django_zklock.zk import formatting
from django_zklock.zk.ops import ensemble
from django_zklock.zk.ops.ensemble import Server
from django_zklock.zk.session import Session


@dataclass(frozen=True, kw_only=True)
class LocalSession:
    """A session of the process that answers this request. ``number`` is empty without a connection."""

    name: str
    number: str
    server: str
    timeout: float

    @classmethod
    def of(cls, session: Session) -> LocalSession:
        number = "" if session.id is None or not session.connected else f"0x{session.id:x}"
        return cls(name=session.name, number=number, server=session.server, timeout=session.timeout)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The servers of one alias, and this process's sessions with them."""

    alias: str
    servers: Sequence[Server] = ()
    sessions: Sequence[LocalSession] = ()
    error: str = ""


def read_ensembles(readers: Sequence[AliasReader]) -> list[Ensemble]:
    """Query the servers of all aliases in parallel, each alias within its ``CONNECT_TIMEOUT``."""
    return map_parallel(_read_ensemble, readers)


def _read_ensemble(reader: AliasReader) -> Ensemble:
    if reader.error:
        return Ensemble(alias=reader.alias, error=reader.error)
    try:
        pool = connections[reader.alias]
        servers = ensemble.servers(pool.options.connection, timeout=pool.options.connect_timeout)
    except (ImproperlyConfigured, ValueError) as error:
        return Ensemble(alias=reader.alias, error=formatting.escape_controls(str(error)))
    sessions = [*pool.sessions(), *filter(None, [pool.inspecting])]
    return Ensemble(alias=reader.alias, servers=servers, sessions=[LocalSession.of(session) for session in sessions])
