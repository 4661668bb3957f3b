"""The project under test: its ``ZKLOCK`` setting, pointed at another server for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.zk import keys
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.wire import parse_acl

SETTING = "ZKLOCK"
# What needs more than the plain protocol.
DROPPED = ("TLS", "SASL")
# What a client can prove to a server that knows nobody.
SCHEMES = frozenset({"auth", "digest", "world"})

_ABSENT = object()


def configured() -> bool:
    """Whether there is a Django project at all; its settings need not have been read yet."""
    return settings.configured or bool(os.environ.get(ENVIRONMENT_VARIABLE))


@contextmanager
def redirected(hosts: str, root: str) -> Iterator[None]:
    """Have every alias of the project use the server at ``hosts``, below ``root``.

    Sessions are closed at both ends, by what closes them whenever the setting changes.
    """
    value = getattr(settings, SETTING, None) or {}
    if isinstance(value, Mapping):
        value = redirect(value, hosts, root)
    # Not override_settings: that puts a holder on top of the others, and must be undone before what came below it
    # and after what came above. pytest-django's `settings` keeps such holders too, and which of the two fixtures
    # ends first is not ours to say.
    holder = vars(settings)["_wrapped"]
    before = vars(holder).get(SETTING, _ABSENT)
    _put(holder, value, enter=True)
    try:
        yield
    finally:
        _put(holder, before, enter=False)


def redirect(zklock: Mapping[str, Any], hosts: str, root: str) -> dict[str, Any]:
    """Give the setting ``zklock`` with each alias at ``hosts`` and below ``root``; without aliases, with ``default``.

    Aliases with the same servers and the same ``ROOT`` still share their locks, all others are apart.
    """
    roots: dict[object, str] = {}
    redirected: dict[str, Any] = {}
    for alias, options in (zklock or {DEFAULT_ALIAS: {}}).items():
        if not isinstance(options, Mapping):
            # Wrong, and it must stay wrong: the message is conf's.
            redirected[alias] = options
            continue
        place = (_servers(options.get("HOSTS")), options.get("ROOT", PoolOptions.root))
        redirected[alias] = {
            **_protected({key: value for key, value in options.items() if key not in DROPPED}),
            "HOSTS": hosts,
            "ROOT": roots.setdefault(repr(place), f"{root}/{keys.escape(alias)}"),
        }
    return redirected


def _servers(hosts: Any) -> object:
    """Give which ensemble is meant; the order of its servers means nothing."""
    if isinstance(hosts, (list, tuple)):
        hosts = ",".join(map(str, hosts))
    if not isinstance(hosts, str):
        return hosts
    servers, _, chroot = hosts.partition("/")
    return sorted(server.strip() for server in servers.split(",")), chroot


def _protected(options: dict[str, Any]) -> dict[str, Any]:
    """Keep of ``AUTH`` and ``ACL`` what means something without certificates, Kerberos and addresses."""
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


def _put(holder: Any, value: object, *, enter: bool) -> None:
    if value is _ABSENT:
        vars(holder).pop(SETTING, None)
    else:
        vars(holder)[SETTING] = value
    # What LazySettings has remembered.
    vars(settings).pop(SETTING, None)
    setting_changed.send(sender=type(holder), setting=SETTING, value=getattr(settings, SETTING, None), enter=enter)
