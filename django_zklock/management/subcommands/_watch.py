"""The two views of ``zklock watch``: a log of changes, and a terminal screen that is redrawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django_zklock import serializers
from django_zklock.management.subcommands import _output
from django_zklock.management.subcommands._output import CLEAR_TO_END_OF_LINE, Terminal
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.ops.search import LockFilter
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry

# Control sequences of terminals (ECMA-48; line wrapping is DEC's). Wrapping is switched back on after each frame, so
# nothing has to be restored at the end.
CLEAR_SCREEN = "\x1b[2J"
CURSOR_HOME = "\x1b[H"
CLEAR_BELOW = "\x1b[J"
WRAP_OFF = "\x1b[?7l"
WRAP_ON = "\x1b[?7h"


class Event(NamedTuple):
    """A change in a queue, or with ``note`` instead one of the connection to ZooKeeper.

    ``what`` is "taken" (granted without waiting, as far as seen), "handed over" (granted to a waiter), "released" (by
    its holder, or at the end of its session), "joined", "left" (without having held), "revoked" (release requested),
    "unreachable" or "reachable". ``snapshot`` is the queue that contains ``entry``: after the change, or before it if
    the entry is gone.
    """

    what: str
    snapshot: LockSnapshot | None = None
    entry: QueueEntry | None = None
    note: str | None = None


def diff(before: LockSnapshot | None, after: LockSnapshot | None) -> Iterator[Event]:
    """Return the changes of one lock between two reads: removed entries first, then new and changed ones."""
    old, new = _by_node(before), _by_node(after)
    for node, entry in old.items():
        if node not in new:
            yield Event("released" if entry.held else "left", before, entry)
    for node, entry in new.items():
        earlier = old.get(node)
        if earlier is None:
            yield Event("taken" if entry.held else "joined", after, entry)
        elif entry.held and not earlier.held:
            yield Event("handed over", after, entry)
        if entry.revoked is not None and (earlier is None or earlier.revoked is None):
            yield Event("revoked", after, entry)


def event_text(event: Event, now: datetime) -> str:
    """Return time, event, key and contender, separated by tabs."""
    key, contender = "-", event.note or ""
    if event.snapshot is not None and event.entry is not None:
        key, contender = escape_controls(event.snapshot.key), event.entry.owner_text
        if event.what == "revoked":
            contender += f": {event.entry.revoked}"
    return "\t".join((_timestamp(now), event.what, key, contender))


def event_json(alias: str, event: Event, now: datetime) -> str:
    """Return one JSON object in ASCII."""
    lock: dict[str, Any] = {"alias": alias, "key": None, "path": None, "place": None}
    if event.snapshot is not None and event.entry is not None:
        place = serializers.serialize_entry(event.snapshot, event.entry, now.timestamp())
        lock |= {"key": event.snapshot.key, "path": event.snapshot.path, "place": place}
    return json.dumps({"time": _timestamp(now), "event": event.what, **lock, "note": event.note})


class EventLog:
    """Writes the changes since the last read of the locks that ``lock_filter`` matches; the first read is silent."""

    def __init__(
        self, terminal: Terminal, lock_filter: LockFilter, format_event: Callable[[Event, datetime], str]
    ) -> None:
        self._terminal = terminal
        self._lock_filter = lock_filter
        self._format_event = format_event
        self._before: dict[str, LockSnapshot] | None = None
        self._error = ""

    def show(self, locks: Sequence[LockSnapshot]) -> None:
        """Write the changes from the last read to ``locks``."""
        now = datetime.now(UTC)
        if self._error:
            self._error = ""
            self._write(Event("reachable", note="ZooKeeper can be read again"), now)
        after = {snapshot.path: snapshot for snapshot in locks}
        if self._before is not None:
            for path in sorted(self._before.keys() | after.keys()):
                states = self._before.get(path), after.get(path)
                if any(state and self._lock_filter.matches(state, now.timestamp()) for state in states):
                    for event in diff(*states):
                        self._write(event, now)
        self._before = after

    def show_error(self, error: str) -> None:
        """Write that ZooKeeper could not be read, once for each outage."""
        if not self._error:
            self._write(Event("unreachable", note=error), datetime.now(UTC))
        self._error = error

    def _write(self, event: Event, now: datetime) -> None:
        self._terminal.write(self._format_event(event, now) + "\n")


class LiveView:
    """Redraws the locks of ``alias``, or the queue of ``key``, in the same place of a terminal.

    ``unread`` is the number of queues that were not read, because there is no room for them.
    """

    def __init__(self, terminal: Terminal, alias: str, key: str | None, interval: float) -> None:
        self.unread = 0
        self._terminal = terminal
        self._alias = alias
        self._one_lock = key is not None
        self._title = "Locks" if key is None else f"Lock {escape_controls(key)}"
        self._interval = f"every {interval:g} s, Ctrl-C ends"
        self._text = ""
        terminal.write(CLEAR_SCREEN)

    def show(self, locks: Sequence[LockSnapshot]) -> None:
        """Draw what was just read."""
        if self._one_lock:
            self._text = _output.queue_table(locks[0], self._terminal)
        else:
            self._text = _output.LockTable(self._terminal, with_alias=False).text(self._alias, locks)
        self._draw("read")

    def show_error(self, error: str) -> None:
        """Draw the error above the result of the last successful read."""
        self._draw("not read", error)

    def _draw(self, what: str, *errors: str) -> None:
        header = f"{self._title}, {what} at {datetime.now(UTC):%H:%M:%S} UTC, {self._interval}"
        rows = [header, *errors, "", *self._text.splitlines()]
        height = shutil.get_terminal_size().lines
        # The cursor stays in the last row of the terminal.
        if len(rows) >= height:
            bound = "at most " if self.unread else ""
            rows[height - 2 :] = [f"… and {bound}{len(rows) - height + 2 + self.unread} more"]
        frame = "".join(f"{row}{CLEAR_TO_END_OF_LINE}\n" for row in rows)
        self._terminal.write(f"{WRAP_OFF}{CURSOR_HOME}{frame}{CLEAR_BELOW}{WRAP_ON}")


def _by_node(snapshot: LockSnapshot | None) -> Mapping[str, QueueEntry]:
    return {entry.node: entry for entry in snapshot.entries} if snapshot else {}


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
