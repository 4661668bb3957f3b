"""The options of a connection to an ensemble, which need no kazoo."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

# The arguments of KazooClient that a user may set; the others are set here, or would break what this package does.
KAZOO_OPTIONS = frozenset({"randomize_hosts"})

# The maximum of reads in one request. Requests behind it wait for all its reads, about 10 microseconds each.
MAX_READS_PER_REQUEST = 128

# Bytes that every server reads, unless its jute.maxbuffer is set: of a request, after which a server drops the
# connection with all other requests in it, and of a transaction that it gets from another server or from its log.
MAX_REQUEST = 0xFFFFF

# Why a connect has failed: servers do so without a quorum.
NOT_ACCEPTED = "the server has closed the connection instead of accepting"
NOT_RESOLVED = "the host name cannot be resolved"
NOT_KNOWN = "the server does not know the session: is it one of another ensemble?"
# Why a session was given up.
DATA_LOST = "the servers refuse it: they have lost data that this process has seen"
REFUSED = "the servers refuse it, again and again, and take new ones"
# Why a session was refused for good.
AUTH_REFUSED = "authentication was refused, check AUTH and SASL in ZKLOCK"
# What to ask where a server ends each connection at the same request.
AT_A_REQUEST = "is it ZooKeeper 3.6 or newer, is jute.maxbuffer the default?"
# Why there was no attempt to connect; the error of the system follows.
NOT_STARTED = "this process cannot start a connection"
# What OpenSSL says of a server that answers without TLS, and of one that closes the connection at what it cannot read.
_NO_TLS = ("WRONG_VERSION_NUMBER", "EOF occurred in violation of protocol", "RECORD_LAYER_FAILURE")

HIDDEN = "********"
DEFAULT_PORT = 2181

# The bits in the protocol (``ZooDefs.Perms``).
_PERMISSIONS = {"c": 4, "d": 8, "r": 1, "w": 2, "a": 16}
_ALL = 31


def explain(failure: str) -> str:
    """Return a failure to connect, after what it means if OpenSSL's words are those about a server without TLS."""
    if any(words in failure for words in _NO_TLS):
        return f"the server does not seem to speak TLS at this port: {failure}"
    return failure


def join_address(host: str, port: int) -> str:
    """Return a host and a port as HOSTS has them: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each server, without the chroot; raise ``ValueError`` for other text."""
        servers, _, _chroot = self.hosts.partition("/")
        # As kazoo reads them: IPv6 addresses stand in brackets.
        parts = [urlsplit(f"//{server.strip()}") for server in servers.split(",")]
        if not all(part.hostname for part in parts):
            raise ValueError(f"a server has no name: {self.hosts!r}")
        return [(part.hostname or "", part.port or DEFAULT_PORT) for part in parts]

    def wrong_names(self) -> list[str]:
        """Return the servers whose name no host can have, because it cannot be encoded for DNS."""
        return [host for host, _port in self.addresses() if not _is_encodable(host)]


def _is_encodable(host: str) -> bool:
    # As the look-up of a name does it: a label has 1 to 63 characters.
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


class Subject(NamedTuple):
    """The clients that an entry of an ACL is for."""

    scheme: str
    id: str


class AclEntry(NamedTuple):
    """An entry of an ACL, as kazoo serialises it."""

    perms: int
    id: Subject

    def __str__(self) -> str:
        letters = "".join(letter for letter, permission in _PERMISSIONS.items() if self.perms & permission)
        return f"{self.id.scheme}:{self.id.id}:{letters}"


def parse_acl(value: str | Sequence[str]) -> list[AclEntry]:
    """Parse ``"open"``, ``"creator"`` or a list of ``scheme:id:perms`` with perms out of ``cdrwa``.

    Raise ``ValueError`` for anything else.
    """
    if value == "open":
        return [AclEntry(_ALL, Subject("world", "anyone"))]
    if value == "creator":
        return [AclEntry(_ALL, Subject("auth", ""))]
    if isinstance(value, str) or not value:
        raise ValueError(f'"open", "creator" or a list of "scheme:id:perms", got {value!r}')
    entries = []
    for entry in value:
        scheme, _, rest = str(entry).partition(":")
        credential, _, permissions = rest.rpartition(":")
        if not scheme or not credential or not permissions or not set(permissions) <= set(_PERMISSIONS):
            raise ValueError(f'entries like "world:anyone:r" or "digest:user:hash:cdrwa", got {entry!r}')
        bits = sum(_PERMISSIONS[letter] for letter in set(permissions))
        entries.append(AclEntry(bits, Subject(scheme, credential)))
    return entries


def tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Return a TLS context with the certificates; raise ``OSError`` if a file is missing or unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Before verify_mode: ssl refuses to turn off verification while host names are checked. In a certificate that is
    # not verified the name proves nothing.
    context.check_hostname = options.tls_check_hostname and options.tls_verify
    context.verify_mode = ssl.CERT_REQUIRED if options.tls_verify else ssl.CERT_NONE
    if options.tls_ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(options.tls_ca)
    if options.tls_cert is not None:
        # If the password is None and the key is encrypted, OpenSSL asks for one at the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, options.tls_key_password or "")
    return context
