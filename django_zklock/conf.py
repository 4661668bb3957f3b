"""The ``ZKLOCK`` setting, parsed into the options of a pool."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

from django_zklock.zk import paths
from django_zklock.zk.formatting import Program, program
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.waiting import seconds
from django_zklock.zk.wire import KAZOO_OPTIONS, ConnectionOptions, parse_acl

DEFAULT_ALIAS = "default"

# A name, which may have the letters of all scripts, or an IPv4 address, or an IPv6 address in brackets. Of what else
# kazoo makes another server, or an error.
_SERVER = re.compile(
    r"((?P<name>[\w.\-\u0080-\U0010ffff]+)|\[(?P<ipv6>[0-9A-Fa-f:.]+(%[\w.-]+)?)\])(:(?P<port>[0-9]{1,5}))?"
)

# A fence is this number of bits of a token, below the generation: an epoch of ZooKeeper, one for each election, has
# 24 of them, and its transactions 32. 63 bits are what a BigIntegerField has for a positive number.
TOKEN_BITS = 56
MAX_GENERATION = 2 ** (63 - TOKEN_BITS) - 1

Reader = Callable[[str, Any], Any]
"""Takes the place of a value in the setting, for messages, and the value; returns the checked value."""


def _wrong(place: str, what: str, value: object) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{place} must be {what}, got {value!r}")


def _text(place: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(place, "a non-empty string", value)
    return value.strip()


def _secret(place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ImproperlyConfigured(f"{place} must be a non-empty string, got a {type(value).__name__}")
    return value


def _hosts(place: str, value: object) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(host, str) for host in value):
        value = ",".join(value)
    hosts = _text(place, value)
    # For kazoo and for the Java client, one chroot follows the last server.
    named, slash, chroot = hosts.partition("/")
    servers = [server.strip() for server in named.split(",")]
    # A slash at the end of the chroot is legal.
    is_legal = not chroot or paths.is_root(f"/{chroot.removesuffix('/')}")
    if "," in chroot or not is_legal or not all(map(_is_server, servers)):
        like = 'servers like "zk1:2181,zk2:2181", separated by commas, with a chroot like "/app" at the end at most'
        raise _wrong(place, like, value)
    return ",".join(servers) + slash + chroot


def _is_server(text: str) -> bool:
    server = _SERVER.fullmatch(text)
    if server is None or not 0 < int(server["port"] or 1) < 65536:
        return False
    if server["ipv6"]:
        return _is_ipv6(server["ipv6"])
    # Not what a look-up leaves out, such as a byte order mark, or reads as another sign, such as a raised digit.
    return server["name"].isprintable() and not any(
        not sign.isascii() and unicodedata.normalize("NFKC", sign).isascii() for sign in server["name"]
    )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _root(place: str, value: object) -> str:
    path = _text(place, value)
    if not paths.is_root(path):
        raise _wrong(place, 'a path like "/django_zklock", without "." and ".." and not below /zookeeper', value)
    return path


def _seconds(place: str, value: Any) -> float:
    try:
        parsed = seconds(value, place)
    except (TypeError, ValueError):
        parsed = None
    if not parsed:
        raise _wrong(place, "a positive number of seconds or a timedelta", value)
    return parsed


def _size(place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        raise _wrong(place, "an integer from 1 to 100", value)
    return value


def _loss_policy(place: str, value: object) -> bool:
    if value not in ("lease", "strict"):
        raise _wrong(place, '"lease" or "strict"', value)
    return value == "strict"


def _in_transaction(place: str, value: object) -> str:
    if value not in ("warn", "error", "allow"):
        raise _wrong(place, '"warn", "error" or "allow"', value)
    return str(value)


def _generation(place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GENERATION:
        raise _wrong(place, f"an integer from 0 to {MAX_GENERATION}", value)
    return value


def _auth(place: str, value: object) -> tuple[tuple[str, str], ...]:
    # The message does not repeat the value, which contains credentials.
    wrong = ImproperlyConfigured(f'{place} must be a list of (scheme, credential) pairs like ("digest", "user:secret")')
    if not isinstance(value, (list, tuple)):
        raise wrong
    for entry in value:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2 or not all(isinstance(x, str) and x for x in entry):
            raise wrong
    return tuple((scheme, credential) for scheme, credential in value)


def _acl(place: str, value: Any) -> str | tuple[str, ...]:
    if not isinstance(value, (str, list, tuple)) or not all(isinstance(entry, str) for entry in value):
        raise _wrong(place, '"open", "creator" or a list of "scheme:id:perms"', value)
    try:
        parse_acl(value)
    except ValueError as error:
        raise ImproperlyConfigured(f"{place} must be {error}") from error
    return value if isinstance(value, str) else tuple(value)


def _flag(place: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(place, "True or False", value)
    return value


def _options(place: str, value: object) -> dict[str, Any]:
    options = _mapping(place, value)
    unknown = sorted(set(options) - KAZOO_OPTIONS)
    if unknown:
        known = ", ".join(sorted(KAZOO_OPTIONS))
        raise ImproperlyConfigured(f'{place}["{unknown[0]}"] cannot be set here; these can: {known}')
    return options


def _mapping(place: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ImproperlyConfigured(f"{place} must be a dict with string keys, got a {type(value).__name__}")
    return dict(value)


def _tls(place: str, value: object) -> dict[str, Any]:
    return {} if value is None else _read(place, _mapping(place, value), _TLS) | {"use_tls": True}


# The field of the options class for each setting, and its reader. An absent setting keeps the default of the field.
_CONNECTION: dict[str, tuple[str, Reader]] = {
    "HOSTS": ("hosts", _hosts),
    "SESSION_TIMEOUT": ("session_timeout", _seconds),
    "AUTH": ("auth", _auth),
    "ACL": ("acl", _acl),
    "SASL": ("sasl", _mapping),
    "OPTIONS": ("extra", _options),
}
_POOL: dict[str, tuple[str, Reader]] = {
    "ROOT": ("root", _root),
    "CONNECT_TIMEOUT": ("connect_timeout", _seconds),
    "POOL_SIZE": ("size", _size),
    "LOSS_POLICY": ("strict", _loss_policy),
    "NAME_CODE": ("name_code", _flag),
}
_DATABASE: dict[str, tuple[str, Reader]] = {
    "IN_TRANSACTION": ("in_transaction", _in_transaction),
    "GENERATION": ("generation", _generation),
}
_TLS: dict[str, tuple[str, Reader]] = {
    "CA": ("tls_ca", _text),
    "CERT": ("tls_cert", _text),
    "KEY": ("tls_key", _text),
    "KEY_PASSWORD": ("tls_key_password", _secret),
    "VERIFY": ("tls_verify", _flag),
    "CHECK_HOSTNAME": ("tls_check_hostname", _flag),
}

_ALIAS = _CONNECTION | _POOL | _DATABASE | {"TLS": ("tls", _tls)}


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """How the locks of an alias and the project's databases go together.

    ``in_transaction`` says what happens when a lock is acquired inside of a transaction; ``generation`` grows when the
    tokens of the ensemble have begun anew.
    """

    in_transaction: Literal["warn", "error", "allow"] = "warn"
    generation: int = 0


# Error reports hide the variables of these functions and of those that they call: the setting contains credentials.


@sensitive_variables()
def aliases() -> tuple[str, ...]:
    """Return the configured aliases, ``default`` first."""
    return tuple(sorted(_setting(), key=lambda alias: (alias != DEFAULT_ALIAS, alias)))


@sensitive_variables()
def options(alias: str) -> PoolOptions:
    """Return the options of ``alias``.

    Raise ``ImproperlyConfigured``, which names the place in the setting, for an unknown alias, an unknown key, a value
    of a wrong type, and missing ``HOSTS``.
    """
    configured = _setting()
    if alias not in configured:
        raise _unknown(alias, configured)
    place = f'ZKLOCK["{alias}"]'
    values = _mapping(place, configured[alias])
    fields = _read(place, values, _ALIAS)
    if "HOSTS" not in values:
        raise ImproperlyConfigured(f'{place}["HOSTS"] is missing: name the ensemble as "host:port,host:port"')
    tls = fields.pop("tls", {})
    for field, _reader in _DATABASE.values():
        fields.pop(field, None)
    pool = {field: fields.pop(field) for field, _reader in _POOL.values() if field in fields}
    return PoolOptions(connection=ConnectionOptions(**fields, **tls), **pool)


@sensitive_variables()
def database_options(alias: str) -> DatabaseOptions:
    """Return what ``alias`` says of databases; raise ``ImproperlyConfigured`` for an unknown alias or a wrong value."""
    configured = _setting()
    if alias not in configured:
        raise _unknown(alias, configured)
    place = f'ZKLOCK["{alias}"]'
    values = _mapping(place, configured[alias])
    return DatabaseOptions(**_read(place, {name: values[name] for name in _DATABASE if name in values}, _DATABASE))


def command() -> str:
    """Return how the site runs its commands; raise ``ImproperlyConfigured`` if ``ZKLOCK_COMMAND`` is no text."""
    return _text("ZKLOCK_COMMAND", getattr(settings, "ZKLOCK_COMMAND", Program().line))


def name_command() -> None:
    """Let messages name the site's commands as the site runs them. A check reports a wrong value."""
    try:
        program.line = command()
    except ImproperlyConfigured:
        program.line = Program().line


