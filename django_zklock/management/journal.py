"""What happens to locks, a line of text for each event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from django_zklock.management import changes
from django_zklock.management.changes import Change
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection.selection import Selection
from django_zklock.zk.inspection.survey import Line


class Journal:
    """Writes what has happened since the last reading to the locks of ``selection``: time, event, key and who.

    They are separated by tabs. The first reading is only to compare with.
    """

    def __init__(self, terminal: Terminal, selection: Selection) -> None:
        self._terminal = terminal
        self._selection = selection
        self._before: dict[str, Line] | None = None
        self._problem = ""

    def show(self, lines: Sequence[Line]) -> None:
        """Write what ``lines`` tell in comparison with the last reading."""
        now = datetime.now(timezone.utc)
        if self._problem:
            self._problem = ""
            self._write(now, "reachable", "-", "ZooKeeper can be read again")
        after = {line.path: line for line in lines}
        if self._before is not None:
            for path in sorted(self._before.keys() | after.keys()):
                self._compare(now, self._before.get(path), after.get(path))
        self._before = after

    def miss(self, problem: str) -> None:
        """Write that nothing could be read, once."""
        if not self._problem:
            self._write(datetime.now(timezone.utc), "unreachable", "-", problem)
        self._problem = problem

    def _compare(self, now: datetime, before: Line | None, after: Line | None) -> None:
        known = [line for line in (before, after) if line is not None]
        if any(self._selection.has(line, now.timestamp()) for line in known):
            for change in changes.between(before, after):
                self._write(now, change.what, display.visible(known[0].key), _detail(change))

    def _write(self, now: datetime, *texts: str) -> None:
        self._terminal.write("\t".join((f"{now:%Y-%m-%dT%H:%M:%SZ}", *texts)) + "\n")


def _detail(change: Change) -> str:
    who = display.who(change.place)
    return f"{who}: {change.place.revoked}" if change.what == "revoked" else who
