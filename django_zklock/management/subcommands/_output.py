"""What the subcommands write: tables for people, JSON for programs, and the terminal, file or pipe that gets them."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from operator import le
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from django_zklock.serializers import end_command, kill_command, serialize_lock
from django_zklock.zk.formatting import abbreviate, escape_controls, format_duration
from django_zklock.zk.ops.sent import SentCall
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.ops.trail import Action
from django_zklock.zk.waiting import monotonic

# A table shows this number of ranges of positions; JSON has all.
MAX_RANGES = 3

# The state of a lock that is held still.
REVOKED = "release requested"
COLUMN_GAP = "  "
# A column that is cut to the width of the terminal keeps at least this width.
MIN_WIDTH = 12
# Where nothing is cut, a longer text sticks out of its column.
MAX_WIDTH = 100
MAX_KEY_WIDTH = 40
# Seconds until a command says how far it is, and between two such lines.
FIRST_NOTE = 1.0
NOTE_INTERVAL = 0.2
CLEAR_TO_END_OF_LINE = "\x1b[K"


class Terminal:
    """Standard output: a terminal, a file or a pipe; and standard error, for how far the command is.

    ``styles`` maps words such as "held" to functions that colour them; it is empty if colours are off. ``closed`` is
    true when nothing more can be written: the reader has closed the pipe, or there was a ``failure``, such as a full
    disk.
    """

    def __init__(self, stdout: OutputWrapper, style: Style | None, stderr: OutputWrapper | None = None) -> None:
        self.closed = False
        self.failure: OSError | None = None
        self.styles: Mapping[str, Callable[[str], str]] = {}
        if style is not None:
            self.styles = {
                "held": style.SUCCESS,
                "granted": style.WARNING,
                "waiting": style.WARNING,
                REVOKED: style.NOTICE,
                "ok": style.SUCCESS,
                "warning": style.WARNING,
                "error": style.ERROR,
            }
        self._stdout = stdout
        self._stderr = stderr
        # When the next line about the progress may be written, and whether there is one.
        self._next_note = monotonic() + FIRST_NOTE
        self._has_note = False

    @property
    def is_a_tty(self) -> bool:
        """Whether standard output is a terminal."""
        return self._stdout.isatty()

    @property
    def width(self) -> int | None:
        """The number of columns; ``None`` if nothing has to be cut."""
        return shutil.get_terminal_size().columns if self.is_a_tty else None

    @property
    def can_ask(self) -> bool:
        """Whether questions can be asked."""
        return self.is_a_tty and sys.stdin.isatty()

    def write(self, text: str) -> None:
        """Write ``text`` unchanged and flush it; raise nothing if that fails, as an action under way must go on."""
        self.clear_note()
        if self.closed:
            return
        encoding = getattr(self._stdout, "encoding", None) or "utf-8"
        try:
            # Characters that the terminal cannot encode are written as escapes.
            self._stdout.write(text.encode(encoding, "backslashreplace").decode(encoding), ending="")
            self._stdout.flush()
        except OSError as error:
            self.closed = True
            # If the reader has exited, for example `head`, that is no failure.
            self.failure = None if isinstance(error, BrokenPipeError) else error

    def note(self, text: str) -> None:
        """Write how far the command is to standard error, if that is a terminal: one line, which is replaced."""
        if self._stderr is None or not self._stderr.isatty() or monotonic() < self._next_note:
            return
        self._next_note = monotonic() + NOTE_INTERVAL
        self._has_note = True
        self._stderr.write(f"\r{text}{CLEAR_TO_END_OF_LINE}", style_func=str, ending="")
        self._stderr.flush()

    def clear_note(self) -> None:
        """Remove the line that :meth:`note` has written."""
        if self._has_note and self._stderr is not None:
            self._has_note = False
            self._stderr.write(f"\r{CLEAR_TO_END_OF_LINE}", style_func=str, ending="")
            self._stderr.flush()

    def ask(self, question: str) -> str:
        """Return the answer; an empty one at the end of input."""
        self.write(question)
        return sys.stdin.readline().strip()


LOCK_COLUMNS = ("ALIAS", "KEY", "STATE", "KIND", "HELD", "IN QUEUE", "WAITERS", "TOKEN", "HOLDER")
# At the end, what is copied rather than read: a terminal wraps the row there.
ENTRY_COLUMNS = ("POSITION", "STATE", "KIND", "HELD", "IN QUEUE", "WAITS FOR", "HOLDER", "SINCE (UTC)", "TOKEN", "NODE")
ACTION_COLUMNS = ("TIME (UTC)", "ACTION", "KEY", "BY", "HOLDER", "SINCE THEN", "REASON")
SENT_COLUMNS = ("KEY", "STATE", "SENT", "SAVED", "TASK")
# Columns that may be cut to fit the terminal.
ELASTIC = frozenset({"KEY", "HOLDER"})
# In brackets, as the id of a task; its first digits tell it from others.
UUID = re.compile(r"(?<=\[)([0-9a-f]{8})-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?=\])")
# The column whose words have styles.
COLOURED = "STATE"


class LockTable:
    """Writes one row for each lock as it is read, with a column for the alias if there are several."""

    def __init__(self, terminal: Terminal, *, with_alias: bool) -> None:
        self.is_empty = True
        self._terminal = terminal
        self._first = 0 if with_alias else 1
        self._sizes: list[int] = []

    def write(self, alias: str, locks: Sequence[LockSnapshot]) -> None:
        """Write the rows of these locks; below a header, if they are the first ones."""
        if locks:
            self._terminal.write(self.text(alias, locks))

    def text(self, alias: str, locks: Sequence[LockSnapshot]) -> str:
        """Return what :meth:`write` writes."""
        now = time.time()
        header = LOCK_COLUMNS[self._first :]
        rows = [(alias, *_lock_row(snapshot, now))[self._first :] for snapshot in locks]
        width = self._terminal.width
        if width is not None and _total(_sizes(header, rows)) > width:
            # The ids of tasks say less than their processes, which stand behind them.
            rows = [(*row[:-1], UUID.sub(r"\1…", row[-1])) for row in rows]
        sizes = _sizes(header, rows, limited=width is None)
        # Columns become wider for later rows, and not narrower.
        self._sizes = list(map(max, sizes, self._sizes)) if self._sizes else sizes
        lines = _lines(header, rows, self._sizes, width=width, styles=self._terminal.styles)
        lines, self.is_empty = lines if self.is_empty else lines[1:], False
        return "\n".join(lines) + "\n"

    def end(self, _problems: Mapping[str, str]) -> None:
        """Add nothing: problems are errors of the command."""


class LockList:
    """Writes all locks with their queues as one JSON object, as they are read, and why an alias could not be read.

    Each lock is one line of text.
    """

    def __init__(self, terminal: Terminal) -> None:
        self.is_empty = True
        self._terminal = terminal

    def write(self, alias: str, locks: Sequence[LockSnapshot]) -> None:
        """Write these locks."""
        now = time.time()
        # Without indentation the encoder is much faster.
        rows = [f"  {json.dumps(serialize_lock(alias, lock, now))}" for lock in locks]
        if rows:
            begin = '{"locks": [\n' if self.is_empty else ",\n"
            self.is_empty = False
            self._terminal.write(begin + ",\n".join(rows))

    def end(self, problems: Mapping[str, str]) -> None:
        """Write the rest of the object: the problem of each alias."""
        named = json.dumps([{"alias": alias, "problem": problem} for alias, problem in problems.items()])
        begin = '{"locks": [' if self.is_empty else "\n"
        self._terminal.write(f'{begin}], "problems": {named}}}\n')


def queue_table(snapshot: LockSnapshot, terminal: Terminal) -> str:
    """Return one row for each contender of one lock, and below the table what does not fit into it."""
    if not snapshot.nodes and not snapshot.unknown_nodes:
        return f"Lock {escape_controls(snapshot.key)} is free: it has no holder and no waiter.\n"
    text = entry_table(snapshot, snapshot.entries, terminal) if snapshot.entries else ""
    for entry in snapshot.entries:
        if entry.revoked is not None:
            text += f"Position {entry.position}: release requested ({entry.revoked})\n"
        if entry.state == "granted":
            text += f"Position {entry.position}: granted, waits for a slot of its worker\n"
        text += several_text(entry)
        # Those of a waiter, which are in the same key, are mostly the same.
        if entry.held and entry.arguments:
            text += f"Position {entry.position}: called with {entry.arguments}\n"
    text += "".join(map(end_text, snapshot.holders))
    if snapshot.unknown_nodes:
        text += f"Nodes of unknown recipes: {escape_controls(abbreviate(snapshot.unknown_nodes))}\n"
    return text


def entry_table(snapshot: LockSnapshot, entries: Sequence[QueueEntry], terminal: Terminal) -> str:
    """Return one row for each of these entries of the queue of ``snapshot``."""
    now = time.time()
    rows = [_entry_row(entry, snapshot, now) for entry in entries]
    # Nothing is cut: the holder must be readable and the node must be complete when copied.
    return table(ENTRY_COLUMNS, rows, width=None, styles=terminal.styles)


def action_table(actions: Sequence[Action], terminal: Terminal) -> str:
    """Return one row for each action of the trail; nothing is cut."""
    rows = [
        (
            f"{datetime.fromtimestamp(each.at, UTC):%Y-%m-%d %H:%M:%S}",
            each.what,
            each.key,
            each.by,
            each.holder,
            each.outcome,
            each.why,
        )
        for each in actions
    ]
    return table(ACTION_COLUMNS, rows, width=None, styles=terminal.styles)


def sent_table(calls: Sequence[SentCall], terminal: Terminal) -> str:
    """Return one row for each call that is sent and has not begun; nothing is cut."""
    now = time.time()
    rows = [
        (each.key, each.state, format_duration(max(0.0, now - each.since)), str(each.saved), f"{each.task} [{each.id}]")
        for each in calls
    ]
    return table(SENT_COLUMNS, rows, width=None, styles=terminal.styles)


def several_text(entry: QueueEntry) -> str:
    """Return that this entry may still wait for another one of its keys; nothing if it cannot, or is a waiter."""
    if not entry.may_wait_elsewhere:
        return ""
    return f"Position {entry.position}: takes {entry.keys} keys at once, and may still wait for another one\n"


def end_text(entry: QueueEntry) -> str:
    """Return how to end the Celery task of this entry; nothing for other work."""
    command, kill, identity = end_command(entry), kill_command(entry), entry.identity
    if identity is None or identity.work is None or (command is None and kill is None):
        return ""
    work, host = identity.work, escape_controls(identity.host)
    if command is None:
        return f"The worker cannot end the task at position {entry.position} any more. On {host}:\n  {kill}\n"
    if entry.state == "granted":
        # Celery ends it when it would begin.
        return (
            f"The task at position {entry.position} has not begun. To end it when it gets a slot:\n  {command}\n"
            "To free the lock before, break it: that interrupts nothing as long as the task has not begun.\n"
        )
    limit = f" (time limit {format_duration(work.time_limit)})" if work.time_limit else ""
    # Without the gate the child itself has the node.
    worker = "its whole worker" if work.child == identity.pid else f"its worker, main process {identity.pid}"
    text = f"To end the task at position {entry.position}{limit}, and not {worker}:\n  {command}\n"
    if kill is not None:
        text += f"If that does not end it, on {host}:\n  {kill}\n"
    return text


def object_json(value: dict[str, Any]) -> str:
    """Return one JSON object, indented; pure ASCII contains no character that a terminal would interpret."""
    return json.dumps(value, indent=2) + "\n"


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    styles: Mapping[str, Callable[[str], str]],
) -> str:
    """Return one line of text for each row, below a header.

    With ``width`` long texts are cut so that a row fits. ``styles`` colours words, see :class:`Terminal`.
    """
    sizes = _sizes(header, rows, limited=width is None)
    return "\n".join(_lines(header, rows, sizes, width=width, styles=styles)) + "\n"


def _lines(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    sizes: Sequence[int],
    *,
    width: int | None,
    styles: Mapping[str, Callable[[str], str]],
) -> list[str]:
    """Return the header and the rows in columns of these sizes, or so narrow that a row fits into ``width``.

    If it does not, the terminal wraps it, and the holder at its end is left whole.
    """
    sizes = list(sizes)
    uncut = set(header) if width is None else set()
    if width is not None:
        elastic = [number for number, name in enumerate(header) if name in ELASTIC]
        excess = _total(sizes) - width
        while excess > 0 and sizes[widest := max(elastic, key=sizes.__getitem__)] > MIN_WIDTH:
            sizes[widest] -= 1
            excess -= 1
        uncut = {"HOLDER"} if excess > 0 else set()
    coloured = header.index(COLOURED) if COLOURED in header else None
    lines = []
    for row in (header, *rows):
        if "".join(row).isascii() and all(map(le, map(len, row), sizes)):
            # Nearly all rows of a long list.
            cells = list(map(str.ljust, row, sizes))
        else:
            fits = zip(row, sizes, header, strict=True)
            cells = [_fit(cell, size, cut=name not in uncut) for cell, size, name in fits]
        if coloured is not None and row[coloured] in styles:
            cells[coloured] = styles[row[coloured]](cells[coloured])
        lines.append(COLUMN_GAP.join(cells).rstrip())
    return lines


def _sizes(header: Sequence[str], rows: Sequence[Sequence[str]], *, limited: bool = False) -> list[int]:
    """Return the width of each column; if ``limited``, without texts so long that they would pad all other rows."""
    limits = [(MAX_KEY_WIDTH if name == "KEY" else MAX_WIDTH) if limited else inf for name in header]
    columns = [_display_widths(texts) for texts in zip(header, *rows, strict=True)]
    return [max(each for each in column if each <= limit) for column, limit in zip(columns, limits, strict=True)]


def _total(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(COLUMN_GAP) * (len(sizes) - 1)


def _lock_row(snapshot: LockSnapshot, now: float) -> tuple[str, ...]:
    holders = snapshot.holders
    holder = holders[0].owner_text if holders else "-"
    if snapshot.holder_count > 1:
        holder += f" and {snapshot.holder_count - 1} more"
    return (
        escape_controls(snapshot.key),
        _lock_state(snapshot),
        snapshot.kind or "-",
        _held_for(holders[0], now) if holders else "-",
        format_duration(now - holders[0].since) if holders else "-",
        str(snapshot.waiter_count),
        str(holders[0].token) if holders else "-",
        holder,
    )


def _entry_row(entry: QueueEntry, snapshot: LockSnapshot, now: float) -> tuple[str, ...]:
    thread = snapshot.thread_of(entry)
    return (
        str(entry.position),
        REVOKED if entry.held and entry.revoked is not None else entry.state,
        entry.kind if entry.limit is None else f"{entry.kind} of {entry.limit}",
        _held_for(entry, now),
        format_duration(now - entry.since),
        _ranges(snapshot.blockers_of(entry)),
        f"{entry.owner_text}, thread {thread}" if thread else entry.owner_text,
        f"{datetime.fromtimestamp(entry.since, UTC):%Y-%m-%d %H:%M:%S}",
        str(entry.token),
        escape_controls(entry.node),
    )


def _lock_state(snapshot: LockSnapshot) -> str:
    holders = snapshot.holders
    if any(entry.revoked is not None for entry in holders):
        return REVOKED
    return "granted" if holders and all(entry.state == "granted" for entry in holders) else snapshot.state


def _held_for(entry: QueueEntry, now: float) -> str:
    """Return the time since the grant; what it is at most, if it is not known when that was."""
    if not entry.held:
        return "-"
    return ("<= " if entry.granted is None else "") + format_duration(now - entry.held_since)


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:MAX_RANGES]]
    if len(ranges) > MAX_RANGES:
        shown.append("…")
    return ", ".join(shown) or "-"


def _fit(text: str, size: int, *, cut: bool) -> str:
    excess = _display_width(text) - size
    if excess > 0 and cut:
        ends = list(accumulate(map(_display_width, text)))
        text = text[: bisect_right(ends, size - 1)] + "…"
        excess = _display_width(text) - size
    return text + " " * -excess


def _display_widths(texts: Sequence[str]) -> list[int]:
    return list(map(len if "".join(texts).isascii() else _display_width, texts))


def _display_width(text: str) -> int:
    """Return the number of columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
