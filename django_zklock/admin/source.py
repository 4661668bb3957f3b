"""What a page asks of ZooKeeper: of several aliases at once, each within its deadline, what failed as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import display, keys
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.inspection import breaking, survey
from django_zklock.zk.inspection.breaking import Removed
from django_zklock.zk.inspection.survey import Line
from django_zklock.zk.pool import Pool

T = TypeVar("T")


class Source:
    """One alias, for as long as it takes to make a page.

    All that is asked of it has one deadline, which is its ``CONNECT_TIMEOUT``. What fails is in ``problem``, and from
    then on it is asked nothing: everything is empty.
    """

    def __init__(self, alias: str, problem: str = "") -> None:
        self.alias = alias
        self.problem = display.visible(problem)
        self._deadline: Deadline | None = None

    def names(self) -> list[str]:
        """Give the names of all lines."""
        return self._ask(lambda pool, timeout: survey.names(pool, timeout=timeout))

    def outlines(self, names: Sequence[str]) -> list[Line]:
        """Give the lines of these names in which somebody stands."""
        return self._ask(lambda pool, timeout: survey.outlines(pool, names, timeout=timeout))

    def read(self, lines: Sequence[Line], depth: int | None = None) -> list[Line]:
        """Give each of the lines with the data of the first ``depth`` in it, of all without it."""
        return self._ask(lambda pool, timeout: survey.read(pool, lines, timeout=timeout, depth=depth))

    def line(self, name: str, depth: int | None = None) -> Line | None:
        """Give the line of that name, with the data of the first ``depth`` in it; ``None`` if it cannot be read."""
        found = self.read(self.outlines([name]), depth)
        if self.problem:
            return None
        return (
            found[0] if found else Line(key=keys.readable(name), path=f"{connections[self.alias].options.root}/{name}")
        )

    def removal(self, line: Line) -> Removed | None:
        """Give who was last removed from the line."""
        found = self._ask(lambda pool, timeout: [breaking.last_removed(pool, line.path, timeout=timeout)])
        return found[0] if found else None

    def _ask(self, question: Callable[[Pool, float | None], list[T]]) -> list[T]:
        if self.problem:
            return []
        try:
            pool = connections[self.alias]
            if self._deadline is None:
                self._deadline = Deadline.after(pool.options.connect_timeout)
            return question(pool, self._deadline.remaining())
        except (ZkLockError, ImproperlyConfigured) as error:
            self.problem = display.visible(str(error))
            return []


def every(alias: str = "") -> list[Source]:
    """Give the sources of every alias, or of one; a single one that tells the problem if the setting is wrong."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured as error:
        return [Source("", str(error))]
    return [Source(each) for each in aliases if alias in {"", each}]
