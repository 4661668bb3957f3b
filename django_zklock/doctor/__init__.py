"""What ails the locks of an alias: everything around them is looked at, and each finding says what to do.

Nothing is changed, but for a lock of its own that the doctor takes and gives back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured

from django_zklock.connections import connections
from django_zklock.doctor import quorum, security, session, settings, trial
from django_zklock.findings import LEVELS, Finding, Level
from django_zklock.zk.display import visible
from django_zklock.zk.inspection import ensemble
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import words

__all__ = ["LEVELS", "Finding", "Level", "examine"]


def examine(alias: str) -> Iterator[Finding]:
    """Look at everything that the locks of ``alias`` depend on, and give the findings as they become known.

    Ends within twice CONNECT_TIMEOUT and some 3 seconds, however silent ZooKeeper and Celery's broker are. Raises
    nothing: that something is wrong or away is a finding. All texts are harmless to terminals.
    """
    for finding in _examine(alias):
        yield replace(
            finding,
            subject=visible(finding.subject),
            found=visible(finding.found),
            advice=visible(finding.advice),
        )


def _examine(alias: str) -> Iterator[Finding]:
    try:
        pool = connections[alias]
        words.addresses(pool.options.connection.hosts)
    except (ImproperlyConfigured, ValueError) as error:
        yield settings.unreadable(alias, error)
        yield from settings.examine_checks()
        return
    yield settings.readable(alias, pool.options)
    yield from settings.examine_checks()
    yield from _examine_ensemble(pool)
    # As in the app's ready(): a project that uses Celery has imported it by now.
    if "celery" in sys.modules:
        from django_zklock.contrib.celery import examination

        yield from examination.examine(alias, pool.options.connection.session_timeout)


def _examine_ensemble(pool: Pool) -> Iterator[Finding]:
    options = pool.options
    servers = ensemble.servers(options.connection, timeout=options.connect_timeout)
    yield from quorum.examine(servers, options.connection)
    # This connects, if nobody has before.
    yield from trial.examine(pool)
    connected = next((each for each in pool.sessions() if each.connected), None)
    yield from session.examine(pool, connected, servers)
    yield from security.examine(options, connected)
