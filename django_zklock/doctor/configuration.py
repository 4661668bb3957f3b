"""The setting ``ZKLOCK``: what the system checks say of it, and whether access is secured."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from functools import partial

from django.core.checks import ERROR

from django_zklock import checks
from django_zklock.doctor.finding import Examination, Finding
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import scripts, wire
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.scripts import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions

# Seconds that ZooKeeper has to return an ACL.
ACL_TIMEOUT = 1.0
# With any of these permissions every client can do more than read.
WRITE_PERMISSIONS = set("cdwa")


def run_system_checks() -> Iterator[Finding]:
    """Yield the messages of the system checks for all aliases, except those that the project has silenced."""
    messages = [each for each in checks.check_setting() if not each.is_silenced()]
    for message in messages:
        if message.id == "django_zklock.E001":
            # settings.readable says it, for the examined alias.
            continue
        examined = Examination("settings.checks", str(message.id))
        report = examined.error if message.level >= ERROR else examined.warning
        yield report(str(message.msg), message.hint or "")
    if not messages:
        yield Examination("settings.checks", "ZKLOCK").ok("the system checks report nothing")


def examine_kazoo() -> Iterator[Finding]:
    """Examine whether the installed version of kazoo was tested."""
    version = wire.untested_kazoo()
    if version is not None:
        yield Examination("client.kazoo", f"kazoo {version}").warning(
            f"only kazoo {wire.TESTED_KAZOO} was tested, and another minor release may change private names that the "
            f"locks use",
            f'Install "kazoo~={wire.TESTED_KAZOO}.0", or run the tests of this package with this version.',
        )


def examine_security(options: PoolOptions, connected: Session | None) -> Iterator[Finding]:
    """Examine TLS and credentials, and the ACL of ROOT if a session is connected."""
    yield _tls(options.connection)
    yield _credentials(options.connection)
    if connected is not None:
        yield _acl(connected, options.root, options.connection)


def is_loopback_only(options: ConnectionOptions) -> bool:
    """Return whether every server in HOSTS is on the loopback interface, without looking up names."""
    return all(_is_loopback(host) for host, _port in options.addresses())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(options: ConnectionOptions) -> Finding:
    examined = Examination("security.tls", "TLS")
    if options.use_tls and not options.tls_verify:
        return examined.warning(
            "TLS does not verify the servers' certificates: any host on the network path can act as ZooKeeper",
            'Remove "VERIFY": False, and set "CA" to the authority of the certificates.',
        )
    if options.use_tls:
        return examined.ok("TLS is on")
    if is_loopback_only(options):
        return examined.ok("TLS is off; all servers are on this host")
    return examined.warning(
        "TLS is off: any host on the network path can read everything, and acquire and break locks",
        "Set TLS, or make sure that the network has no other users.",
    )


def _credentials(options: ConnectionOptions) -> Finding:
    used = [name for name, value in (("AUTH", options.auth), ("SASL", options.sasl)) if value]
    examined = Examination("security.credentials", " and ".join(used) or "no credentials")
    if used and not options.use_tls and not is_loopback_only(options):
        found = "without TLS other hosts on the network path can read or guess the credentials"
        return examined.warning(found, "Set TLS.")
    found = "the credentials do not cross a network unencrypted" if used else "no credentials can be intercepted"
    return examined.ok(found)


def _acl(session: Session, root: str, options: ConnectionOptions) -> Finding:
    examined = Examination("security.acl", root)

    def read() -> RequestScript[Sequence[str]]:
        (entries,) = yield [partial(session.wire.acl_of, root)]
        return list(entries)

    try:
        entries = scripts.run(session, read, action=f"read the ACL of {root}", timeout=ACL_TIMEOUT)
    except ZkLockError as error:
        return examined.info(str(error), "Let these credentials read the ACL of ROOT.")
    world = {letter for entry in entries if _is_for_everyone(entry) for letter in entry.rpartition(":")[2]}
    if not world & WRITE_PERMISSIONS:
        found = "every client can read the locks, and only permitted clients can change them"
        return examined.ok(found if world else "only permitted clients have access")
    found = "ROOT is open to the world: every client of ZooKeeper can acquire and break the locks"
    advice = 'Set AUTH or SASL, and "ACL": "creator", under a new ROOT.'
    if options.acl != "open":
        advice = "ROOT was created before ACL was set: choose a new ROOT, or change the ACL of it and all nodes below."
    return examined.info(found, advice) if is_loopback_only(options) else examined.warning(found, advice)


def _is_for_everyone(entry: str) -> bool:
    # A network prefix of 0 bits contains every address.
    scheme, _, rest = entry.partition(":")
    return scheme == "world" or (scheme == "ip" and rest.rpartition(":")[0].endswith("/0"))
