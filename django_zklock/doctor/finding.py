"""What the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from django_zklock.zk.formatting import escape_controls

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


class Examination(NamedTuple):
    """What is examined. Makes findings without control characters; those of all levels but "ok" have advice."""

    id: str
    subject: str

    def ok(self, found: str) -> Finding:
        return self._finding("ok", found)

    def info(self, found: str, advice: str) -> Finding:
        return self._finding("info", found, advice)

    def warning(self, found: str, advice: str) -> Finding:
        return self._finding("warning", found, advice)

    def error(self, found: str, advice: str) -> Finding:
        return self._finding("error", found, advice)

    def _finding(self, level: Level, found: str, advice: str = "") -> Finding:
        subject, found, advice = map(escape_controls, (self.subject, found, advice))
        return Finding(id=self.id, level=level, subject=subject, found=found, advice=advice)
