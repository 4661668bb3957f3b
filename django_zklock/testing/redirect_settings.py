"""Redirect the ``ZKLOCK`` setting of the project under test to another server, for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.zk import paths
from django_zklock.zk.held import held_stack
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.wire import parse_acl

SETTING = "ZKLOCK"
# Options that the test server does not support.
DROPPED = ("TLS", "SASL")
# Schemes that need no certificates, Kerberos or fixed addresses.
SCHEMES = frozenset({"auth", "digest", "world"})

_ABSENT = object()


def configured() -> bool:
    """Return whether there is a Django project; its settings may not have been loaded yet."""
    return settings.configured or bool(os.environ.get(ENVIRONMENT_VARIABLE))


@contextmanager
def redirected(hosts: str, root: str) -> Iterator[None]:
    """Point every alias of the project to the server at ``hosts``, below ``root``.

    Sessions are closed at the beginning and at the end, because the setting changes; not those of the locks that the
    caller holds at the beginning.
    """
    value = getattr(settings, SETTING, None) or {}
    if isinstance(value, Mapping):
        value = redirect(value, hosts, root)
    # Not override_settings: its overrides form a stack and must be undone in reverse order. pytest-django's fixture
    # `settings` uses the same stack, and the order in which the two fixtures end is not known.
    wrapped = vars(settings)["_wrapped"]
    before = vars(wrapped).get(SETTING, _ABSENT)
    with connections.set_aside([held.lock.pool for held in held_stack()]):
        _put(wrapped, value, enter=True)
        try:
            yield
        finally:
            _put(wrapped, before, enter=False)


def redirect(zklock: Mapping[str, Any], hosts: str, root: str) -> dict[str, Any]:
    """Return the setting ``zklock`` with each alias at ``hosts`` and below ``root``; at least with ``default``.

    Aliases with the same servers and the same ``ROOT`` share their locks, as before.
    """
    roots: dict[object, str] = {}
    redirected: dict[str, Any] = {}
    for alias, options in (zklock or {DEFAULT_ALIAS: {}}).items():
        if not isinstance(options, Mapping):
            # Wrong, and left unchanged, so that conf raises its error.
            redirected[alias] = options
            continue
        original = (_servers(options.get("HOSTS")), options.get("ROOT", PoolOptions.root))
        redirected[alias] = {
            # A test shall find what production only warns of.
            "IN_TRANSACTION": "error",
            **_protected({key: value for key, value in options.items() if key not in DROPPED}),
            "HOSTS": hosts,
            "ROOT": roots.setdefault(repr(original), f"{root}/{paths.escape(alias)}"),
        }
    return redirected


def _servers(hosts: Any) -> object:
    """Return the ensemble of ``HOSTS``, without the order of its servers."""
    if isinstance(hosts, (list, tuple)):
        hosts = ",".join(map(str, hosts))
    if not isinstance(hosts, str):
        return hosts
    servers, _, chroot = hosts.partition("/")
    return sorted(server.strip() for server in servers.split(",")), chroot


def _protected(options: dict[str, Any]) -> dict[str, Any]:
    """Remove entries of ``AUTH`` and ``ACL`` that need certificates, Kerberos or addresses."""
    auth = options.get("AUTH")
    if isinstance(auth, (list, tuple)):
        options["AUTH"] = auth = [entry for entry in auth if not _is_pair(entry) or entry[0] == "digest"]
    try:
        schemes = {entry.id.scheme for entry in parse_acl(options.get("ACL", "open"))}
    except (TypeError, ValueError):
        return options
    if not schemes <= SCHEMES or ("auth" in schemes and not auth):
        del options["ACL"]
    return options


def _is_pair(entry: object) -> bool:
    return isinstance(entry, (list, tuple)) and len(entry) == 2


def _put(wrapped: Any, value: object, *, enter: bool) -> None:
    if value is _ABSENT:
        vars(wrapped).pop(SETTING, None)
    else:
        vars(wrapped)[SETTING] = value
    # The cache of LazySettings.
    vars(settings).pop(SETTING, None)
    setting_changed.send(sender=type(wrapped), setting=SETTING, value=getattr(settings, SETTING, None), enter=enter)
