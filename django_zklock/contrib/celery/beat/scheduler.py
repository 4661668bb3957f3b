"""The scheduler that beat is given: it waits for the lead, and has another scheduler send while it leads."""

from __future__ import annotations

import contextlib
import logging
import time
from datetime import datetime, timezone
from typing import Any, cast

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedstate
from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.time import maybe_make_aware
from django.core.exceptions import ImproperlyConfigured

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.contrib.celery.beat.candidacy import Candidacy
from django_zklock.contrib.celery.beat.ledger import Ledger
from django_zklock.exceptions import ZkLockError
from django_zklock.locks import zk_lock
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work

logger = logging.getLogger("django_zklock.beat")

DEFAULT_SCHEDULER = "celery.beat:PersistentScheduler"
# Seconds after which an entry is looked at again that could not be claimed because ZooKeeper did not answer.
RETRY = 1.0


class Led(Scheduler):
    """What is put before the class of the scheduler that sends: nothing is sent that is not claimed.

    It does nothing for a scheduler with a ``tick`` of its own that does not ask :meth:`is_due`, but to refuse to send
    once the lead is known to be lost.
    """

    held: Held
    ledger: Ledger
    # When this scheduler was made, in seconds since the Unix epoch; ``None`` once it has begun to send.
    made: float | None
    _heap: list[Any] | None

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Begin where the last leader has stopped."""
        for entry in self.schedule.values():
            self._recall(entry)
        self.made = None
        super().populate_heap(*args, **options)

    def is_due(self, entry: ScheduleEntry) -> tuple[bool, float]:
        """Claim what is due. It is not due if somebody else has, or if it cannot be claimed now."""
        verdict = super().is_due(entry)
        if not verdict[0]:
            return verdict
        if self.held.lost:
            return schedstate(False, RETRY)
        if self._recall(entry):
            return self._put_off(entry)
        name = entry.name or ""
        try:
            claimed = self.ledger.claim(name, self.held.token)
        except ZkLockError as error:
            logger.warning("event=beat_cannot_claim entry=%r error=%s", name, error)
            return schedstate(False, RETRY)
        if claimed:
            return verdict
        logger.warning("event=beat_not_sent entry=%r reason=another leader has sent it", name)
        self._recall(entry)
        return self._put_off(entry)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send, if we still lead as far as can be known here."""
        self.held.check()
        return super().apply_async(*args, **options)

    def _put_off(self, entry: ScheduleEntry) -> tuple[bool, float]:
        # The heap has it where it was due: ordered anew, or early Celery would keep all others behind it.
        self._heap = None
        due, delay = super().is_due(entry)
        return schedstate(False, 0.0 if due else delay)

    def _recall(self, entry: ScheduleEntry) -> bool:
        """Have an entry know of its last run, wherever that was; whether it did not.

        An entry of which nothing is stored begins with the time at which it was made, which is not that of a run.
        """
        sent = self.ledger.last_sent(entry.name or "")
        if sent is None:
            return False
        moment = datetime.fromtimestamp(sent, timezone.utc).astimezone(self.app.timezone)
        known = None if entry.last_run_at is None else maybe_make_aware(entry.last_run_at)
        is_of_a_run = self.made is None or known is None or known.timestamp() < self.made
        if known is not None and known >= moment and is_of_a_run:
            return False
        entry.last_run_at = moment
        return True


