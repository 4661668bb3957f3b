"""Which locks somebody wants to see, and in what order. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from django_zklock.zk import display, keys
from django_zklock.zk.inspection.survey import Line, Place

STATES = ("held", "contended", "revoked", "unknown")
KINDS = ("exclusive", "write", "read", "lease")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a lock must be to be chosen; what is empty does not matter. Upper and lower case are the same.

    ``key`` is a part of the key, or a pattern for all of it if it has ``*``, ``?`` or ``[``. ``state`` is "held",
    "contended" (somebody waits), "revoked" (a holder was asked to let go) or "unknown" (nodes of no known recipe).
    ``host`` and ``task`` are a part of the host's name, and of the name or id of the work, of somebody in the line.
    ``older`` are seconds for which the first holder has stood there at least.
    """

    key: str = ""
    state: str = ""
    kind: str = ""
    host: str = ""
    task: str = ""
    older: float = 0.0

    @property
    def asks_for_lines(self) -> bool:
        """Whether it takes more than the key to choose."""
        return bool(self.state or self.kind) or self.asks_for_data

    @property
    def asks_for_data(self) -> bool:
        """Whether it takes what is in the nodes of a line to choose, and not only their names."""
        # Who of a semaphore waits is known by its limit, which is in the data.
        return bool(self.host or self.task or self.older) or self.state in {"contended", "revoked"}

    def has_name(self, name: str) -> bool:
        """Whether the line of that name may be of the key; the key of a shortened name is in the line's data."""
        return keys.is_shortened(name) or self._has_key(keys.readable(name))

    def has(self, line: Line, now: float) -> bool:
        """Whether ``line`` is chosen at ``now``, in seconds since the Unix epoch."""
        return (
            self._has_key(line.key)
            and (not self.state or self.state in _states(line))
            and (not self.kind or any(node.kind.value == self.kind for node in line.nodes))
            and (not self.older or (bool(line.holders) and now - line.holders[0].since >= self.older))
            and (not (self.host or self.task) or any(map(self._has_place, line.places)))
        )

    def _has_key(self, key: str) -> bool:
        wanted, key = self.key.casefold(), key.casefold()
        return fnmatchcase(key, wanted) if any(sign in wanted for sign in "*?[") else wanted in key

    def _has_place(self, place: Place) -> bool:
        who = place.identity
        if who is None or self.host.casefold() not in who.host.casefold():
            return False
        if not self.task:
            return True
        return who.work is not None and self.task.casefold() in f"{who.work.name} {who.work.id}".casefold()


def _states(line: Line) -> Iterator[str]:
    yield display.state(line)
    if line.holding and line.waiting:
        yield "contended"
    if any(place.revoked for place in line.holders):
        yield "revoked"


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """By what locks are sorted: one of :data:`COLUMNS`, downwards if ``reverse``."""

    column: str = "key"
    reverse: bool = False

    @property
    def asks_for_lines(self) -> bool:
        """Whether it takes more than the key to sort."""
        return self.column != "key"

    @property
    def asks_for_data(self) -> bool:
        """Whether it takes what is in the nodes."""
        return self.column in COLUMNS_IN_DATA

    def sort(self, lines: Iterable[Line]) -> list[Line]:
        """Give ``lines`` sorted, by key where they are equal; those that have nothing to sort by come last."""
        by_key = sorted(lines, key=attrgetter("key"))
        value = COLUMNS[self.column]
        valued = [line for line in by_key if value(line) is not None]
        valueless = [line for line in by_key if value(line) is None]
        return sorted(valued, key=value, reverse=self.reverse) + valueless


def _holder(line: Line) -> str | None:
    return display.who(line.holders[0]).casefold() if line.holders else None


def _age(line: Line) -> float | None:
    return -line.holders[0].since if line.holders else None


def _token(line: Line) -> int | None:
    return line.holders[0].token if line.holders else None


COLUMNS: Mapping[str, Callable[[Line], Any]] = {
    "key": attrgetter("key"),
    "state": display.state,
    "kind": lambda line: display.kind(line) or None,
    "age": _age,
    "waiting": attrgetter("waiting"),
    "token": _token,
    "holder": _holder,
}
COLUMNS_IN_DATA = frozenset({"age", "waiting", "token", "holder"})
