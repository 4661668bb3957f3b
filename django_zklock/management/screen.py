"""A terminal on which the same place shows what is there now."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timezone

from django_zklock.management import rendering
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection.survey import Line

# Orders to a terminal (ECMA-48; the wrapping of lines is DEC's). Nothing stays switched off between two pictures, so
# nothing has to be put right at the end.
CLEAR = "\x1b[2J"
HOME = "\x1b[H"
CLEAR_TO_END_OF_LINE = "\x1b[K"
CLEAR_BELOW = "\x1b[J"
CUT_LINES = "\x1b[?7l"
WRAP_LINES = "\x1b[?7h"


class Screen:
    """Shows the locks of ``alias``, or the line of ``key``, as they were read last."""

    def __init__(self, terminal: Terminal, alias: str, key: str | None, interval: float) -> None:
        self._terminal = terminal
        self._alias = alias
        self._is_line = key is not None
        self._what = "Locks" if key is None else f"Lock {display.visible(key)}"
        self._every = f"every {interval:g} s, Ctrl-C ends"
        self._text = ""
        terminal.write(CLEAR)

    def show(self, lines: Sequence[Line]) -> None:
        """Show what was read now."""
        if self._is_line:
            self._text = rendering.line_as_table(lines[0], self._terminal)
        else:
            self._text = rendering.lines_as_table({self._alias: lines}, self._terminal)
        self._draw(f"{self._what}, read at {_now()} UTC, {self._every}")

    def miss(self, problem: str) -> None:
        """Show that nothing could be read now, above what was read last."""
        self._draw(f"{self._what}, not read at {_now()} UTC, {self._every}", problem)

    def _draw(self, *head: str) -> None:
        rows = [*head, "", *self._text.splitlines()]
        height = shutil.get_terminal_size().lines
        # The last row of the terminal is where the cursor stays.
        if len(rows) >= height:
            rows[height - 2 :] = [f"… and {len(rows) - height + 2} more"]
        picture = "".join(f"{row}{CLEAR_TO_END_OF_LINE}\n" for row in rows)
        self._terminal.write(f"{CUT_LINES}{HOME}{picture}{CLEAR_BELOW}{WRAP_LINES}")


def _now() -> str:
    return f"{datetime.now(timezone.utc):%H:%M:%S}"
