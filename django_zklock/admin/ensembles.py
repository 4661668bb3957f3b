"""The page of the ensembles: the servers of each alias, and the sessions of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_zklock.admin.reader import AliasReader
from django_zklock.connections import connections
from django_zklock.zk import formatting
from django_zklock.zk.ops import ensemble
from django_zklock.zk.ops.search import map_parallel
from django_zklock.zk.session import Session


def read_ensembles(readers: Sequence[AliasReader]) -> list[dict[str, Any]]:
    """Query the servers of all aliases in parallel, each alias within its ``CONNECT_TIMEOUT``.

    Return the variables of the template for each: with ``error``, or with the servers and this process's sessions.
    """
    return map_parallel(_read_ensemble, readers)


def _read_ensemble(reader: AliasReader) -> dict[str, Any]:
    found = {"alias": reader.alias, "error": reader.error}
    if reader.error:
        return found
    try:
        pool = connections[reader.alias]
        servers = ensemble.servers(pool.options.connection, timeout=pool.options.connect_timeout)
    except (ImproperlyConfigured, ValueError) as error:
        return found | {"error": formatting.escape_controls(str(error))}
    sessions = [*pool.sessions(), *filter(None, [pool.inspecting])]
    return found | {"servers": servers, "sessions": [_describe(session) for session in sessions]}


def _describe(session: Session) -> dict[str, Any]:
    number = "" if session.id is None or not session.connected else f"0x{session.id:x}"
    return {"name": session.name, "number": number, "server": session.wire.server, "timeout": session.timeout}
