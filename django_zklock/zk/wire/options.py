"""What it takes to reach an ensemble."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions, make_acl

# What of KazooClient's arguments is left to the user; the others are ours, or would undo what this package does.
EXTRA_OPTIONS = frozenset({"randomize_hosts"})

# Since kazoo 2.11; before, it does not tell the handler the name.
CHECKS_HOST_NAMES = "check_hostname" in inspect.signature(KazooClient).parameters

_PERMISSIONS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How to reach an ensemble. Times are seconds."""

    hosts: str
    session_timeout: float = 15.0
    auth: Sequence[tuple[str, str]] = ()
    acl: str | Sequence[str] = "open"
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = None
    tls_verify: bool = True
    tls_check_hostname: bool = True
    use_tls: bool = False
    sasl: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def checks_host_name(self) -> bool:
        """Whether a server's name matters; one in a certificate that nobody verifies says nothing."""
        return self.tls_check_hostname and self.tls_verify


def parse_acl(value: str | Sequence[str]) -> list[ACL]:
    """Read ``"open"``, ``"creator"`` or a list of ``scheme:id:perms`` with perms out of ``cdrwa``.

    Raises ``ValueError`` for anything else.
    """
    if value == "open":
        return list(OPEN_ACL_UNSAFE)
    if value == "creator":
        return list(CREATOR_ALL_ACL)
    if isinstance(value, str) or not value:
        raise ValueError(f'"open", "creator" or a list of "scheme:id:perms", got {value!r}')
    return [_parse_acl_entry(entry) for entry in value]


def acl_entry(acl: ACL) -> str:
    """Write one entry of a node's ACL as ``scheme:id:perms``, which :func:`parse_acl` reads."""
    letters = "".join(letter for letter, name in _PERMISSIONS.items() if acl.perms & getattr(Permissions, name.upper()))
    return f"{acl.id.scheme}:{acl.id.id}:{letters}"


def _parse_acl_entry(entry: str) -> ACL:
    scheme, _, rest = str(entry).partition(":")
    credential, _, permissions = rest.rpartition(":")
    if not scheme or not credential or not permissions or not set(permissions) <= set(_PERMISSIONS):
        raise ValueError(f'entries like "world:anyone:r" or "digest:user:hash:cdrwa", got {entry!r}')
    return make_acl(scheme, credential, **{_PERMISSIONS[letter]: True for letter in permissions})
