"""The scheduler that sends while its beat leads: it connects to the broker, claims each run, and sends it."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any, cast

from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from celery.schedules import schedstate
from celery.utils.time import maybe_make_aware
from kombu import Connection
from kombu.exceptions import OperationalError

from django_zklock.contrib.celery.beat.last_runs import MAX_SKEW, LastRunStore
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.zk.held import Held
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.beat")

# Seconds after which an entry that could not be claimed or sent is tried again.
RETRY_INTERVAL = 1.0
# Attempts to send one run of an entry while the broker accepts connections. If the broker breaks the connection each
# time, the message is the cause.
MAX_ATTEMPTS = 3


class ClaimingSchedulerMixin(Scheduler):
    """Mixed into the class of the scheduler that sends, so that it sends only runs that it has claimed.

    A scheduler with a ``tick`` of its own may not call :meth:`is_due`. Then the mixin only refuses to send when the
    lead is known to be lost.
    """

    held: Held
    last_runs: LastRunStore
    # When this scheduler was made, in seconds since the Unix epoch; ``None`` from the first heap on.
    created_at: float | None
    _heap: list[Any] | None

    def __init__(self, *args: Any, **options: Any) -> None:
        # Why the broker cannot be reached, if that is known.
        self.broker_error: Exception | None = None
        # Whether anything was sent.
        self.has_sent = False
        # By names: failed attempts to send the same run, and when the next one is due (monotonic clock).
        self._failures: dict[str, tuple[int, float]] = {}
        # The entry that is claimed and not sent yet.
        self._claimed: str | None = None
        super().__init__(*args, **options)

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Make the heap from the last runs of all leaders."""
        schedule = self.schedule
        remembered = [name for name, entry in schedule.items() if hasattr(entry, "model")]
        try:
            self.last_runs.reconcile(list(schedule), remembered)
        except ZkLockError as error:
            # It is done with the next heap, or by the next leader.
            logger.warning("event=beat_cannot_reconcile error=%s", error)
        for entry in schedule.values():
            self._load_last_run(entry)
        self.created_at = None
        super().populate_heap(*args, **options)

    def is_due(self, entry: ScheduleEntry) -> tuple[bool, float]:
        """Claim a due entry. It is not due if another beat has sent it, or if it cannot be claimed or sent now."""
        verdict = super().is_due(entry)
        if not verdict[0]:
            return verdict
        if self._load_last_run(entry):
            return self._postpone(entry)
        name = entry.name or ""
        # Before the claim: a claimed run that cannot be sent is lost.
        pause = RETRY_INTERVAL if self.held.lost else self._failures.get(name, (0, 0.0))[1] - monotonic()
        if pause <= 0 and not self._reach_broker():
            pause = RETRY_INTERVAL
        if pause > 0:
            return schedstate(False, pause)
        try:
            claimed = self.last_runs.claim(name, self.held.token)
        except ZkLockError as error:
            logger.warning("event=beat_cannot_claim entry=%r error=%s", name, error)
            return schedstate(False, RETRY_INTERVAL)
        if claimed:
            self._claimed = name
            return verdict
        logger.warning("event=beat_not_sent entry=%r reason=another leader has sent it", name)
        self._load_last_run(entry)
        return self._postpone(entry)

    def apply_async(self, entry: ScheduleEntry, *args: Any, **options: Any) -> Any:
        """Send the entry, unless the lead is known to be lost."""
        try:
            self.held.check()
            result = super().apply_async(entry, *args, **options)
        except LockLost:
            self._take_back(entry)
            raise
        except SchedulingError as error:
            cause = error.__context__
            if isinstance(cause, OperationalError):
                cause = cause.__cause__ or cause
            # Anything else is a refusal by the broker.
            if isinstance(cause, (OperationalError, *self.connection.connection_errors)):
                self._connection_failed(entry, error)
            raise
        finally:
            self._claimed = None
        self.has_sent = True
        self._failures.pop(entry.name or "", None)
        return result

    def _postpone(self, entry: ScheduleEntry) -> tuple[bool, float]:
        # The heap has the entry at its old due time. In early versions of Celery it would keep back all others.
        self._heap = None
        due, delay = super().is_due(entry)
        return schedstate(False, 0.0 if due else delay)

    def _load_last_run(self, entry: ScheduleEntry) -> bool:
        """Correct the last run of an entry by what the leaders have written; return whether it has changed.

        An entry without a stored run has the time at which it was made instead.
        """
        known = None if entry.last_run_at is None else maybe_make_aware(entry.last_run_at)
        if known is not None and known.timestamp() > time.time() + MAX_SKEW:
            # Stored by a beat whose clock is ahead.
            known = None
        sent = self.last_runs.last_sent(entry.name or "")
        start = getattr(getattr(entry, "model", None), "start_time", None)
        if sent is not None and isinstance(start, datetime) and sent < start.timestamp():
            # The entry of django-celery-beat has a new start, which its scheduler does not miss.
            sent = None
        if sent is None:
            if known is not None or entry.last_run_at is None:
                return False
            sent = time.time()
        moment = datetime.fromtimestamp(sent, UTC).astimezone(self.app.timezone)
        is_of_a_run = self.created_at is None or known is None or known.timestamp() < self.created_at
        if known is not None and known >= moment and is_of_a_run:
            return False
        entry.last_run_at = moment
        return True

    # The broker.

    def _ensure_connected(self) -> Any:
        """Connect to the broker, with one attempt. Celery's own method blocks and retries for an hour."""
        return connect_once(self.connection)

    def _reach_broker(self) -> bool:
        try:
            self._ensure_connected()
            # Made here, because Celery would connect after the claim.
            return self.producer is not None
        except OperationalError as error:
            self.broker_error = error
            return False

    def _connection_failed(self, entry: ScheduleEntry, error: Exception) -> None:
        """Check whether the broker can be reached, and make the entry due again."""
        name = entry.name or ""
        # kombu may report a broken connection as a good one.
        vars(self).pop("producer", None)
        self.connection.collect()
        failures = self._failures.pop(name, (0, 0.0))[0]
        if self._reach_broker():
            failures += 1
            if failures >= MAX_ATTEMPTS:
                logger.error("event=beat_gives_up entry=%r error=%s", name, error)
                return
        self._failures[name] = failures, monotonic() + RETRY_INTERVAL
        self._take_back(entry)

    def _take_back(self, entry: ScheduleEntry) -> None:
        """Take back the claim of an entry that was not sent."""
        name = entry.name or ""
        if self._claimed != name:
            return
        try:
            before = maybe_make_aware(cast("datetime", entry.last_run_at)).timestamp()
            taken_back = self.last_runs.take_back(name, before)
        except ZkLockError as refusal:
            logger.error("event=beat_not_sent entry=%r reason=%s", name, refusal)  # noqa: TRY400 - Celery logs the trace
            return
        if taken_back:
            self._restore(entry)

    def _restore(self, entry: ScheduleEntry) -> None:
        """Store the run before the claim as the last run of an entry."""
        model = getattr(entry, "model", None)
        if model is not None:
            # django-celery-beat counts in the database, and has stored this run.
            model.last_run_at = entry.last_run_at
            model.total_run_count = max(0, model.total_run_count - 1)
            model.no_changes = True
            cast("Any", entry).save()
        self.schedule[entry.name or ""] = entry
        self._heap = None
        self._do_sync()  # type: ignore[attr-defined]


def connect_once(connection: Connection) -> Any:
    """Try each address of the broker once; raise ``OperationalError`` if none can be reached."""
    errors: tuple[type[BaseException], ...] = (*connection.connection_errors, *connection.channel_errors)
    try:
        return connection.ensure_connection(max_retries=max(0, len(connection.alt or ()) - 1))
    except errors as error:
        raise OperationalError(str(error)) from error
