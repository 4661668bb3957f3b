"""Who can read and break the locks, and listen on the way to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from django_zklock.doctor.nearness import is_here
from django_zklock.exceptions import ZkLockError
from django_zklock.findings import Finding
from django_zklock.zk import inquiry
from django_zklock.zk.inquiry import Script
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions

# How long ZooKeeper may take to tell an ACL, in seconds.
PATIENCE = 1.0
# With any of these the whole world can do more than look.
HARMFUL = set("cdwa")


def examine(options: PoolOptions, connected: Session | None) -> Iterator[Finding]:
    """Judge the ways in; the ACL of ROOT only where there is a session."""
    yield _tls(options.connection)
    yield _credentials(options.connection)
    if connected is not None:
        yield _acl(connected, options.root, options.connection)


def _tls(options: ConnectionOptions) -> Finding:
    finding = partial(Finding, id="security.tls", subject="TLS")
    if options.use_tls and not options.tls_verify:
        return finding(
            level="warning",
            found="is on, but the servers' certificates are not verified: anybody on the way can be your ZooKeeper",
            advice='Leave out "VERIFY": False, and name the authority of the certificates as "CA".',
        )
    if options.use_tls:
        return finding(level="ok", found="is on")
    if is_here(options):
        return finding(level="ok", found="is off; all servers are on this host")
    return finding(
        level="warning",
        found="is off: whoever is on the way can read all, and take and break locks",
        advice="Set TLS, or make sure that nobody else is on that network.",
    )


def _credentials(options: ConnectionOptions) -> Finding:
    used = [name for name, value in (("AUTH", options.auth), ("SASL", options.sasl)) if value]
    finding = partial(Finding, id="security.credentials", subject=" and ".join(used) or "no credentials")
    if used and not options.use_tls and not is_here(options):
        return finding(
            level="warning",
            found="without TLS the credentials can be listened to or guessed on the way",
            advice="Set TLS.",
        )
    return finding(
        level="ok", found="do not cross a network in the clear" if used else "there are none that could be listened to"
    )


def _acl(session: Session, root: str, options: ConnectionOptions) -> Finding:
    finding = partial(Finding, id="security.acl", subject=root)
    try:
        entries = inquiry.ask(
            session, partial(_read_acl, session, root), aim=f"tell the ACL of {root}", timeout=PATIENCE
        )
    except ZkLockError as error:
        return finding(
            level="info", found=str(error), advice="Let these credentials read it, if the doctor is to judge it."
        )
    world = {letter for entry in entries if _is_for_everybody(entry) for letter in entry.rpartition(":")[2]}
    if world & HARMFUL:
        return _open(root, options)
    found = "anybody can look at the locks, and nobody else can change them" if world else "is closed to strangers"
    return finding(level="ok", found=found)


def _open(root: str, options: ConnectionOptions) -> Finding:
    advice = 'Set AUTH or SASL, and "ACL": "creator", under a new ROOT.'
    if options.acl != "open":
        advice = "It was made before ACL was set: choose a new ROOT, or change its ACL and those of the nodes below."
    return Finding(
        id="security.acl",
        level="info" if is_here(options) else "warning",
        subject=root,
        found="is open to the world: whoever reaches ZooKeeper can take and break the locks",
        advice=advice,
    )


def _is_for_everybody(entry: str) -> bool:
    # Of an address without a single bit that must agree, every address is one.
    scheme, _, rest = entry.partition(":")
    return scheme == "world" or (scheme == "ip" and rest.rpartition(":")[0].endswith("/0"))


def _read_acl(session: Session, root: str) -> Script[Sequence[str]]:
    (entries,) = yield [partial(session.wire.acl_of, root)]
    return list(entries)
