"""The state of each server of an ensemble, read with four-letter words, without a session, a lock or a quorum.

A server answers only the words in its ``4lw.commands.whitelist``, by default ``srvr`` alone. That answer is enough
here; ``mntr`` and ``conf`` add to it where they are allowed. Answers are not trusted: their length is bounded,
malformed numbers are left out, and texts are shown only after
:func:`~django_zklock.zk.formatting.escape_controls`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.waiting import DaemonCall, Deadline
from django_zklock.zk.wire import ConnectionOptions, four_letter
from django_zklock.zk.wire.options import explain

WORDS = SUMMARY, COUNTERS, SETTINGS = "srvr", "mntr", "conf"
ROLES = frozenset({"leader", "follower", "observer", "standalone", "read-only"})

_WITHHELD = "is not executed because it is not in the whitelist"
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
    deadline = Deadline.after(timeout)
    asked = [
        (address, {word: DaemonCall(partial(four_letter.send, options, address, word, deadline)) for word in WORDS})
        for address in four_letter.addresses(options.hosts)
    ]
    return [
        _server(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            {word: _answer(call, deadline, timeout) for word, call in calls.items()},
        )
        for (host, port), calls in asked
    ]


def _answer(call: DaemonCall[str], deadline: Deadline, timeout: float) -> str | Exception:
    try:
        return call.result(deadline)
    except TimeoutError:
        return TimeoutError(f"no answer within {timeout:g} s")
    except (OSError, ValueError) as error:  # the latter for a name that no host can have
        return error


def _server(address: str, answers: Mapping[str, str | Exception]) -> Server:
    summary, counters = _facts(answers[SUMMARY], ":"), _facts(answers[COUNTERS], "\t")
    settings = _facts(answers[SETTINGS], "=")
    role = summary.get("Mode")
    return Server(
        address=address,
        role=role if role in ROLES else None,
        version=_version(summary),
        latency=_latency(summary),
        connections=_number(summary.get("Connections")),
        sessions=_number(counters.get("zk_global_sessions")),
        outstanding=_number(summary.get("Outstanding")),
        nodes=_number(summary.get("Node count")),
        configuration=_configuration(settings) if "tickTime" in settings else None,
        withheld=tuple(word for word, answer in answers.items() if isinstance(answer, str) and _WITHHELD in answer),
        problem="" if role in ROLES else _problem(answers[SUMMARY]),
    )


def _problem(answer: str | Exception) -> str:
    if isinstance(answer, Exception):
        return escape_controls(explain(getattr(answer, "strerror", None) or str(answer) or type(answer).__name__))
    if _WITHHELD in answer:
        return f"it does not allow the word {SUMMARY}"
    if _NOT_SERVING in answer:
        return "it runs, but does not serve clients: it is not part of a quorum"
    if not answer:
        return "it has closed the connection without an answer"
    return f"this is no answer of ZooKeeper: {escape_controls(answer[:_QUOTED])}"


# Parsing. Malformed values are left out.


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


def _version(summary: Mapping[str, str]) -> str | None:
    found = re.match(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", summary.get("Zookeeper version", ""))
    return found[0] if found else None


def _latency(summary: Mapping[str, str]) -> Latency | None:
    number = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
    found = re.fullmatch("/".join([number] * 3), summary.get("Latency min/avg/max", ""))
    return Latency(minimum=float(found[1]), average=float(found[2]), maximum=float(found[3])) if found else None


def _configuration(settings: Mapping[str, str]) -> Configuration:
    members = [value for name, value in settings.items() if name.startswith("server.")]
    return Configuration(
        tick_time=_seconds(settings.get("tickTime")),
        min_session_timeout=_seconds(settings.get("minSessionTimeout")),
        max_session_timeout=_seconds(settings.get("maxSessionTimeout")),
        voters=sum(":observer" not in member for member in members) or None,
    )
