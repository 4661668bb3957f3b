"""The servers of the ensemble: who is there, who leads, how many there are, and of which version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from django_zklock.doctor.nearness import is_here
from django_zklock.findings import Finding
from django_zklock.zk.inspection.ensemble import SUMMARY, WORDS, Server
from django_zklock.zk.wire import ConnectionOptions

ALLOW_WORDS = f"Add 4lw.commands.whitelist={','.join(WORDS)} to zoo.cfg of each server and restart them one by one."

# What is asked of a server came with the first; what makes the list of locks quick, with the second.
OLDEST = (3, 5)
CURRENT = (3, 6)


def examine(servers: Sequence[Server], options: ConnectionOptions) -> Iterator[Finding]:
    """Judge what the servers in HOSTS tell of themselves."""
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
    finding = partial(Finding, id="ensemble.server", subject=server.address)
    if server.role:
        return finding(level="ok", found=_facts(server))
    if SUMMARY in server.withheld:
        return finding(level="info", found=server.problem, advice=ALLOW_WORDS)
    return finding(
        level="error" if alone else "warning",
        found=server.problem,
        advice="Start the server, or correct its address in HOSTS; look at the firewall, at TLS and at its log.",
    )


def _facts(server: Server) -> str:
    latency = server.latency
    facts = {
        "version": server.version,
        "latency": latency and f"{latency.minimum:g}/{latency.average:g}/{latency.maximum:g} ms",
        "connections": server.connections,
        "sessions": server.sessions,
        "outstanding requests": server.outstanding,
        "nodes": server.nodes,
    }
    return ", ".join([str(server.role), *(f"{name} {fact}" for name, fact in facts.items() if fact is not None)])


def _words(servers: Sequence[Server]) -> Finding:
    finding = partial(Finding, id="ensemble.words")
    withheld = [word for word in WORDS if any(word in server.withheld for server in servers)]
    if withheld:
        return finding(
            level="info",
            subject=", ".join(withheld),
            found="some servers do not answer these words, so sessions, ticks and limits are not known",
            advice=ALLOW_WORDS,
        )
    return finding(level="ok", subject=", ".join(WORDS), found="no server refuses these words")


def _leader(servers: Sequence[Server]) -> Finding:
    finding = partial(Finding, id="ensemble.leader")
    leaders = [server.address for server in servers if server.role == "leader"]
    loners = [server.address for server in servers if server.role == "standalone"]
    if len(leaders) > 1 or (loners and len(servers) > 1):
        return finding(
            level="error",
            subject=", ".join(leaders + loners),
            found="these servers do not belong to one ensemble: two processes could hold the same lock",
            advice="Name in HOSTS the servers of one ensemble only, and each of them in zoo.cfg of all (server.N=…).",
        )
    if leaders or loners:
        found = "leads" if leaders else "stands alone, and needs no leader"
        return finding(level="ok", subject=(leaders + loners)[0], found=found)
    if any(server.role for server in servers):
        return finding(
            level="info",
            subject="HOSTS",
            found="there is a leader, for others follow it, but it is not among the servers that have answered",
            advice="Name all servers of the ensemble in HOSTS, and look at those that do not answer.",
        )
    if any(SUMMARY in server.withheld for server in servers):
        return finding(level="info", subject="HOSTS", found="no server tells its role", advice=ALLOW_WORDS)
    return finding(
        level="error",
        subject="HOSTS",
        found="no server that has answered is part of a quorum, and without one nobody can take a lock",
        advice="Start the servers; a majority of them must run and reach each other.",
    )


def _size(servers: Sequence[Server], options: ConnectionOptions) -> Finding:
    voters = max((server.configuration.voters or 0 for server in servers if server.configuration), default=0)
    named = sum(server.role != "observer" for server in servers)
    count = max(voters, named)
    finding = partial(Finding, id="ensemble.size", subject=f"{count} server" if count == 1 else f"{count} servers")
    if [server.role for server in servers] == ["standalone"]:
        return finding(
            level="info" if is_here(options) else "warning",
            found="a single server: while it is restarted nobody can take a lock, and a lost disk loses all",
            advice="For production run an ensemble of three.",
        )
    if named < voters or named == 1:
        return finding(
            level="warning",
            found="HOSTS does not name all that there are: while those that it names are away, nobody finds the others",
            advice="Name all servers of the ensemble in HOSTS.",
        )
    if count == 2:
        return finding(
            level="warning",
            found="when either of them is away there is no majority, and nobody can take a lock",
            advice="Run three servers.",
        )
    may = f"{(count - 1) // 2} of them may be away"
    if count % 2 == 0:
        return finding(
            level="info",
            found=f"{may}, as with one server less: an even number gains nothing",
            advice="Run an odd number of servers, or make one of them an observer.",
        )
    return finding(level="ok", found=may)


def _version(serving: Sequence[Server]) -> Finding:
    versions = sorted({server.version for server in serving if server.version}, key=_release)
    finding = partial(Finding, id="ensemble.version", subject=", ".join(versions) or "unknown")
    if versions and _release(versions[0]) < OLDEST:
        return finding(
            level="error",
            found="before version 3.5 ZooKeeper lacks requests that every lock needs",
            advice="Update the servers to a supported version of ZooKeeper.",
        )
    if len(versions) > 1:
        found, advice = "the servers are of different versions", "Finish the update that is under way."
        return finding(level="warning", found=found, advice=advice)
    if versions and _release(versions[0]) < CURRENT:
        return finding(
            level="info",
            found="before version 3.6 ZooKeeper reads one node at a request, so that long lists of locks take longer",
            advice="Update the servers to a supported version of ZooKeeper.",
        )
    return finding(level="ok", found="all servers are of one version")


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
