"""The doctor: examines everything that the locks of an alias depend on, and says what to do about each finding.

It changes nothing, except that it acquires and releases a lock of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured

from django_zklock.connections import connections
from django_zklock.doctor import configuration, ensemble, roundtrip
from django_zklock.doctor.finding import LEVELS, Examination, Finding, Level
from django_zklock.zk.ops.ensemble import servers

__all__ = ["LEVELS", "Finding", "Level", "run"]


def run(alias: str) -> Iterator[Finding]:
    """Examine everything that the locks of ``alias`` depend on, and yield each finding as soon as it is known.

    Takes at most twice CONNECT_TIMEOUT plus about 3 seconds, even if ZooKeeper or Celery's broker never answers. Raises
    nothing: a fault is a finding. No text contains control characters.
    """
    examined = Examination("settings.readable", alias)
    try:
        pool = connections[alias]
        pool.options.connection.addresses()
    except (ImproperlyConfigured, ValueError) as error:
        advice = "Correct ZKLOCK; the reference of the settings says what it may contain."
        yield examined.error(str(error), advice)
        yield from configuration.run_system_checks()
        return
    options = pool.options
    yield examined.ok(f"locks are under {options.root} at {options.connection.hosts}")
    yield from configuration.run_system_checks()
    yield from configuration.examine_kazoo()
    found = servers(options.connection, timeout=options.connect_timeout)
    yield from ensemble.examine_servers(found, options.connection)
    # This connects if no session of the pool is connected yet.
    yield from roundtrip.examine(pool)
    connected = next((session for session in pool.sessions() if session.connected), None)
    yield from ensemble.examine_sessions(pool, connected, found)
    yield from configuration.examine_security(options, connected)
    # Like the app's ready(): a project that uses Celery has imported it before this point.
    if "celery" in sys.modules:
        from django_zklock.doctor import celery

        yield from celery.examine(alias, options.connection.session_timeout)
