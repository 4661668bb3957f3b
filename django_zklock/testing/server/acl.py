"""Access control lists: schemes, identities, permissions. The schemes are world, auth, digest and ip."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import jute
from .jute import MalformedError
from .protocol import Code, Perms, RefusedError


@dataclass(frozen=True)
class AuthId:
    """The identity of a connection or of an entry: ZooKeeper's ``Id``."""

    scheme: str
    id: str

    @property
    def user(self) -> str:
        """The part that is not secret: the name of a digest without its hash."""
        return self.id.partition(":")[0] if self.scheme == "digest" else self.id


@dataclass(frozen=True)
class AclEntry:
    """One entry of an access control list."""

    perms: int
    identity: AuthId

    def encode(self) -> bytes:
        """Return the encoded record."""
        return jute.INT.pack(self.perms) + jute.text(self.identity.scheme) + jute.text(self.identity.id)

    def masked(self) -> AclEntry:
        """Return the entry without the hash of a digest, for clients that may not change the list."""
        if self.identity.scheme != "digest":
            return self
        return AclEntry(self.perms, AuthId("digest", f"{self.identity.user}:x"))


ANYONE = AuthId("world", "anyone")
OPEN = (AclEntry(Perms.ALL, ANYONE),)
READ_ONLY = (AclEntry(Perms.READ, ANYONE),)


def read_entries(reader: jute.Reader) -> tuple[AclEntry | None, ...]:
    """Read the records; None stands for an entry without the id that its scheme needs, see ``resolve``."""
    return tuple(reader.optional_vector(lambda: _read_entry(reader)) or ())


def address(host: str) -> AuthId:
    """Return the identity that every connection has."""
    return AuthId("ip", host)


def authenticate(scheme: str, credentials: bytes | None) -> AuthId | None:
    """Return the identity of these credentials, or None if the scheme adds none; raise RefusedError."""
    if scheme == "ip":
        return None
    if scheme != "digest" or credentials is None:
        raise RefusedError(Code.AUTH_FAILED)
    name, _, _ = credentials.partition(b":")
    # The scheme prescribes SHA-1.
    digest = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest())
    return AuthId("digest", (name + b":" + digest).decode("utf-8", "replace"))


def resolve(entries: Sequence[AclEntry | None], mine: Iterable[AuthId]) -> tuple[AclEntry, ...]:
    """Return the list for a node: "auth" is replaced by the identities of the client.

    Raises RefusedError(INVALID_ACL), and MalformedError for an entry without an id.
    """
    resolved: list[AclEntry] = []
    for entry in dict.fromkeys(entries):
        if entry is None:
            msg = "an entry without an id"
            raise MalformedError(msg)
        if entry.identity == ANYONE:
            resolved.append(entry)
        elif entry.identity.scheme == "auth":
            proven = [identity for identity in mine if identity.scheme == "digest"]
            if not proven:
                raise RefusedError(Code.INVALID_ACL)
            resolved += [AclEntry(entry.perms, identity) for identity in proven]
        elif _is_valid(entry.identity):
            resolved.append(entry)
        else:
            raise RefusedError(Code.INVALID_ACL)
    if not resolved:
        raise RefusedError(Code.INVALID_ACL)
    return tuple(resolved)


def require(entries: Iterable[AclEntry], perms: Perms, mine: Iterable[AuthId]) -> None:
    """Raise RefusedError(NO_AUTH) unless an entry grants one of ``perms`` to one of ``mine``."""
    if not permits(entries, perms, mine):
        raise RefusedError(Code.NO_AUTH)


def permits(entries: Iterable[AclEntry], perms: Perms, mine: Iterable[AuthId]) -> bool:
    """Return whether an entry grants one of ``perms`` to one of ``mine``."""
    mine = tuple(mine)
    return any(
        entry.perms & perms and (entry.identity == ANYONE or any(_matches(entry.identity, one) for one in mine))
        for entry in entries
    )


def _read_entry(reader: jute.Reader) -> AclEntry | None:
    perms, scheme, id_ = reader.integer(), reader.optional_text() or "", reader.optional_text()
    if id_ is None and scheme in {"world", "digest", "ip"}:
        return None
    return AclEntry(perms, AuthId(scheme, id_ or ""))


def _matches(named: AuthId, mine: AuthId) -> bool:
    if named.scheme != mine.scheme:
        return False
    if named.scheme == "ip":
        network = _network(named.id)
        return network is not None and ipaddress.ip_address(mine.id) in network
    return named.id == mine.id


def _is_valid(identity: AuthId) -> bool:
    if identity.scheme == "digest":
        # A name, perhaps empty, and a hash.
        return len(identity.id.rstrip(":").split(":")) == 2
    return identity.scheme == "ip" and _network(identity.id) is not None


def _network(text: str) -> ipaddress.IPv4Network | None:
    address, slash, bits = text.partition("/")
    if slash and not (bits.isascii() and bits.isdigit()):
        return None
    try:
        return ipaddress.IPv4Network(f"{ipaddress.IPv4Address(address)}/{bits or 32}", strict=False)
    except ValueError:
        return None
