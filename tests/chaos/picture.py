"""The picture of a season: the holds of each key, the sessions, and the faults, over time; and the report of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checker import Checker, Finding
from .history import Row

# Colours that differ for a colour-blind reader, too.
COLOURS = {"exclusive": "#1f5fa8", "write": "#b1404a", "read": "#4f9d69", "lease": "#c58a1b"}
FAULT, SUSPENDED, ENDED, WRONG = "#8a8f98", "#e0a030", "#c0392b", "#c0392b"
# Inches for a row of the picture, and for a season of four minutes.
ROW, WIDTH = 0.17, 14.0


def draw(
    rows: Sequence[Row], findings: Sequence[Finding], file: Path, *, since: float = 0.0, until: float = 1e9
) -> None:
    """Draw a season, or what was between two of its seconds, as a picture whose format the file's name says."""
    from matplotlib.figure import Figure

    checker = Checker(list(rows))
    zero = next(row["at"] for row in rows if row["what"] == "season")
    end = min(max(row["at"] for row in rows) - zero, until)
    keys = sorted(checker.holds)
    clients = sorted({row["client"] for row in checker.by["client"]})
    faults = [
        (row["fault"], row["at"] - zero, upto - zero)
        for row, (_victim, _since, upto) in zip(checker.by["fault"], checker.faults(), strict=True)
    ]
    kinds = sorted({what for what, _, _ in faults})
    figure = Figure(figsize=(WIDTH, ROW * (len(keys) + len(clients) + len(kinds)) + 2.2), layout="constrained")
    heights = [max(1, len(lines)) for lines in (keys, clients, kinds)]
    held, sessions, broken = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    for line, key in enumerate(keys):
        by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for hold in checker.holds[key]:
            by_kind[hold.kind].append((hold.began - zero, max(hold.sure - hold.began, 0.02)))
        for kind, spans in by_kind.items():
            held.broken_barh(spans, (line - 0.4, 0.8), color=COLOURS[kind], linewidth=0)
    for finding in findings:
        held.axvline(finding.at - zero, color=WRONG, linewidth=1.0)
    _label(held, keys, "holds by key")
    for kind, colour in COLOURS.items():
        held.plot([], [], color=colour, linewidth=6, label=kind)
    held.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=7, frameon=False)
    for line, client in enumerate(clients):
        for what, colour, spans in _sessions(checker, client, zero, end):
            sessions.broken_barh(spans, (line - 0.4, 0.8), color=colour, linewidth=0, label=what)
        ended = [
            row["at"] - zero
            for row in checker.by["event"]
            if (row["client"], row["event"]) == (client, "session_ended")
        ]
        sessions.plot(ended, [line] * len(ended), linestyle="", marker="x", color=ENDED, markersize=4)
    _label(sessions, clients, "sessions")
    for line, kind in enumerate(kinds):
        spans = [(began, max(min(upto, end) - began, 0.1)) for what, began, upto in faults if what == kind]
        broken.broken_barh(spans, (line - 0.4, 0.8), color=FAULT, linewidth=0)
    _label(broken, kinds, "faults")
    broken.set_xlabel("seconds; a cross ends a session, orange is a broken connection")
    broken.set_xlim(max(0.0, since), end)
    figure.savefig(file, dpi=110)


def _label(axes: Any, lines: Sequence[str], title: str) -> None:
    axes.set_yticks(range(len(lines)), lines, fontsize=6)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize=8)
    axes.grid(axis="x", linewidth=0.3)
    axes.tick_params(axis="x", labelsize=7)


def _sessions(
    checker: Checker, client: str, zero: float, end: float
) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """Return the times with a connection and without, of the main process of a client."""
    mains = {row["pid"] for row in checker.by["client"] if row["client"] == client}
    spans: dict[str, list[tuple[float, float]]] = {"connected": [], "suspended": []}
    since, state = 0.0, ""
    for row in [
        *checker.rows,
        {"at": zero + end, "what": "event", "event": "end", "client": client, "pid": min(mains)},
    ]:
        if row["what"] != "event" or row["client"] != client or row["pid"] not in mains:
            continue
        if row["event"] in {"connected", "suspended", "session_ended", "end"}:
            if state:
                spans[state].append((since, row["at"] - zero - since))
            since = row["at"] - zero
            state = row["event"] if row["event"] in spans else "suspended"
    return [("connected", "#b7c9dd", spans["connected"]), ("suspended", SUSPENDED, spans["suspended"])]


def describe(counts: Mapping[str, int], faults: Counter[str], planted: Mapping[str, bool | None]) -> str:
    """Return the figures of a run as Markdown."""
    names = {
        "faults": "faults",
        "calls": "calls",
        "holds": "holds",
        "held": "calls that ended with a hold that was never lost",
        "LockTimeout": "calls that gave up in time",
        "LockLost": "holds that were lost, and told so",
        "ZooKeeperUnavailable": "calls that were told that ZooKeeper was away",
        "coalesced": "calls that were skipped for another one",
        "taken": "attempts that found the lock taken",
        "diverged": "nodes that one server had alone, until it was given the data of the others",
    }
    lines = ["| | |", "|---|---:|"]
    lines += [f"| {text} | {counts.get(name, 0):,} |" for name, text in names.items()]
    lines += ["", "| Fault | times |", "|---|---:|"]
    lines += [f"| {name} | {count} |" for name, count in sorted(faults.items())]
    lines += ["", "| Planted | found |", "|---|---|"]
    words = {True: "yes", False: "**no**", None: "no place for it in this history"}
    lines += [f"| {name} | {words[found]} |" for name, found in planted.items()]
    return "\n".join(lines) + "\n"
