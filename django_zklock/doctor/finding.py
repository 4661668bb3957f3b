"""What the doctor found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_NAMES = 10

Level = Literal["ok", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("ok", "info", "warning", "error")
"""The levels, in order of severity.

"ok" is as it should be, "info" is worth knowing, "warning" will cause trouble some day, and with "error" locks do not
work.
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one examination.

    ``id`` names the examination and never changes its meaning; ``docs/reference/doctor.md`` has a section for each.
    ``subject`` is the examined server, alias, worker and so on. ``found`` states the facts, and ``advice`` what to do;
    it is empty if there is nothing to do.
    """

    id: str
    level: Level
    subject: str
    found: str
    advice: str = ""


def abbreviate(names: Sequence[str]) -> str:
    """Return the first ten names and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
