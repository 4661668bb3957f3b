"""The state of each server of an ensemble, read with four-letter words, without a session, a lock or a quorum.

These are commands that a server answers without a session (Administrator's Guide, "Commands"). It answers only the
words in its ``4lw.commands.whitelist``, by default ``srvr`` alone. That answer is enough here; ``mntr`` and ``conf``
add to it where they are allowed. Answers are not trusted: their length is bounded, malformed numbers are left out, and
texts are shown only after :func:`~django_zklock.zk.formatting.escape_controls`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from django_zklock.zk import owners
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.waiting import NO_THREAD, DaemonCall, Deadline
from django_zklock.zk.wire import ConnectionOptions
from django_zklock.zk.wire.options import explain, join_address, tls_context

WORDS = SUMMARY, COUNTERS, SETTINGS = "srvr", "mntr", "conf"
ROLES = frozenset({"leader", "follower", "observer", "standalone", "read-only"})

# The longest answer of a real server, that to "mntr", has about 20 kB.
MAX_ANSWER = 64 * 1024
CHUNK_SIZE = 4096

_WITHHELD = "is not executed because it is not in the whitelist"
NO_QUORUM = "it runs, but does not serve clients: it is not part of a quorum"
_NOT_SERVING = "is not currently serving requests"
# The number of characters of an unknown answer that a message quotes.
_QUOTED = 60


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The response times of a server since its start, in milliseconds."""

    minimum: float
    average: float
    maximum: float


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration of a server, as far as it matters to clients. Times are seconds.

    ``voters``, the number of voting servers, is ``None`` for a standalone server.
    """

    tick_time: float | None = None
    min_session_timeout: float | None = None
    max_session_timeout: float | None = None
    voters: int | None = None


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of the ensemble, by its own answers. Unknown values are ``None``.

    ``problem`` is the reason if nothing is known. ``withheld`` are the words that it refused to answer. ``sessions``
    and ``configuration`` are known only where ``mntr`` and ``conf`` are allowed.
    """

    address: str
    role: str | None = None
    version: str | None = None
    latency: Latency | None = None
    connections: int | None = None
    sessions: int | None = None
    outstanding: int | None = None
    nodes: int | None = None
    configuration: Configuration | None = None
    withheld: tuple[str, ...] = ()
    problem: str = ""


def servers(options: ConnectionOptions, *, timeout: float) -> list[Server]:
    """Ask all servers of ``options.hosts`` in parallel, for at most ``timeout`` seconds; return them in that order.

    Raises ``ValueError`` if ``hosts`` is no list of servers. What fails with one server is its ``problem``.
    """
    owners.check_may_wait("the servers cannot be asked")
    deadline = Deadline.after(timeout)
    asked = [
        (address, {word: DaemonCall(partial(_send, options, address, word, deadline)) for word in WORDS})
        for address in options.addresses()
    ]
    found = []
    for (host, port), calls in asked:
        answers: dict[str, str | Exception] = {}
        for word, call in calls.items():
            try:
                answers[word] = call.result(deadline)
            except TimeoutError:
                answers[word] = TimeoutError(f"no answer within {timeout:g} s")
            except (OSError, ValueError, *NO_THREAD) as error:  # the second for a name that no host can have
                answers[word] = error
        found.append(_server(join_address(host, port), answers))
    return found


def _send(options: ConnectionOptions, address: tuple[str, int], word: str, deadline: Deadline) -> str:
    """Send ``word`` to the server at ``address`` and return the first 64 kB of its answer.

    Raises ``OSError`` if the server cannot be reached, TLS fails, or the answer is not complete at ``deadline``. The
    system resolves the host name, which may take longer.
    """
    with ExitStack() as stack:
        sock = stack.enter_context(_connect(address, deadline))
        if options.use_tls:
            sock = stack.enter_context(tls_context(options).wrap_socket(sock, server_hostname=address[0]))
        sock.sendall(word.encode("ascii"))
        answer = bytearray()
        while len(answer) < MAX_ANSWER:
            left = deadline.remaining()
            if left == 0:
                raise TimeoutError("timed out")
            sock.settimeout(left)
            chunk = sock.recv(CHUNK_SIZE)
            if not chunk:
                break
            answer += chunk
        return answer[:MAX_ANSWER].decode(errors="replace")


def _connect(address: tuple[str, int], deadline: Deadline) -> socket.socket:
    """Connect to the first address of a host that accepts, each in an equal share of what is left."""
    entries = socket.getaddrinfo(*address, 0, socket.SOCK_STREAM)
    for number, (family, kind, protocol, _name, sockaddr) in enumerate(entries, start=1):
        sock = socket.socket(family, kind, protocol)
        try:
            left = deadline.remaining()
            sock.settimeout(None if left is None else left / (len(entries) + 1 - number))
            sock.connect(sockaddr)
        except OSError:
            sock.close()
            if number == len(entries):
                raise
        else:
            return sock
    raise OSError("the host name has no address")


# Parsing. Malformed values are left out.


def _server(address: str, answers: Mapping[str, str | Exception]) -> Server:
    summary, counters = _facts(answers[SUMMARY], ":"), _facts(answers[COUNTERS], "\t")
    settings = _facts(answers[SETTINGS], "=")
    role = summary.get("Mode")
    version = re.match(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", summary.get("Zookeeper version", ""))
    number = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
    latency = re.fullmatch("/".join([number] * 3), summary.get("Latency min/avg/max", ""))
    members = [value for name, value in settings.items() if name.startswith("server.")]
    return Server(
        address=address,
        role=role if role in ROLES else None,
        version=version and version[0],
        latency=latency and Latency(minimum=float(latency[1]), average=float(latency[2]), maximum=float(latency[3])),
        connections=_number(summary.get("Connections")),
        sessions=_number(counters.get("zk_global_sessions")),
        outstanding=_number(summary.get("Outstanding")),
        nodes=_number(summary.get("Node count")),
        configuration=Configuration(
            tick_time=_seconds(settings["tickTime"]),
            min_session_timeout=_seconds(settings.get("minSessionTimeout")),
            max_session_timeout=_seconds(settings.get("maxSessionTimeout")),
            voters=sum(":observer" not in member for member in members) or None,
        )
        if "tickTime" in settings
        else None,
        withheld=tuple(word for word, answer in answers.items() if isinstance(answer, str) and _WITHHELD in answer),
        problem="" if role in ROLES else _problem(answers[SUMMARY]),
    )


def _problem(answer: str | Exception) -> str:
    if isinstance(answer, Exception):
        return escape_controls(explain(getattr(answer, "strerror", None) or str(answer) or type(answer).__name__))
    if _WITHHELD in answer:
        return f"it does not allow the word {SUMMARY}"
    if _NOT_SERVING in answer:
        return NO_QUORUM
    if not answer:
        return "it has closed the connection without an answer"
    return f"this is no answer of ZooKeeper: {escape_controls(answer[:_QUOTED])}"


def _facts(answer: str | Exception, separator: str) -> dict[str, str]:
    """Return the text after the separator in each line, by the text before it."""
    if isinstance(answer, Exception):
        return {}
    lines = (line.partition(separator) for line in answer.splitlines())
    return {name.strip(): value.strip() for name, found, value in lines if found}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def _seconds(milliseconds: str | None) -> float | None:
    number = _number(milliseconds)
    return None if number is None else number / 1000
