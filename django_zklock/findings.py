"""What an examination of the surroundings has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("ok", "info", "warning", "error")
"""From the mildest to the gravest.

"ok" is as it should be, "info" is worth knowing, "warning" will hurt some day, and with "error" locks do not work.
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    ``id`` names what was looked at and never changes its meaning; each has its section in
    ``docs/reference/doctor.md``. ``subject`` is which one, where there are several: a server, an alias, a worker.
    ``found`` is what is the case, and ``advice`` what to do about it, empty where there is nothing to do.
    """

    id: str
    level: Level
    subject: str
    found: str
    advice: str = ""
