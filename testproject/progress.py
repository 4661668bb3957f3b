"""Progress on the terminal, or in a log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

WIDTH = 30


class Progress:
    """One line that grows on a terminal; elsewhere a line for each quarter."""

    def __init__(self, what: str, total: int) -> None:
        """Say what is counted up to ``total``."""
        self._what = what
        self._total = total
        self._quarter = -1
        self._terminal = sys.stdout.isatty()

    def show(self, done: int) -> None:
        """Show how much is done."""
        if self._terminal:
            filled = WIDTH * done // self._total
            bar = "█" * filled + "░" * (WIDTH - filled)
            print(f"\r  {self._what:<32} {bar} {done:>4}/{self._total}", end="", flush=True)
            return
        quarter = 4 * done // self._total
        if quarter > self._quarter:
            self._quarter = quarter
            print(f"  {self._what:<32} {done:>4}/{self._total}", flush=True)

    def __enter__(self) -> Self:
        """Begin at nought."""
        self.show(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the line on the terminal as it is."""
        if self._terminal:
            print(flush=True)
