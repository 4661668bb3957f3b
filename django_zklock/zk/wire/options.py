"""The options of a connection to an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kazoo.security import ACL

# The arguments of KazooClient that a user may set; the others are set here, or would break what this package does.
KAZOO_OPTIONS = frozenset({"randomize_hosts"})

# The maximum of reads in one request. Requests behind it wait for all its reads, about 10 microseconds each.
MAX_READS_PER_REQUEST = 128

# Bytes that every server reads, unless its jute.maxbuffer is set: of a request, after which a server drops the
# connection with all other requests in it, and of a transaction that it gets from another server or from its log.
MAX_REQUEST = 0xFFFFF

HIDDEN = "********"

_PERMISSIONS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


class Secret(str):
    """A credential. Its ``repr``, which error reports use for the variables of a frame, hides it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How to reach an ensemble. Times are seconds. Credentials given as plain strings become :class:`Secret`."""

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

    def __post_init__(self) -> None:
        auth = tuple((scheme, Secret(credential)) for scheme, credential in self.auth)
        object.__setattr__(self, "auth", auth)
        if self.tls_key_password is not None:
            object.__setattr__(self, "tls_key_password", Secret(self.tls_key_password))
        if self.sasl is not None:
            sasl = {name: Secret(value) if isinstance(value, str) else value for name, value in self.sasl.items()}
            object.__setattr__(self, "sasl", sasl)

    @property
    def checks_host_name(self) -> bool:
        """Whether to check the server's host name; in a certificate that is not verified it proves nothing."""
        return self.tls_check_hostname and self.tls_verify


def parse_acl(value: str | Sequence[str]) -> list[ACL]:
    """Parse ``"open"``, ``"creator"`` or a list of ``scheme:id:perms`` with perms out of ``cdrwa``.

    Raise ``ValueError`` for anything else.
    """
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

    if value == "open":
        return list(OPEN_ACL_UNSAFE)
    if value == "creator":
        return list(CREATOR_ALL_ACL)
    if isinstance(value, str) or not value:
        raise ValueError(f'"open", "creator" or a list of "scheme:id:perms", got {value!r}')
    return [_parse_acl_entry(entry) for entry in value]


def acl_entry(acl: ACL) -> str:
    """Return one entry of a node's ACL as ``scheme:id:perms``, which :func:`parse_acl` parses."""
    from kazoo.security import Permissions

    letters = "".join(letter for letter, name in _PERMISSIONS.items() if acl.perms & getattr(Permissions, name.upper()))
    return f"{acl.id.scheme}:{acl.id.id}:{letters}"


def _parse_acl_entry(entry: str) -> ACL:
    from kazoo.security import make_acl

    scheme, _, rest = str(entry).partition(":")
    credential, _, permissions = rest.rpartition(":")
    if not scheme or not credential or not permissions or not set(permissions) <= set(_PERMISSIONS):
        raise ValueError(f'entries like "world:anyone:r" or "digest:user:hash:cdrwa", got {entry!r}')
    return make_acl(scheme, credential, **{_PERMISSIONS[letter]: True for letter in permissions})
