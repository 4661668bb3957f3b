"""What is known of the ensembles behind the locks, and of this process's sessions there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.core.exceptions import ImproperlyConfigured

from django_zklock.admin.source import Source
from django_zklock.connections import connections
from django_zklock.together import at_once
from django_zklock.zk import display
from django_zklock.zk.inspection import ensemble
from django_zklock.zk.inspection.ensemble import Server
from django_zklock.zk.session import Session


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A session of the process that answers this request. Its number is empty while there is no connection."""

    name: str
    number: str
    server: str
    timeout: float

    @classmethod
    def of(cls, session: Session) -> Presence:
        number = "" if session.id is None or not session.connected else f"0x{session.id:x}"
        return cls(name=session.name, number=number, server=session.server, timeout=session.timeout)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """One alias: its servers as they tell of themselves, and the sessions of this process there."""

    alias: str
    servers: Sequence[Server] = ()
    sessions: Sequence[Presence] = ()
    problem: str = ""


def ensembles(sources: Sequence[Source]) -> list[Ensemble]:
    """Ask all servers of all aliases at once, each within its ``CONNECT_TIMEOUT``."""
    return at_once([partial(_ensemble, source) for source in sources])


def _ensemble(source: Source) -> Ensemble:
    if source.problem:
        return Ensemble(alias=source.alias, problem=source.problem)
    try:
        pool = connections[source.alias]
        servers = ensemble.servers(pool.options.connection, timeout=pool.options.connect_timeout)
    except (ImproperlyConfigured, ValueError) as error:
        return Ensemble(alias=source.alias, problem=display.visible(str(error)))
    return Ensemble(alias=source.alias, servers=servers, sessions=[Presence.of(each) for each in pool.sessions()])
