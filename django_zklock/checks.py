"""System checks of the ``ZKLOCK`` setting, and of functions that are registered without their lock; without network.

Each message is described in ``docs/reference/checks.md``. The id of a released message never gets another meaning.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import FunctionType
from typing import Any
from weakref import ReferenceType

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal
from django.template import Library, engines

from django_zklock import conf
from django_zklock.locked_call import LockedCall, locked_call_of
from django_zklock.zk.pool import PoolOptions

TAG = "django_zklock"
# Seconds. ZooKeeper grants timeouts from 2 to 20 ticks, and a tick is 2 s by default.
MIN_SESSION_TIMEOUT = 4.0
MAX_SESSION_TIMEOUT = 60.0


def register() -> None:
    """Register the checks for ``manage.py check``."""
    checks.register(check_setting, TAG)
    checks.register(check_registrations, TAG)


def _unreadable(error: ImproperlyConfigured) -> CheckMessage:
    return checks.Error(
        str(error),
        hint="The reference of settings describes what ZKLOCK can contain.",
        id="django_zklock.E001",
    )


def _check_alias(place: str, options: PoolOptions) -> Iterator[CheckMessage]:
    connection = options.connection
    for host in connection.wrong_names():
        yield checks.Error(
            f'{place}["HOSTS"] has a name that no host can have: {host!r}',
            hint="Between its dots a name has parts of 1 to 63 characters.",
            id="django_zklock.E006",
        )
    for name, path in (("CA", connection.tls_ca), ("CERT", connection.tls_cert), ("KEY", connection.tls_key)):
        if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):  # noqa: PTH113 - the setting is a string
            yield checks.Error(
                f'{place}["TLS"]["{name}"] names a file that cannot be read: {path}',
                hint="Correct the path, or let the user that runs this process read the file.",
                id="django_zklock.E002",
            )
    if connection.sasl and find_spec("puresasl") is None:
        yield checks.Error(
            f'{place}["SASL"] needs the library pure-sasl, which is not installed',
            hint="pip install 'django-zklock[sasl]'",
            id="django_zklock.E003",
        )
    if connection.acl == "creator" and not (connection.auth or connection.sasl or connection.tls_cert):
        yield checks.Error(
            f'{place}["ACL"] is "creator", but nothing says who the creator is: every lock would be refused',
            hint='Set "AUTH" or "SASL", or "CERT" and "KEY" in "TLS".',
            id="django_zklock.E004",
        )
    if (connection.auth or connection.sasl) and connection.acl == "open":
        yield checks.Warning(
            f"{place} has credentials, but its ACL leaves the locks open to every client",
            hint='Set "ACL": "creator", so that only these credentials can read, take and break the locks.',
            id="django_zklock.W001",
        )
    if options.connect_timeout > connection.session_timeout:
        yield checks.Warning(
            f'{place}["CONNECT_TIMEOUT"] is {options.connect_timeout:g} s, '
            f"longer than SESSION_TIMEOUT, {connection.session_timeout:g} s",
            hint="Without ZooKeeper, callers would block long after every lock is lost; choose a shorter time.",
            id="django_zklock.W002",
        )
    consequence = None
    if connection.session_timeout < MIN_SESSION_TIMEOUT:
        consequence = (
            "any longer pause of the process or the network loses every lock, "
            "and by default ZooKeeper grants no timeout below 4 s"
        )
    elif connection.session_timeout > MAX_SESSION_TIMEOUT:
        consequence = (
            "the locks of a host that dies stay taken that long, and by default ZooKeeper grants no timeout above 40 s"
        )
    if consequence:
        yield checks.Warning(
            f'{place}["SESSION_TIMEOUT"] is {connection.session_timeout:g} s: {consequence}',
            hint=f"Choose {MIN_SESSION_TIMEOUT:g} to {MAX_SESSION_TIMEOUT:g} seconds; 15 suits most projects.",
            id="django_zklock.W003",
        )


def check_setting(**_options: Any) -> list[CheckMessage]:
    """Return the messages about the setting and about each alias in it."""
    try:
        aliases = conf.aliases()
        conf.command()
    except ImproperlyConfigured as error:
        return [_unreadable(error)]
    messages: list[CheckMessage] = []
    for alias in aliases:
        try:
            messages += _check_alias(f'ZKLOCK["{alias}"]', conf.options(alias))
        except ImproperlyConfigured as error:
            messages.append(_unreadable(error))
    if conf.DEFAULT_ALIAS not in aliases:
        messages.append(
            checks.Warning(
                f'ZKLOCK has no alias "{conf.DEFAULT_ALIAS}", so every lock needs using=; '
                f"configured: {', '.join(aliases)}",
                hint=f'Rename one of them to "{conf.DEFAULT_ALIAS}".',
                id="django_zklock.W004",
            )
        )
    return messages


# Functions that are registered without their lock.


def check_registrations(**_options: Any) -> list[CheckMessage]:
    """Return a message for each function that a decorator below ``@zk_locked`` has registered, without the lock.

    ``@receiver`` registers what is below it and returns that, so the signal calls a function that takes no lock. Found
    are the receivers of signals, those of Celery too, and the tags and filters of template libraries.
    """
    with contextlib.suppress(Exception):  # other checks say what is wrong with TEMPLATES
        engines.all()  # loads the libraries
    # What is alive, whatever refers to it. Only types are looked at: isinstance would evaluate lazy objects.
    alive = gc.get_objects()
    locked_above: dict[int, LockedCall] = {}
    for function in alive:
        if type(function) is FunctionType and (call := locked_call_of(function)) is not None:
            locked_above |= {id(each): call for each in _down_to_a_lock(call.function)}
    messages: list[CheckMessage] = []
    for registered, decorator in _registered(alive):
        calls = [locked_above[id(each)] for each in _down_to_a_lock(registered) if id(each) in locked_above]
        messages += [
            checks.Warning(
                f"{call.name} was registered by {decorator} without its lock {call.template!r}, which is put above "
                f"that decorator: it is called without the lock",
                hint=f"Put @zk_locked below {decorator}, directly above the function.",
                id="django_zklock.W005",
            )
            for call in calls[:1]
        ]
    return messages


def _registered(alive: list[Any]) -> Iterator[tuple[Any, str]]:
    """Yield the functions that are registered, with the decorator that mostly does it."""
    celery = sys.modules.get("celery.utils.dispatch.signal")
    signals: dict[type, str] = {Signal: "@receiver"} | ({celery.Signal: "@….connect"} if celery is not None else {})
    for registry in alive:
        kind = type(registry)
        if decorator := next((name for each, name in signals.items() if issubclass(kind, each)), None):
            for entry in registry.receivers:
                receiver = entry[1]() if isinstance(entry[1], ReferenceType) else entry[1]
                if receiver is not None:
                    yield receiver, decorator
        elif issubclass(kind, Library):
            for function in (*registry.tags.values(), *registry.filters.values()):
                yield function, "@register.…"


def _down_to_a_lock(function: Any) -> Iterator[Any]:
    """Yield ``function``, the function that it wraps, and so on, down to one that takes a lock."""
    function = getattr(function, "__func__", function)
    while function is not None:
        yield function
        function = None if locked_call_of(function) is not None else getattr(function, "__wrapped__", None)
