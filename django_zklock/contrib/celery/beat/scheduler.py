"""The scheduler of several beats: each waits for the lead, and the leader runs the scheduler that sends."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, cast

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name
from django.core.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError

from django_zklock import signals
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.contrib.celery.beat.claiming import ClaimingSchedulerMixin, connect_once
from django_zklock.contrib.celery.beat.election import LeaderElection
from django_zklock.contrib.celery.beat.last_runs import MAX_SKEW, LastRunStore
from django_zklock.exceptions import ZkLockError
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.waiting import boottime, monotonic

logger = logging.getLogger("django_zklock.beat")

DEFAULT_SCHEDULER = "celery.beat:PersistentScheduler"
# Seconds between two attempts to reach the broker, of a beat that has left the election because it cannot. The interval
# doubles up to the maximum. It is short, because it delays due entries when no other beat can reach the broker either.
MIN_PROBE_INTERVAL, MAX_PROBE_INTERVAL = 1.0, 10.0


class LeaderScheduler(Scheduler):
    """One of several beats leads and sends; the others wait in the queue of the lead's lock.

    Celery's configuration: ``zklock_beat_scheduler`` is the scheduler that sends, as a path or as a name that
    ``celery beat -S`` takes; ``zklock_beat_key`` the key of the lock, by default ``celery-beat:`` and the name of the
    app; ``zklock_beat_using`` the alias in ``ZKLOCK``.

    Raises ``ImproperlyConfigured`` for an alias that is not configured, and if the scheduler that sends is this class.
    """

    def __init__(self, app: Celery, max_interval: int | None = None, lazy: bool = False, **options: Any) -> None:  # noqa: ARG002, FBT001, FBT002 - Celery's
        self._scheduler: ClaimingSchedulerMixin | None = None
        self._ticking = self._closing = False
        self._class = _class_of_scheduler(app)
        self._options = {"app": app, "max_interval": max_interval, **options}
        # Knows its interval and its own description, and opens nothing.
        self._prototype = self._class(lazy=True, **self._options)
        super().__init__(app, max_interval=self._prototype.max_interval, lazy=True)
        self._longest_wait = float(cast("int", self.max_interval))
        key = app.conf.get("zklock_beat_key") or ":".join(filter(None, ["celery-beat", app.main]))
        using = app.conf.get("zklock_beat_using") or DEFAULT_ALIAS
        work = Work(kind="command", name="celery beat")
        lock = Lock(key, connections[using], listener=signals.listener, work=lambda: work, template=key)
        self._election = LeaderElection(lock)
        # When to try the broker again; ``None`` while this beat takes part in the election.
        self._probe_at: float | None = None
        self._probe_interval = MIN_PROBE_INTERVAL
        # The time of day minus the clock of the lease.
        self._clock_difference = 0.0

    @property
    def info(self) -> str:
        """The description that beat prints when it starts."""
        lead = f"    . lead -> {self._election.lock.key}, ZKLOCK[{self._election.lock.pool.name!r}]"
        sends = f"    . sends -> {self._class.__module__}.{self._class.__name__}"
        return "\n".join(filter(None, [lead, sends, self._prototype.info]))

    def get_schedule(self) -> dict[str, ScheduleEntry]:
        """Return the schedule of the scheduler that sends; empty while another beat leads."""
        return {} if self._scheduler is None else self._scheduler.schedule

    schedule = property(get_schedule)

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Send due entries if this beat leads, and wait: for the next due entry, for the lead, or for its loss.

        Beat itself would sleep, and not wake up with the lead. Waits for at most ``max_interval``.
        """
        if self._closing:
            # Beat's SystemExit was lost, in a finalizer or by an error in a `finally`.
            raise SystemExit
        try:
            self._ticking = True
            self._tick()
        finally:
            self._ticking = False
        return 0.0

    def _tick(self) -> None:
        if self._probe_at is not None:
            self._probe(self._probe_at)
            return
        scheduler = self._lead()
        if scheduler is None:
            self._election.wait(self._longest_wait)
            return
        delay = 0.0
        try:
            delay = scheduler.tick()
        except OperationalError as error:
            # From a scheduler that connects before it calls is_due().
            scheduler.broker_error = error
        if scheduler.has_sent:
            self._probe_interval = MIN_PROBE_INTERVAL
        if scheduler.broker_error is not None:
            # Another beat may reach the broker. Due entries are not claimed, so the next leader sends them.
            message = "event=beat_steps_down key=%r reason=the broker cannot be reached: %s"
            logger.warning(message, self._election.lock.key, scheduler.broker_error)
            self._dismiss()
            self._election.resign()
            self._probe_later()
        elif delay and delay > 0:
            self._election.wait(min(delay, self._longest_wait))
            if scheduler.should_sync():
                # Celery's loop does this after it has slept.
                scheduler._do_sync()  # type: ignore[attr-defined]  # noqa: SLF001

    def sync(self) -> None:
        """Let the scheduler that sends store its state."""
        if self._scheduler is not None:
            self._scheduler.sync()

    def close(self) -> None:
        """Store the state and give up the lead, so that the next beat leads at once. Closing again does nothing.

        During a tick it only sets a flag. Beat's signal handler closes during a tick: it then ends the tick, and beat
        closes again. If the broker connection were closed during a send, the end would look like a failed send, and
        beat would go on.
        """
        self._closing = True
        if self._ticking:
            return
        try:
            self._dismiss()
        finally:
            self._election.resign()

    def _lead(self) -> ClaimingSchedulerMixin | None:
        held = self._election.poll()
        if self._scheduler is not None and (self._scheduler.held is not held or self._clock_was_set()):
            self._dismiss()
        if self._scheduler is None and held is not None:
            last_runs = LastRunStore(held.lock, self._election.session)
            self._clock_difference = time.time() - boottime()
            try:
                last_runs.load()
            except ZkLockError as error:
                self._election.give_up(error)
                return None
            # Not made before: it reads what the last leader has stored.
            created_at = time.time()
            scheduler = self._class(**self._options)
            scheduler.held, scheduler.last_runs, scheduler.created_at = held, last_runs, created_at
            # A leader may be killed at any time, and Celery stores only every three minutes.
            scheduler.sync_every_tasks = scheduler.sync_every_tasks or 1
            self._scheduler = scheduler
        return self._scheduler

    def _clock_was_set(self) -> bool:
        """Return whether the time of day has jumped: the scheduler's heap of due times is wrong then."""
        difference = time.time() - boottime()
        if abs(difference - self._clock_difference) <= MAX_SKEW:
            return False
        logger.warning("event=beat_clock_was_set by=%.1f", difference - self._clock_difference)
        return True

    def _dismiss(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is None:
            return
        try:
            scheduler.close()
        except Exception:
            # The lead must be given up nevertheless.
            logger.exception("event=beat_not_stored scheduler=%s", self._class.__name__)
        # Early versions of Celery leave it open.
        connection = vars(scheduler).pop("connection", None)
        if connection is not None:
            with contextlib.suppress(*connection.connection_errors):
                connection.release()

    def _probe(self, at: float) -> None:
        pause = at - monotonic()
        if pause > 0:
            self._election.pause(min(pause, self._longest_wait))
            return
        with self.app.connection_for_write() as connection:
            try:
                connect_once(connection)
            except OperationalError as error:
                logger.debug("event=beat_broker_away error=%s", error)
                self._probe_later()
            else:
                logger.info("event=beat_broker_is_back")
                self._probe_at = None

    def _probe_later(self) -> None:
        """Set the time of the next attempt, and double the interval after that one, until something is sent."""
        self._probe_at = monotonic() + self._probe_interval
        self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL)


def _class_of_scheduler(app: Celery) -> type[ClaimingSchedulerMixin]:
    name = app.conf.get("zklock_beat_scheduler") or DEFAULT_SCHEDULER
    pairs: Any = load_extension_class_names("celery.beat_schedulers")
    found = symbol_by_name(name, aliases=dict(pairs))
    if issubclass(found, LeaderScheduler):
        raise ImproperlyConfigured(
            f"zklock_beat_scheduler is the scheduler that sends while its beat leads, got {name!r}; "
            f"LeaderScheduler itself is for beat_scheduler, or `celery beat -S`"
        )
    facts = {"__module__": found.__module__, "__qualname__": found.__qualname__}
    return type(found.__name__, (ClaimingSchedulerMixin, found), facts)
