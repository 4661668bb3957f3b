"""A task's place in the line: the third front of a contender, next to the blocking one and that of asyncio."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock.zk.attempt import Attempt
from django_zklock.zk.claim import Claim, State
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock


class Place(Attempt):
    """An attempt whose lock is for somebody else: nothing of it is kept in the context that steps it.

    ``wake`` is called when there is something to :meth:`step` for, ``news`` whenever the contender has changed; both
    by the machine's threads, under the session's monitor.
    """

    def __init__(self, lock: Lock, timeout: float | None, wake: Callable[[], None], news: Callable[[], None]) -> None:
        self._news = news
        super().__init__(lock, timeout, wake)

    @property
    def granted(self) -> bool:
        """Whether the lock is held, as far as is known."""
        return self.contender.state is State.HELD and self.contender.lost is None

    @property
    def waits(self) -> bool:
        """Whether somebody else stands before us, or nobody can say."""
        return self.contender.state is State.WAITING or not self.contender.session.connected

    def step(self) -> bool:
        """Do as an attempt, but leave the hold with the contender."""
        return self.granted or super().step()

    def hold(self, lock: Lock, *, waited: float, since: float) -> Held:
        """Give the hold to the context that calls: a thread or a greenlet of this process."""
        self.held = hold(lock, self.contender, waited=waited, since=since)
        # It may have been lost meanwhile.
        self._tell()
        return self.held

    def _changed(self) -> None:
        super()._changed()
        self._news()


def hold(lock: Lock, contender: Claim, *, waited: float, since: float) -> Held:
    """Make a hold of what was granted at ``since`` (seconds since the Unix epoch) after ``waited`` seconds."""
    held = Held(lock, contender, waited=waited)
    held.since = since
    return held