class LeaderScheduler(Scheduler):
    """One of several beats sends; the others wait in line for the lead.

    Of Celery's configuration: ``zklock_beat_scheduler`` is the scheduler that sends, by path or by the name that
    ``celery beat -S`` takes; ``zklock_beat_key`` the key of the lock, by default ``celery-beat:`` and the name of the
    app; ``zklock_beat_using`` the alias in ``ZKLOCK``.

    Raises ``ImproperlyConfigured`` for an alias that is not configured, and for itself as the one that sends.
    """

    def __init__(self, app: Celery, max_interval: int | None = None, lazy: bool = False, **options: Any) -> None:  # noqa: ARG002, FBT001, FBT002 - Celery's
        self._inner: Led | None = None
        self._ticking = self._closing = False
        self._class = _class_of_inner(app)
        self._options = {"app": app, "max_interval": max_interval, **options}
        # Knows its own interval and what to say about itself, and opens nothing.
        self._specimen = self._class(lazy=True, **self._options)
        super().__init__(app, max_interval=self._specimen.max_interval, lazy=True)
        self._longest_wait = float(cast("int", self.max_interval))
        key = app.conf.get("zklock_beat_key") or ":".join(filter(None, ["celery-beat", app.main]))
        using = app.conf.get("zklock_beat_using") or DEFAULT_ALIAS
        lock = zk_lock(key, using=using, template=key, work=lambda: Work(kind="command", name="celery beat"))
        self._candidacy = Candidacy(lock)

    @property
    def info(self) -> str:
        """What beat prints when it starts."""
        lead = f"    . lead -> {self._candidacy.lock.key}, ZKLOCK[{self._candidacy.lock.pool.name!r}]"
        sends = f"    . sends -> {self._class.__module__}.{self._class.__name__}"
        return "\n".join(filter(None, [lead, sends, self._specimen.info]))

    def get_schedule(self) -> dict[str, ScheduleEntry]:
        """Give the schedule of the one that sends; empty while another beat leads."""
        return {} if self._inner is None else self._inner.schedule

    schedule = property(get_schedule)

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Send what is due, if we lead, and wait: for the next to be due, for the lead, or for its loss.

        Beat itself would sleep without an ear for the lead. Never waits for longer than ``max_interval``.
        """
        if self._closing:
            # Beat was told to end, and something on the way has swallowed that: a finalizer, an error in a `finally`.
            raise SystemExit
        try:
            self._ticking = True
            self._tick()
        finally:
            self._ticking = False
        return 0.0

    def _tick(self) -> None:
        inner = self._lead()
        if inner is None:
            self._candidacy.wait(self._longest_wait)
            return
        delay = inner.tick()
        if delay and delay > 0:
            self._candidacy.wait(min(delay, self._longest_wait))
            if inner.should_sync():
                # As Celery's loop does after it has slept.
                inner._do_sync()  # type: ignore[attr-defined]  # noqa: SLF001

    def sync(self) -> None:
        """Have the one that sends store what it keeps."""
        if self._inner is not None:
            self._inner.sync()

    def close(self) -> None:
        """Store, and give up the lead, so that the next takes over at once. Closing again does nothing.

        In the middle of a tick it only takes note. So it is when beat's signal handler closes; the handler then ends
        the tick, and beat closes once more. A broker connection that is closed below a send in progress would turn
        that end into a failed send, and beat would go on.
        """
        self._closing = True
        if self._ticking:
            return
        try:
            self._dismiss()
        finally:
            self._candidacy.withdraw()

    def _lead(self) -> Led | None:
        held = self._candidacy.look()
        if self._inner is not None and self._inner.held is not held:
            self._dismiss()
        if self._inner is None and held is not None:
            ledger = Ledger(held.lock)
            try:
                ledger.load()
            except ZkLockError as error:
                self._candidacy.give_up(error)
                return None
            # Made now, and not before: it reads what the last leader has stored.
            made = time.time()
            inner = self._class(**self._options)
            inner.held, inner.ledger, inner.made = held, ledger, made
            # A leader may be killed at any time, and Celery stores every three minutes only.
            inner.sync_every_tasks = inner.sync_every_tasks or 1
            self._inner = inner
        return self._inner

    def _dismiss(self) -> None:
        inner, self._inner = self._inner, None
        if inner is None:
            return
        try:
            inner.close()
        except Exception:
            # The lead must be given up all the same.
            logger.exception("event=beat_not_stored scheduler=%s", self._class.__name__)
        # Early Celery leaves it open.
        connection = vars(inner).pop("connection", None)
        if connection is not None:
            with contextlib.suppress(*connection.connection_errors):
                connection.release()


def _class_of_inner(app: Celery) -> type[Led]:
    name = app.conf.get("zklock_beat_scheduler") or DEFAULT_SCHEDULER
    pairs: Any = load_extension_class_names("celery.beat_schedulers")
    found = symbol_by_name(name, aliases=dict(pairs))
    if issubclass(found, LeaderScheduler):
        raise ImproperlyConfigured(
            f"zklock_beat_scheduler is the scheduler that sends while its beat leads, got {name!r}; "
            f"LeaderScheduler itself is for beat_scheduler, or `celery beat -S`"
        )
    facts = {"__module__": found.__module__, "__qualname__": found.__qualname__}
    return type(found.__name__, (Led, found), facts)
