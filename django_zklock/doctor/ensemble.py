"""The ensemble: its servers, its leader, its size and version, and this process's sessions with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_zklock.doctor.configuration import is_loopback_only
from django_zklock.doctor.finding import Examination, Finding
from django_zklock.zk.ops.ensemble import NO_QUORUM, SUMMARY, WORDS, Configuration, Server
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions

ALLOW_WORDS = f"Add 4lw.commands.whitelist={','.join(WORDS)} to zoo.cfg of each server and restart them one by one."

MIN_VERSION = (3, 6)
# ZooKeeper grants session timeouts in whole milliseconds.
ROUNDING = 0.001
# The margin of a lease assumes this many ticks, see zk.wire.lease.
MIN_TICKS = 6
# Seconds for each server to accept a connection; with less a busy server is skipped.
MIN_CONNECT_SHARE = 0.5


def examine_servers(servers: Sequence[Server], options: ConnectionOptions) -> Iterator[Finding]:
    """Examine the servers in HOSTS by what they report."""
    serving = [server for server in servers if server.role]
    for server in servers:
        yield _server(server, alone=not serving)
    yield _leader(servers)
    if serving or any(server.withheld for server in servers):
        yield _words(servers)
    if serving:
        yield _size(servers, options)
        yield _version(serving)


def _server(server: Server, *, alone: bool) -> Finding:
    examined = Examination("ensemble.server", server.address)
    if not server.role:
        if SUMMARY in server.withheld:
            return examined.info(server.problem, ALLOW_WORDS)
        advice = "Start the server, or correct its address in HOSTS; check the firewall, TLS and the server's log."
        if server.problem == NO_QUORUM:
            advice = "Start the others; check that all reach each other at the two ports of server.N in zoo.cfg."
        return examined.error(server.problem, advice) if alone else examined.warning(server.problem, advice)
    latency = server.latency
    facts = {
        "version": server.version,
        "latency": latency and f"{latency.minimum:g}/{latency.average:g}/{latency.maximum:g} ms",
        "connections": server.connections,
        "sessions": server.sessions,
        "outstanding requests": server.outstanding,
        "nodes": server.nodes,
    }
    known = [f"{name} {fact}" for name, fact in facts.items() if fact is not None]
    return examined.ok(", ".join([server.role, *known]))


def _words(servers: Sequence[Server]) -> Finding:
    withheld = [word for word in WORDS if any(word in server.withheld for server in servers)]
    examined = Examination("ensemble.words", ", ".join(withheld or WORDS))
    if withheld:
        found = "some servers do not allow these words, so sessions, ticks and limits are unknown"
        return examined.info(found, ALLOW_WORDS)
    return examined.ok("every server that answers allows these words")


def _leader(servers: Sequence[Server]) -> Finding:
    leaders = [server.address for server in servers if server.role == "leader"]
    standalone = [server.address for server in servers if server.role == "standalone"]
    examined = Examination("ensemble.leader", ", ".join(leaders + standalone) or "HOSTS")
    if len(leaders) > 1 or (standalone and len(servers) > 1):
        return examined.error(
            "these servers do not belong to one ensemble: two processes could hold the same lock",
            "Set HOSTS to the servers of one ensemble, and list each of them in every zoo.cfg (server.N=…).",
        )
    if leaders or standalone:
        return examined.ok("is the leader" if leaders else "is standalone and needs no leader")
    if any(server.role for server in servers):
        return examined.info(
            "some servers follow a leader, but the leader is not among the servers that answered",
            "Name all servers of the ensemble in HOSTS, and check those that do not answer.",
        )
    if any(SUMMARY in server.withheld for server in servers):
        return examined.info("no server reports its role", ALLOW_WORDS)
    return examined.error(
        "no server that answered is part of a quorum, and without a quorum no lock can be acquired",
        "Start the servers; a majority of them must run and reach each other.",
    )


def _size(servers: Sequence[Server], options: ConnectionOptions) -> Finding:
    voters = max((server.configuration.voters or 0 for server in servers if server.configuration), default=0)
    named = sum(server.role != "observer" for server in servers)
    count = max(voters, named)
    examined = Examination("ensemble.size", f"{count} server" if count == 1 else f"{count} servers")
    if [server.role for server in servers] == ["standalone"]:
        found = "a single server: no lock can be acquired while it restarts, and a lost disk loses everything"
        advice = "Run an ensemble of three servers in production."
        return examined.info(found, advice) if is_loopback_only(options) else examined.warning(found, advice)
    if named < voters or named == 1:
        return examined.warning(
            "HOSTS does not name every server: if the named ones fail, clients cannot find the others",
            "Name all servers of the ensemble in HOSTS.",
        )
    if count == 2:
        found = "if one server fails, there is no majority, and no lock can be acquired"
        return examined.warning(found, "Run three servers.")
    tolerance = f"{(count - 1) // 2} of them may fail"
    if count % 2 == 0:
        return examined.info(
            f"{tolerance}, as with one server less: the last server adds no tolerance",
            "Run an odd number of servers, or make one of them an observer.",
        )
    return examined.ok(tolerance)


def _version(serving: Sequence[Server]) -> Finding:
    versions = sorted({server.version for server in serving if server.version}, key=_release)
    examined = Examination("ensemble.version", ", ".join(versions) or "unknown")
    if versions and _release(versions[0]) < MIN_VERSION:
        advice = "Update the servers to a supported version of ZooKeeper."
        return examined.error("ZooKeeper before 3.6 is not supported", advice)
    if len(versions) > 1:
        return examined.warning("the servers have different versions", "Finish the update of the servers.")
    return examined.ok("all servers have one version")


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def examine_sessions(pool: Pool, connected: Session | None, servers: Sequence[Server]) -> Iterator[Finding]:
    """Examine the sessions of ``pool`` and their settings; ``connected`` is one of them, if any is connected."""
    configurations = [server.configuration for server in servers if server.configuration]
    if pool.sessions():
        yield _pool(pool)
    # One name may have several addresses, of which each is tried.
    yield _connect_timeout(pool.options, max([len(servers), *(each.wire.addresses for each in pool.sessions())]))
    if connected is not None:
        yield _session_timeout(connected, pool.options, configurations)
        yield _ticks(connected, servers, configurations)


def _pool(pool: Pool) -> Finding:
    sessions, overflow = pool.sessions(), pool.overflow_sessions()
    size = pool.options.size
    noun = "session" if size == 1 else "sessions"
    examined = Examination("pool.sessions", f"{len(sessions) - len(overflow)} of at most {size} {noun} in this process")
    # One whose connection ends at each request is connected in between.
    disconnected = [session for session in sessions if not session.connected or session.wire.failure]
    if disconnected:
        return examined.error(
            f"not connected: {', '.join(session.wire.server for session in disconnected)}",
            "Check the servers. Locks of a session are lost when it has been disconnected for its timeout.",
        )
    at = ", ".join(f"0x{session.id or 0:x} at {session.wire.server}" for session in sessions)
    if overflow:
        used = sum(session.used for session in sessions)
        return examined.info(
            f"connected: {at}; {len(overflow)} of them because the nodes of the locks and waiters of this process "
            f"take {used:,} bytes, and one session may have {pool.options.budget:,}",
            "Look for locks that are not released. If the process needs that many, it needs nothing else: the other "
            "sessions are closed when they are idle.",
        )
    return examined.ok(f"connected: {at}")


def _connect_timeout(options: PoolOptions, addresses: int) -> Finding:
    share = options.connect_timeout / addresses
    found = f"a call waits this long for ZooKeeper, so each server has {share:.2g} s to accept the connection"
    examined = Examination("pool.connect-timeout", f"CONNECT_TIMEOUT {options.connect_timeout:g} s")
    if share < MIN_CONNECT_SHARE:
        advice = (
            f"Set at least {MIN_CONNECT_SHARE * addresses:g} s, or a call may fail before it has tried all of them."
        )
        return examined.warning(found, advice)
    return examined.ok(found)


def _session_timeout(session: Session, options: PoolOptions, configurations: Sequence[Configuration]) -> Finding:
    requested = options.connection.session_timeout
    examined = Examination("session.timeout", f"SESSION_TIMEOUT {requested:g} s")
    limits = [
        f"{each.min_session_timeout:g} to {each.max_session_timeout:g} s"
        for each in configurations
        if each.min_session_timeout and each.max_session_timeout
    ]
    if len(set(limits)) > 1:
        return examined.warning(
            f"the servers grant different timeouts: {', '.join(limits)}; a session that moves to a server which grants "
            "less may end before its locks are known to be lost",
            "Set the same tickTime, minSessionTimeout and maxSessionTimeout on all servers.",
        )
    range_granted = f"; the servers grant {limits[0]}" if limits else ""
    if abs(session.timeout - requested) > ROUNDING:
        return examined.warning(
            f"ZooKeeper has granted {session.timeout:g} s{range_granted}",
            "Ask for what is granted, or change minSessionTimeout and maxSessionTimeout in zoo.cfg, which are 2 "
            "and 20 ticks by default.",
        )
    return examined.ok(f"granted as requested{range_granted}")


def _ticks(session: Session, servers: Sequence[Server], configurations: Sequence[Configuration]) -> Finding:
    examined = Examination("session.ticks", f"session timeout {session.timeout:g} s")
    if any(server.role == "standalone" for server in servers):
        return examined.ok("a single server cannot lose followers")
    ticks = [each.tick_time for each in configurations if each.tick_time]
    if not ticks:
        found = f"the servers do not report tickTime; a session timeout should be at least {MIN_TICKS} ticks"
        return examined.info(found, ALLOW_WORDS)
    minimum = MIN_TICKS * max(ticks)
    if session.timeout < minimum:
        return examined.warning(
            f"less than {MIN_TICKS} ticks of {max(ticks):g} s: a holder that is cut off together with its follower "
            "may trust its lock slightly too long",
            f"Set SESSION_TIMEOUT to at least {minimum:g} s, or a smaller tickTime in zoo.cfg.",
        )
    return examined.ok(f"at least {MIN_TICKS} ticks of {max(ticks):g} s")
