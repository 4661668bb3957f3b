"""System checks of the ``ZKLOCK`` setting. None of them touches the network.

Each is described in ``docs/reference/checks.md``. An id that was released is never used for anything else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.zk.pool import PoolOptions

TAG = "django_zklock"
# ZooKeeper gives sessions between 2 and 20 ticks, and a tick is 2 s unless its administrator says otherwise.
SHORTEST_SESSION = 4.0
LONGEST_SESSION = 60.0


def register() -> None:
    """Have ``manage.py check`` run every check of this module."""
    for check in ALL:
        checks.register(check, TAG)


def settings_can_be_read(**_options: Any) -> list[CheckMessage]:
    """E001: the setting is missing, or something in it is wrong."""
    return [
        checks.Error(
            problem,
            hint="See the reference of settings for what ZKLOCK may contain.",
            id="django_zklock.E001",
        )
        for problem in _problems()
    ]


def tls_files_can_be_read(**_options: Any) -> list[CheckMessage]:
    """E002: a file named under ``TLS`` is not there, or this process may not read it."""
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


def host_names_can_be_checked(**_options: Any) -> list[CheckMessage]:
    """E004: TLS with ``CHECK_HOSTNAME`` on a kazoo that cannot check it."""
    kazoo = version("kazoo")
    if tuple(int(part) for part in kazoo.split(".")[:2]) >= (2, 11):
        return []
    return [
        checks.Error(
            f'ZKLOCK["{alias}"]["TLS"] asks for CHECK_HOSTNAME, which kazoo {kazoo} cannot do',
            hint='Install kazoo 2.11 or later, or set "CHECK_HOSTNAME": False and rely on the CA alone.',
            id="django_zklock.E004",
        )
        for alias, options in _readable()
        if options.connection.use_tls and options.connection.checks_host_name
    ]


def nodes_are_protected(**_options: Any) -> list[CheckMessage]:
    """W001: the process proves who it is, yet everybody may change its nodes."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"] has credentials, but its ACL leaves the locks open to everybody',
            hint='Set "ACL": "creator", so that only these credentials can read, take and break the locks.',
            id="django_zklock.W001",
        )
        for alias, options in _readable()
        if (options.connection.auth or options.connection.sasl) and options.connection.acl == "open"
    ]


def connecting_is_shorter_than_a_session(**_options: Any) -> list[CheckMessage]:
    """W002: a caller would wait for a connection longer than a session lives without one."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"]["CONNECT_TIMEOUT"] is {options.connect_timeout:g} s, '
            f"longer than SESSION_TIMEOUT, {options.connection.session_timeout:g} s",
            hint="Callers would hang on a ZooKeeper that is away long after every lock is lost; choose less.",
            id="django_zklock.W002",
        )
        for alias, options in _readable()
        if options.connect_timeout > options.connection.session_timeout
    ]


def session_timeout_is_sensible(**_options: Any) -> list[CheckMessage]:
    """W003: sessions so short that a hiccup loses locks, or so long that a dead host blocks everybody."""
    return [
        checks.Warning(
            f'ZKLOCK["{alias}"]["SESSION_TIMEOUT"] is {options.connection.session_timeout:g} s: ' + consequence,
            hint=f"Choose {SHORTEST_SESSION:g} to {LONGEST_SESSION:g} seconds; 15 suits most.",
            id="django_zklock.W003",
        )
        for alias, options in _readable()
        if (consequence := _session_consequence(options.connection.session_timeout))
    ]


def default_alias_exists(**_options: Any) -> list[CheckMessage]:
    """W004: there are aliases, but not the one that is used when none is named."""
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
    host_names_can_be_checked,
    nodes_are_protected,
    connecting_is_shorter_than_a_session,
    session_timeout_is_sensible,
    default_alias_exists,
)


def _problems() -> Iterator[str]:
    try:
        outcomes = [_read(alias) for alias in conf.aliases()]
    except ImproperlyConfigured as error:
        outcomes = [error]
    return (str(outcome) for outcome in outcomes if isinstance(outcome, ImproperlyConfigured))


def _readable() -> Iterator[tuple[str, PoolOptions]]:
    """Give the aliases that E001 has nothing to say about."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured:
        aliases = ()
    outcomes = ((alias, _read(alias)) for alias in aliases)
    return ((alias, options) for alias, options in outcomes if isinstance(options, PoolOptions))


def _read(alias: str) -> PoolOptions | ImproperlyConfigured:
    try:
        return conf.options(alias)
    except ImproperlyConfigured as error:
        return error


def _tls_files(options: PoolOptions) -> Iterator[tuple[str, str]]:
    connection = options.connection
    for name, path in (("CA", connection.tls_ca), ("CERT", connection.tls_cert), ("KEY", connection.tls_key)):
        if path is not None:
            yield name, path


def _session_consequence(timeout: float) -> str | None:
    if timeout < SHORTEST_SESSION:
        return (
            "any longer pause of the process or the network loses every lock, "
            "and ZooKeeper's own default gives no session below 4 s"
        )
    if timeout > LONGEST_SESSION:
        return (
            "the locks of a host that dies stay taken that long, "
            "and ZooKeeper's own default gives no session above 40 s"
        )
    return None
