"""The setting ``ZKLOCK``: whether it can be read, what the system checks say, and whether access is secured."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from functools import partial

from django.core import checks as django_checks

from django_zklock import checks
from django_zklock.doctor.finding import Finding, Level
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import requests
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.requests import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions, four_letter

# Seconds that ZooKeeper has to return an ACL.
ACL_TIMEOUT = 1.0
# With any of these permissions every client can do more than read.
WRITE_PERMISSIONS = set("cdwa")


def readable(alias: str, options: PoolOptions) -> Finding:
    """Return where the settings of ``alias`` point to."""
    found = f"locks are under {options.root} at {options.connection.hosts}"
    return Finding(id="settings.readable", level="ok", subject=alias, found=found)


def unreadable(alias: str, error: Exception) -> Finding:
    """Return why the settings of ``alias`` cannot be used."""
    return Finding(
        id="settings.readable",
        level="error",
        subject=alias,
        found=str(error),
        advice="Correct ZKLOCK; the reference of the settings says what it may contain.",
    )


def run_system_checks() -> Iterator[Finding]:
    """Yield the messages of the system checks for all aliases, except those that the project has silenced."""
    finding = partial(Finding, id="settings.checks")
    # settings.readable covers E001, for the examined alias.
    messages = [each for each in checks.check_setting() if each.id != "django_zklock.E001" and not each.is_silenced()]
    for message in messages:
        yield finding(level=_level(message), subject=str(message.id), found=str(message.msg), advice=message.hint or "")
    if not messages:
        yield finding(level="ok", subject="ZKLOCK", found="the system checks report nothing")


def _level(message: django_checks.CheckMessage) -> Level:
    return "error" if message.level >= django_checks.ERROR else "warning"


def examine_security(options: PoolOptions, connected: Session | None) -> Iterator[Finding]:
    """Examine TLS and credentials, and the ACL of ROOT if a session is connected."""
    yield _tls(options.connection)
    yield _credentials(options.connection)
    if connected is not None:
        yield _acl(connected, options.root, options.connection)


def is_loopback_only(options: ConnectionOptions) -> bool:
    """Return whether every server in HOSTS is on the loopback interface, without looking up names."""
    return all(_is_loopback(host) for host, _port in four_letter.addresses(options.hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(options: ConnectionOptions) -> Finding:
    finding = partial(Finding, id="security.tls", subject="TLS")
    if options.use_tls and not options.tls_verify:
        return finding(
            level="warning",
            found="TLS does not verify the servers' certificates: any host on the network path can act as ZooKeeper",
            advice='Remove "VERIFY": False, and set "CA" to the authority of the certificates.',
        )
    if options.use_tls:
        return finding(level="ok", found="TLS is on")
    if is_loopback_only(options):
        return finding(level="ok", found="TLS is off; all servers are on this host")
    return finding(
        level="warning",
        found="TLS is off: any host on the network path can read everything, and acquire and break locks",
        advice="Set TLS, or make sure that the network has no other users.",
    )


def _credentials(options: ConnectionOptions) -> Finding:
    used = [name for name, value in (("AUTH", options.auth), ("SASL", options.sasl)) if value]
    finding = partial(Finding, id="security.credentials", subject=" and ".join(used) or "no credentials")
    if used and not options.use_tls and not is_loopback_only(options):
        return finding(
            level="warning",
            found="without TLS other hosts on the network path can read or guess the credentials",
            advice="Set TLS.",
        )
    found = "the credentials do not cross a network unencrypted" if used else "no credentials can be intercepted"
    return finding(level="ok", found=found)


def _acl(session: Session, root: str, options: ConnectionOptions) -> Finding:
    finding = partial(Finding, id="security.acl", subject=root)
    try:
        entries = requests.run(
            session, partial(_read_acl, session, root), action=f"read the ACL of {root}", timeout=ACL_TIMEOUT
        )
    except ZkLockError as error:
        return finding(level="info", found=str(error), advice="Let these credentials read the ACL of ROOT.")
    world = {letter for entry in entries if _is_for_everyone(entry) for letter in entry.rpartition(":")[2]}
    if world & WRITE_PERMISSIONS:
        return _open(root, options)
    found = "every client can read the locks, and only permitted clients can change them"
    return finding(level="ok", found=found if world else "only permitted clients have access")


def _open(root: str, options: ConnectionOptions) -> Finding:
    advice = 'Set AUTH or SASL, and "ACL": "creator", under a new ROOT.'
    if options.acl != "open":
        advice = "ROOT was created before ACL was set: choose a new ROOT, or change the ACL of it and all nodes below."
    return Finding(
        id="security.acl",
        level="info" if is_loopback_only(options) else "warning",
        subject=root,
        found="ROOT is open to the world: every client of ZooKeeper can acquire and break the locks",
        advice=advice,
    )


def _is_for_everyone(entry: str) -> bool:
    # A network prefix of 0 bits contains every address.
    scheme, _, rest = entry.partition(":")
    return scheme == "world" or (scheme == "ip" and rest.rpartition(":")[0].endswith("/0"))


def _read_acl(session: Session, root: str) -> RequestScript[Sequence[str]]:
    (entries,) = yield [partial(session.wire.acl_of, root)]
    return list(entries)
