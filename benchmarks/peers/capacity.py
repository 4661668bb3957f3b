"""How much servers carry: the ceiling, and what follows from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.peers.ceiling import FACTOR, Step, ceiling_of, steps_of
from benchmarks.peers.results import Results
from benchmarks.peers.summary import MISSING, amount, markdown, middle, number

MICRO = 1e-6
SERVERS = {
    "standalone": "one server, without sync",
    "standalone-sync": "one server",
    "ensemble": "three servers, without sync",
    "ensemble-sync": "three servers",
}
# Of a lock that no other contender wants: create, list, delete.
FREE_REQUESTS = 3
# The setting's default, in seconds.
SESSION_TIMEOUT = 15
# The part of the ceiling that heartbeats may take.
HEARTBEAT_SHARE = 0.1


def ceilings_of(results: Results) -> dict[str, tuple[list[Step], Step]]:
    """Return the steps and the ceiling of each kind of servers that was measured."""
    found = {}
    for name in SERVERS:
        figures: Mapping[str, list[float]] = results.figures.get("ceiling", {}).get(name, {})
        if steps := steps_of(figures):
            found[name] = (steps, ceiling_of(steps))
    return found


def ceilings(results: Results) -> str:
    """Return the ceiling of each kind of servers."""
    rows = []
    for name, (steps, ceiling) in ceilings_of(results).items():
        peak = max(steps, key=lambda step: step.rate)
        rows.append([
            SERVERS[name],
            number(steps[0].latency / MICRO),
            amount(results.values("ceiling", name, f"rate@{ceiling.clients}")),
            str(ceiling.clients),
            number(peak.rate),
            number(peak.latency / MICRO),
            middle(results.values("ceiling", name, f"server_cpu@{ceiling.clients}"), MICRO),
        ])  # fmt: skip
    head = ["", "one client: time, µs", f"cycles a second below {FACTOR:g} times that", "clients then",
            "most cycles a second", "time then, µs", "CPU of the servers for a cycle, µs"]  # fmt: skip
    return markdown(head, rows)


def sessions(results: Results) -> str:
    """Return what a session costs."""
    rows = [
        ["to open one: time, µs", amount(results.values("sessions", "raw", "open_time"), MICRO)],
        ["to open one: CPU of the server, µs", amount(results.values("sessions", "raw", "open_cpu"), MICRO)],
        ["a ping: CPU of the server, µs", amount(results.values("sessions", "raw", "ping_cpu"), MICRO)],
        [
            "requests of one that holds a lock, in one session timeout",
            amount(results.values("sessions", "ours", "requests_per_timeout")),
        ],
    ]
    return markdown(["", "figure"], rows)


def capacity(results: Results) -> str:
    """Return what the figures mean for a system: estimates, rounded to two digits."""
    found = ceilings_of(results)
    handed = results.values("threads-8", "ours", "requests")
    beats = results.values("sessions", "ours", "requests_per_timeout")
    rates = {name: ceiling.rate for name, (_, ceiling) in found.items()}

    def row(title: str, values: Mapping[str, float | None]) -> list[str]:
        return [title, *(MISSING if value is None else rough(value) for value in values.values())]

    rows = [
        row("locks a second that are free when they are wanted", dict(rates)),
        row(
            "locks a second that go from one contender to the next",
            {
                name: rate * FREE_REQUESTS / statistics.median(handed) if handed else None
                for name, rate in rates.items()
            },
        ),
        row(
            f"sessions whose heartbeats take {HEARTBEAT_SHARE:.0%} of that, at a timeout of {SESSION_TIMEOUT} s",
            {
                name: rate * FREE_REQUESTS * HEARTBEAT_SHARE * SESSION_TIMEOUT / statistics.median(beats)
                if beats
                else None
                for name, rate in rates.items()
            },
        ),
    ]
    return markdown(["", *(SERVERS[name] for name in rates)], rows)


def rough(value: float) -> str:
    """Return an estimate with two digits that count."""
    return f"{float(f'{value:.2g}'):,.0f}"
