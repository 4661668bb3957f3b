"""System checks of the ``ZKLOCK`` setting, without network.

Each check is described in ``docs/reference/checks.md``. The id of a released check never gets another meaning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.zk.pool import PoolOptions

TAG = "django_zklock"
# Seconds. ZooKeeper grants timeouts from 2 to 20 ticks, and a tick is 2 s by default.
MIN_SESSION_TIMEOUT = 4.0
MAX_SESSION_TIMEOUT = 60.0


def register() -> None:
    """Register all checks of this module for ``manage.py check``."""
    for check in ALL:
        checks.register(check, TAG)


def settings_can_be_read(**_options: Any) -> list[CheckMessage]:
    """E001: the setting is missing or wrong."""
    return [
        checks.Error(
            problem,
            hint="The reference of settings describes what ZKLOCK can contain.",
            id="django_zklock.E001",
        )
        for problem in _problems()
    ]


def tls_files_can_be_read(**_options: Any) -> list[CheckMessage]:
    """E002: a file named under ``TLS`` does not exist, or this process may not read it."""
    return [
        checks.Error(
            f'ZKLOCK["{alias}"]["TLS"]["{name}"] names a file that cannot be read: {path}',
            hint="Correct the path, or let the user that runs this process read the file.",
            id="django_zklock.E002",
        )
        for alias, options in _readable()
        for name, path in _tls_files(options)
        if not (os.path.isfile(path) and os.access(path, os.R_OK))  # noqa: PTH113 - the setting is a plain string
    ]


def sasl_is_installed(**_options: Any) -> list[CheckMessage]:
    """E003: ``SASL`` is set, and the library that kazoo needs for it is missing."""
    if find_spec("puresasl") is not None:
        return []
    return [
        checks.Error(
            f'ZKLOCK["{alias}"]["SASL"] needs the library pure-sasl, which is not installed',
            hint="pip install 'django-zklock[sasl]'",
            id="django_zklock.E003",
        )
        for alias, options in _readable()
        if options.connection.sasl
    ]


def nodes_are_protected(**_options: Any) -> list[CheckMessage]:
    """W001: the process has credentials, but its nodes are open to every client."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"] has credentials, but its ACL leaves the locks open to every client',
            hint='Set "ACL": "creator", so that only these credentials can read, take and break the locks.',
            id="django_zklock.W001",
        )
        for alias, options in _readable()
        if (options.connection.auth or options.connection.sasl) and options.connection.acl == "open"
    ]


def connecting_is_shorter_than_a_session(**_options: Any) -> list[CheckMessage]:
    """W002: callers wait for a connection longer than a session survives without one."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"]["CONNECT_TIMEOUT"] is {options.connect_timeout:g} s, '
            f"longer than SESSION_TIMEOUT, {options.connection.session_timeout:g} s",
            hint="Without ZooKeeper, callers would block long after every lock is lost; choose a shorter time.",
            id="django_zklock.W002",
        )
        for alias, options in _readable()
        if options.connect_timeout > options.connection.session_timeout
    ]


def session_timeout_is_sensible(**_options: Any) -> list[CheckMessage]:
    """W003: sessions are so short that a pause loses locks, or so long that a dead host blocks all others."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"]["SESSION_TIMEOUT"] is {options.connection.session_timeout:g} s: ' + consequence,
            hint=f"Choose {MIN_SESSION_TIMEOUT:g} to {MAX_SESSION_TIMEOUT:g} seconds; 15 suits most projects.",
            id="django_zklock.W003",
        )
        for alias, options in _readable()
        if (consequence := _session_consequence(options.connection.session_timeout))
    ]


def default_alias_exists(**_options: Any) -> list[CheckMessage]:
    """W004: there are aliases, but not the default one."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured:
        return []
    if conf.DEFAULT_ALIAS in aliases:
        return []
    return [
        checks.Warning(
            f'ZKLOCK has no alias "{conf.DEFAULT_ALIAS}", so every lock needs using=; configured: {", ".join(aliases)}',
            hint=f'Rename one of them to "{conf.DEFAULT_ALIAS}".',
            id="django_zklock.W004",
        )
    ]


ALL = (
    settings_can_be_read,
    tls_files_can_be_read,
    sasl_is_installed,
    nodes_are_protected,
    connecting_is_shorter_than_a_session,
    session_timeout_is_sensible,
    default_alias_exists,
)


def _problems() -> Iterator[str]:
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured as error:
        yield str(error)
        return
    for alias in aliases:
        try:
            conf.options(alias)
        except ImproperlyConfigured as error:
            yield str(error)


def _readable() -> Iterator[tuple[str, PoolOptions]]:
    """Yield each alias whose options can be read, with the options."""
    with suppress(ImproperlyConfigured):
        for alias in conf.aliases():
            with suppress(ImproperlyConfigured):
                yield alias, conf.options(alias)


def _tls_files(options: PoolOptions) -> Iterator[tuple[str, str]]:
    connection = options.connection
    for name, path in (("CA", connection.tls_ca), ("CERT", connection.tls_cert), ("KEY", connection.tls_key)):
        if path is not None:
            yield name, path


def _session_consequence(timeout: float) -> str | None:
    if timeout < MIN_SESSION_TIMEOUT:
        return (
            "any longer pause of the process or the network loses every lock, "
            "and by default ZooKeeper grants no timeout below 4 s"
        )
    if timeout > MAX_SESSION_TIMEOUT:
        return (
            "the locks of a host that dies stay taken that long, and by default ZooKeeper grants no timeout above 40 s"
        )
    return None
