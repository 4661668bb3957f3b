"""The session: what was granted, what the ensemble can keep, and how this process uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from django_zklock.doctor.quorum import ALLOW_WORDS
from django_zklock.findings import Finding
from django_zklock.zk.inspection.ensemble import Configuration, Server
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.session import Session

# What ZooKeeper gives of a session timeout it gives in milliseconds.
ROUNDING = 0.001
# Less than so many seconds for each server to accept, and one that is busy is passed over.
HURRY = 0.5


def examine(pool: Pool, connected: Session | None, servers: Sequence[Server]) -> Iterator[Finding]:
    """Judge the sessions of ``pool``, of which ``connected`` is one if any is, and the settings that concern them."""
    configurations = [server.configuration for server in servers if server.configuration]
    if pool.sessions():
        yield _pool(pool)
    yield _patience(pool.options, len(servers))
    if connected is not None:
        yield _timeout(connected, pool.options, configurations)
        yield _sync_limit(connected, servers, configurations)


def _pool(pool: Pool) -> Finding:
    sessions = pool.sessions()
    size = pool.options.size
    finding = partial(
        Finding,
        id="pool.sessions",
        subject=f"{len(sessions)} of at most {size} {'session' if size == 1 else 'sessions'} in this process",
    )
    away = [session.server for session in sessions if not session.connected]
    if away:
        return finding(
            level="error",
            found=f"not connected: {', '.join(away)}",
            advice="Look at the servers. Locks that are held are lost when the session timeout has gone by.",
        )
    at = ", ".join(f"0x{session.id or 0:x} at {session.server}" for session in sessions)
    return finding(level="ok", found=f"connected: {at}")


def _patience(options: PoolOptions, servers: int) -> Finding:
    each = options.connect_timeout / servers
    found = f"a call waits so long for ZooKeeper, which leaves each server {each:.2g} s to accept"
    finding = partial(Finding, id="pool.connect-timeout", subject=f"CONNECT_TIMEOUT {options.connect_timeout:g} s")
    if each < HURRY:
        return finding(
            level="warning",
            found=found,
            advice=f"Choose at least {HURRY * servers:g} s, or a call may give up before it has tried every server.",
        )
    return finding(level="ok", found=found)


def _timeout(session: Session, options: PoolOptions, configurations: Sequence[Configuration]) -> Finding:
    asked = options.connection.session_timeout
    finding = partial(Finding, id="session.timeout", subject=f"SESSION_TIMEOUT {asked:g} s")
    limits = [
        f"{each.min_session_timeout:g} to {each.max_session_timeout:g} s"
        for each in configurations
        if each.min_session_timeout and each.max_session_timeout
    ]
    given = f"; the servers grant {limits[0]}" if limits else ""
    if abs(session.timeout - asked) > ROUNDING:
        return finding(
            level="warning",
            found=f"ZooKeeper has granted {session.timeout:g} s{given}",
            advice="Ask for what is granted, or change minSessionTimeout and maxSessionTimeout in zoo.cfg, which are 2 "
            "and 20 ticks by default.",
        )
    return finding(level="ok", found=f"granted as asked for{given}")


def _sync_limit(session: Session, servers: Sequence[Server], configurations: Sequence[Configuration]) -> Finding:
    finding = partial(Finding, id="session.sync-limit", subject=f"session timeout {session.timeout:g} s")
    if any(server.role == "standalone" for server in servers):
        return finding(level="ok", found="a single server has no followers to wait for")
    limits = [each.sync_limit * each.tick_time for each in configurations if each.sync_limit and each.tick_time]
    if not limits:
        return finding(
            level="info",
            found="the servers do not tell syncLimit and tickTime, with which a session timeout should agree",
            advice=ALLOW_WORDS,
        )
    limit = max(limits)
    if session.timeout <= limit:
        return finding(
            level="warning",
            found=f"a follower may lag behind for syncLimit * tickTime = {limit:g} s: one that is cut off can keep its "
            f"clients waiting until their sessions are over, and every lock of them is lost",
            advice=f"Choose a SESSION_TIMEOUT above {limit:g} s, or a smaller syncLimit in zoo.cfg.",
        )
    return finding(level="ok", found=f"longer than a follower may lag behind, syncLimit * tickTime = {limit:g} s")
