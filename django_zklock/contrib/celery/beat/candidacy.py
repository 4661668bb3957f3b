"""Standing for the lead: one place in the line of a lock after the other, without blocking."""

from __future__ import annotations

import logging
import time
from functools import partial

from django_zklock.exceptions import ZkLockError
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.attempt import Attempt
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock

logger = logging.getLogger("django_zklock.beat")

# Seconds from a refusal to the next attempt. While ZooKeeper is away, an attempt ends after the connect timeout.
PAUSE = 1.0


class Candidacy:
    """Stands in the line of ``lock`` until :meth:`withdraw`, again and again if need be.

    Belongs to one thread, which looks whenever :meth:`wait` is over; a signal handler may withdraw. Nothing is asked
    of ZooKeeper meanwhile: the alarm is rung when the lead is granted, lost, or asked for.
    """

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self._news = Alarm()
        self._attempt: Attempt | None = None
        self._pause_until = 0.0
        # Told once an outage.
        self._told_failure = False

    @property
    def leader(self) -> str:
        """Who leads, as far as we know."""
        attempt = self._attempt
        return str(attempt.contender.holder or "nobody known") if attempt else "nobody known"

    def look(self) -> Held | None:
        """Give the hold while it is good, and take the next step if there is none. Never blocks, never raises.

        A hold that is lost, or that somebody has asked for, is given up: the next is one from the end of the line.
        """
        attempt = self._attempt
        if attempt is not None and attempt.held is not None:
            if not attempt.held.lost and not attempt.held.revoked:
                return attempt.held
            self._step_down(attempt, attempt.held)
        try:
            return self._stand()
        except ZkLockError as error:
            self.give_up(error)
            return None

    def wait(self, seconds: float) -> None:
        """Wait for news, for at most ``seconds``."""
        attempt = self._attempt
        if attempt is None:
            seconds = min(seconds, self._pause_until - time.monotonic())
        elif attempt.held is None:
            limit = attempt.sleep_for()
            seconds = seconds if limit is None else min(seconds, limit)
        self._news.wait(max(0.0, seconds))

    def give_up(self, error: ZkLockError) -> None:
        """Give up the place in line, or the lead; the next attempt comes after a pause."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.end()
        self._pause_until = time.monotonic() + PAUSE
        level = logging.DEBUG if self._told_failure else logging.WARNING
        self._told_failure = True
        logger.log(level, "event=beat_cannot_stand key=%r error=%s", self.lock.key, error)

    def withdraw(self) -> None:
        """Leave, so that the next in line leads at once. Waits for the server's word, for the connect timeout at most.

        For the process may end without a goodbye, as the one does in which a worker embeds its beat.
        """
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        attempt.end()
        session, contender = attempt.contender.session, attempt.contender
        if session.connected:
            gone = Alarm()
            session.post(partial(contender.when_gone, gone.ring))
            gone.wait(self.lock.pool.options.connect_timeout)

    def _stand(self) -> Held | None:
        if self._attempt is None:
            if time.monotonic() < self._pause_until:
                return None
            self._attempt = Attempt(self.lock, None, self._news.ring)
            self._attempt.start()
        attempt = self._attempt
        decided = attempt.step()
        if attempt.take_announcement():
            self._told_failure = False
            logger.info("event=beat_waits key=%r leader=%s", self.lock.key, self.leader)
            self.lock.observer.contended(self.lock, attempt.contender.holder)
        if not decided or attempt.held is None:
            return None
        self._told_failure = False
        logger.info(
            "event=beat_leads key=%r token=%d waited=%.1f", self.lock.key, attempt.held.token, attempt.held.waited
        )
        self.lock.observer.acquired(attempt.held)
        return attempt.held

    def _step_down(self, attempt: Attempt, held: Held) -> None:
        why = held.loss() if held.lost else f"asked to let go: {held.revoked}"
        logger.warning("event=beat_steps_down key=%r token=%d reason=%s", held.key, held.token, why)
        self._attempt = None
        attempt.end()