def _unknown(alias: str, configured: Mapping[str, Any]) -> ImproperlyConfigured:
    known = ", ".join(map(repr, configured)) or "none"
    return ImproperlyConfigured(f"ZKLOCK has no alias {alias!r}; configured: {known}")


def _setting() -> Mapping[str, Any]:
    configured = getattr(settings, "ZKLOCK", None)
    if not configured:
        raise ImproperlyConfigured(
            'ZKLOCK is not set: ZKLOCK = {"default": {"HOSTS": "zk1:2181,zk2:2181,zk3:2181"}}; '
            + program.spell(
                "`manage.py zklock devserver` starts a ZooKeeper for development and shows the value for it"
            )
        )
    aliases = _mapping("ZKLOCK", configured)
    for name, value in aliases.items():
        if name in _ALIAS and not isinstance(value, Mapping):
            raise ImproperlyConfigured(
                f'ZKLOCK["{name}"] is an option and not an alias: ZKLOCK = {{"default": {{"{name}": …}}}}'
            )
    return aliases


def _read(place: str, values: Mapping[str, Any], readers: Mapping[str, tuple[str, Reader]]) -> dict[str, Any]:
    """Return the field of each setting in ``values``."""
    fields = {
        field: read(f'{place}["{name}"]', values[name]) for name, (field, read) in readers.items() if name in values
    }
    unknown = sorted(values.keys() - readers.keys())
    if unknown:
        raise ImproperlyConfigured(
            f'{place}["{unknown[0]}"] is not a setting{did_you_mean(unknown[0], readers)}; '
            f"known are: {', '.join(sorted(readers))}"
        )
    return fields


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean …?)"`` if one of the known names is like ``name``, in upper or lower case."""
    names = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return f" (did you mean {names[found[0]]}?)" if found else ""
