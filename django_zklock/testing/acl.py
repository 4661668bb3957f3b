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
class Identity:
    """Who a connection is, or whom an entry names."""

    scheme: str
    id: str

    @property
    def user(self) -> str:
        """The part that may be told: the name of a digest without its hash."""
        return self.id.partition(":")[0] if self.scheme == "digest" else self.id


@dataclass(frozen=True)
class Entry:
    """One line of an access control list."""

    perms: int
    identity: Identity

    def encode(self) -> bytes:
        """Write the record."""
        return jute.INT.pack(self.perms) + jute.text(self.identity.scheme) + jute.text(self.identity.id)

    def masked(self) -> Entry:
        """Hide the hash of a digest from who may not change the list."""
        if self.identity.scheme != "digest":
            return self
        return Entry(self.perms, Identity("digest", f"{self.identity.user}:x"))


ANYONE = Identity("world", "anyone")
OPEN = (Entry(Perms.ALL, ANYONE),)
READ_ONLY = (Entry(Perms.READ, ANYONE),)


def read_entries(reader: jute.Reader) -> tuple[Entry | None, ...]:
    """Read the records; None is one without the id that its scheme needs, which ``resolve`` stumbles over."""
    return tuple(reader.optional_vector(lambda: _read_entry(reader)) or ())


def address(host: str) -> Identity:
    """Give the identity that every connection has."""
    return Identity("ip", host)


def authenticate(scheme: str, credentials: bytes | None) -> Identity | None:
    """Give the identity that credentials prove, or None if the scheme has none to give; raise RefusedError."""
    if scheme == "ip":
        return None
    if scheme != "digest" or credentials is None:
        raise RefusedError(Code.AUTH_FAILED)
    name, _, _ = credentials.partition(b":")
    # SHA-1 is the scheme's own choice.
    digest = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest())
    return Identity("digest", (name + b":" + digest).decode("utf-8", "replace"))


def resolve(entries: Sequence[Entry | None], mine: Iterable[Identity]) -> tuple[Entry, ...]:
    """Give the list that a node gets: "auth" replaced by who is asking.

    Raises RefusedError(INVALID_ACL), and MalformedError for an entry that cannot even be looked at.
    """
    resolved: list[Entry] = []
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
            resolved += [Entry(entry.perms, identity) for identity in proven]
        elif _is_valid(entry.identity):
            resolved.append(entry)
        else:
            raise RefusedError(Code.INVALID_ACL)
    if not resolved:
        raise RefusedError(Code.INVALID_ACL)
    return tuple(resolved)


def require(entries: Iterable[Entry], perms: Perms, mine: Iterable[Identity]) -> None:
    """Raise RefusedError(NO_AUTH) unless an entry gives one of ``perms`` to one of ``mine``."""
    if not permits(entries, perms, mine):
        raise RefusedError(Code.NO_AUTH)


def permits(entries: Iterable[Entry], perms: Perms, mine: Iterable[Identity]) -> bool:
    """Tell whether an entry gives one of ``perms`` to one of ``mine``."""
    mine = tuple(mine)
    return any(
        entry.perms & perms and (entry.identity == ANYONE or any(_matches(entry.identity, one) for one in mine))
        for entry in entries
    )


def _read_entry(reader: jute.Reader) -> Entry | None:
    perms, scheme, id_ = reader.integer(), reader.optional_text() or "", reader.optional_text()
    if id_ is None and scheme in {"world", "digest", "ip"}:
        return None
    return Entry(perms, Identity(scheme, id_ or ""))


def _matches(named: Identity, mine: Identity) -> bool:
    if named.scheme != mine.scheme:
        return False
    if named.scheme == "ip":
        network = _network(named.id)
        return network is not None and ipaddress.ip_address(mine.id) in network
    return named.id == mine.id


def _is_valid(identity: Identity) -> bool:
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
