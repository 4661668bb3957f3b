"""The election of the leader: a contender of a lock, and a new one after each loss, without blocking."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.exceptions import ZkLockError
from django_zklock.zk import owners
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import AutoResetEvent, monotonic

if TYPE_CHECKING:
    from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.beat")

# Seconds from a refusal to the next attempt. While ZooKeeper is away, an attempt ends after the connect timeout.
RETRY_INTERVAL = 1.0


class LeaderElection:
    """Keeps a contender in the queue of ``lock`` until :meth:`resign`, and makes a new one when it is lost.

    One thread calls :meth:`poll` whenever :meth:`wait` returns; a signal handler may call :meth:`resign`. Waiting sends
    no requests: an event is set when the lead is granted, lost, or revoked.
    """

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self._event = AutoResetEvent()
        self._attempt: Acquisition | None = None
        self._retry_at = 0.0
        # One warning for each outage.
        self._failure_logged = False

    def poll(self) -> Held | None:
        """Return the hold if this beat leads; otherwise take the next step of the election.

        Never blocks, never raises. A hold that was lost or revoked is released, and the next contender joins the end
        of the queue.
        """
        attempt = self._attempt
        if attempt is not None and attempt.held is not None:
            held = attempt.held
            if not held.lost and not held.revoked:
                return held
            reason = held._loss_error() if held.lost else f"asked to release: {held.revoked}"
            logger.warning("event=beat_steps_down key=%r token=%d reason=%s", held.key, held.token, reason)
            self._leave()
        try:
            return self._campaign()
        except ZkLockError as error:
            self.give_up(error)
            return None

    def wait(self, seconds: float) -> None:
        """Wait until :meth:`poll` has something to do, for at most ``seconds``."""
        attempt = self._attempt
        if attempt is None:
            seconds = min(seconds, self._retry_at - monotonic())
        elif attempt.held is None:
            limit = attempt.next_wakeup()
            seconds = seconds if limit is None else min(seconds, limit)
        self.pause(seconds)

    def pause(self, seconds: float) -> None:
        """Wait for ``seconds``, or less if the lead is granted, lost or revoked meanwhile."""
        self._event.wait(max(0.0, seconds))

    def give_up(self, error: ZkLockError) -> None:
        """Leave the queue, or release the lead; the next attempt begins after ``RETRY_INTERVAL``."""
        self._leave()
        self._retry_at = monotonic() + RETRY_INTERVAL
        level = logging.DEBUG if self._failure_logged else logging.WARNING
        self._failure_logged = True
        logger.log(level, "event=beat_cannot_stand key=%r error=%s", self.lock.key, error)

    def resign(self) -> None:
        """Leave the queue, so that the next contender leads at once.

        Wait for the server's confirmation, for at most the connect timeout: a process may end without closing its
        session, as a beat inside of a worker does.
        """
        attempt = self._leave()
        if attempt is not None and attempt.contender.session.connected:
            gone = AutoResetEvent()
            attempt.contender.post(partial(attempt.contender.on_deleted, gone.set))
            gone.wait(self.lock.pool.options.connect_timeout)

    @property
    def session(self) -> Session | None:
        """The session that has the lead."""
        return self._attempt.contender.session if self._attempt is not None else None

    def _leave(self) -> Acquisition | None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.end()
        return attempt

    def _campaign(self) -> Held | None:
        if self._attempt is None:
            if monotonic() < self._retry_at:
                return None
            self._attempt = Acquisition(self.lock, None, self._event.set, owners.caller(), wants_holder=True)
            self._attempt.start()
        attempt = self._attempt
        decided = attempt.poll()
        held = attempt.held
        if attempt.newly_contended():
            self._failure_logged = False
            logger.info("event=beat_waits key=%r leader=%s", self.lock.key, attempt.contender.holder or "unknown")
            self.lock.listener.notify("contended", self.lock, holder=attempt.contender.holder)
        if not decided or held is None:
            return None
        self._failure_logged = False
        logger.info("event=beat_leads key=%r token=%d waited=%.1f", self.lock.key, held.token, held.waited)
        self.lock.listener.notify("acquired", self.lock, held=held)
        return held
