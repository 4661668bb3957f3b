"""What happens to locks, a line of text for each event."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from django_zklock import facts
from django_zklock.management import changes
from django_zklock.management.changes import Change
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection.selection import Selection
from django_zklock.zk.inspection.survey import Line


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change of a lock, or of ZooKeeper itself, which has a ``note`` instead."""

    moment: datetime
    what: str
    alias: str
    change: Change | None = None
    note: str | None = None

    @property
    def time(self) -> str:
        """When it was seen."""
        return f"{self.moment:%Y-%m-%dT%H:%M:%SZ}"


def as_text(event: Event) -> str:
    """Give time, event, key and who, separated by tabs."""
    change = event.change
    if change is None:
        return "\t".join((event.time, event.what, "-", event.note or ""))
    who = display.who(change.place)
    if event.what == "revoked":
        who += f": {change.place.revoked}"
    return "\t".join((event.time, event.what, display.visible(change.line.key), who))


def as_json(event: Event) -> str:
    """Give one JSON object, all of it in ASCII."""
    change, lock = event.change, {"alias": event.alias, "key": None, "path": None, "place": None}
    if change is not None:
        lock = facts.change(event.alias, change.line, change.place, event.moment.timestamp())
    return json.dumps({"time": event.time, "event": event.what, **lock, "note": event.note})


class Journal:
    """Writes what has happened since the last reading to the locks of ``selection``; ``form`` is how.

    The first reading is only to compare with.
    """

    def __init__(self, terminal: Terminal, alias: str, selection: Selection, form: Callable[[Event], str]) -> None:
        self._terminal = terminal
        self._alias = alias
        self._selection = selection
        self._form = form
        self._before: dict[str, Line] | None = None
        self._problem = ""

    def show(self, lines: Sequence[Line]) -> None:
        """Write what ``lines`` tell in comparison with the last reading."""
        now = datetime.now(timezone.utc)
        if self._problem:
            self._problem = ""
            self._write(now, "reachable", note="ZooKeeper can be read again")
        after = {line.path: line for line in lines}
        if self._before is not None:
            for path in sorted(self._before.keys() | after.keys()):
                self._compare(now, self._before.get(path), after.get(path))
        self._before = after

    def miss(self, problem: str) -> None:
        """Write that nothing could be read, once."""
        if not self._problem:
            self._write(datetime.now(timezone.utc), "unreachable", note=problem)
        self._problem = problem

    def _compare(self, now: datetime, before: Line | None, after: Line | None) -> None:
        known = [line for line in (before, after) if line is not None]
        if any(self._selection.has(line, now.timestamp()) for line in known):
            for change in changes.between(before, after):
                self._write(now, change.what, change=change)

    def _write(self, now: datetime, what: str, *, change: Change | None = None, note: str | None = None) -> None:
        event = Event(moment=now, what=what, alias=self._alias, change=change, note=note)
        self._terminal.write(self._form(event) + "\n")
