"""The doctor: examines everything that the locks of an alias depend on, and says what to do about each finding.

It changes nothing, except that it acquires and releases a lock of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured

from django_zklock.connections import connections
from django_zklock.doctor import configuration, ensemble, roundtrip
from django_zklock.doctor.finding import LEVELS, Finding, Level
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.ops.ensemble import servers
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import four_letter

__all__ = ["LEVELS", "Finding", "Level", "run"]


def run(alias: str) -> Iterator[Finding]:
    """Examine everything that the locks of ``alias`` depend on, and yield each finding as soon as it is known.

    Takes at most twice CONNECT_TIMEOUT plus about 3 seconds, even if ZooKeeper or Celery's broker never answers. Raises
    nothing: a fault is a finding. No text contains control characters.
    """
    for finding in _run(alias):
        yield replace(
            finding,
            subject=escape_controls(finding.subject),
            found=escape_controls(finding.found),
            advice=escape_controls(finding.advice),
        )


def _run(alias: str) -> Iterator[Finding]:
    try:
        pool = connections[alias]
        four_letter.addresses(pool.options.connection.hosts)
    except (ImproperlyConfigured, ValueError) as error:
        yield configuration.unreadable(alias, error)
        yield from configuration.run_system_checks()
        return
    yield configuration.readable(alias, pool.options)
    yield from configuration.run_system_checks()
    yield from _examine_ensemble(pool)
    # Like the app's ready(): a project that uses Celery has imported it before this point.
    if "celery" in sys.modules:
        from django_zklock.doctor import celery

        yield from celery.examine(alias, pool.options.connection.session_timeout)


def _examine_ensemble(pool: Pool) -> Iterator[Finding]:
    options = pool.options
    found = servers(options.connection, timeout=options.connect_timeout)
    yield from ensemble.examine_servers(found, options.connection)
    # This connects if no session of the pool is connected yet.
    yield from roundtrip.examine(pool)
    connected = next((session for session in pool.sessions() if session.connected), None)
    yield from ensemble.examine_sessions(pool, connected, found)
    yield from configuration.examine_security(options, connected)
