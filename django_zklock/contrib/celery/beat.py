"""``celery beat`` on several hosts: one leads and sends.

Each beat is a contender of one lock. The leader makes the scheduler that sends, and claims each run in ZooKeeper before
it sends it (`Sends`). `LeaderScheduler` is what Celery's beat runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from celery.schedules import schedstate
from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.time import maybe_make_aware
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection
from kombu.exceptions import OperationalError

from django_zklock import signals
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.contrib.celery.internals.scheduler import plan_again, store_schedule
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.zk import owners, paths, scripts
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.scripts import RequestScript, or_error
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import AutoResetEvent, monotonic
from django_zklock.zk.wire import BadVersionError, NodeExistsError, NoNodeError

__all__ = ["LeaderScheduler"]

logger = logging.getLogger("django_zklock.beat")

DEFAULT_SCHEDULER = "celery.beat:PersistentScheduler"
# Seconds from a refusal to the next attempt: to join the queue, and to claim an entry.
RETRY_INTERVAL = 1.0
# Seconds between two attempts to reach the broker, of a beat that has left the queue because it cannot.
PROBE_INTERVAL = 3.0
# Attempts to send one run while the broker accepts connections: the message may be what breaks them.
MAX_ATTEMPTS = 3
# Seconds by which a last run may lie in the future: beats whose clocks differ by less send no due time twice.
MAX_SKEW = 30.0
# Seconds since its last run for which an entry that is missing in the schedule is remembered.
KEEP_GONE = 35 * 86400.0
# ZooKeeper keeps the last 500 writes in its heap, twice: a node of 0.2 MB takes 256 MB there.
MAX_BYTES = 100_000


class TakenOver(ZkLockError):  # noqa: N818 - as LockLost
    """Another beat has replaced what was sent, so this one leads no more."""


class Sends:
    """When each entry of the schedule was last sent: one node, below the queue of the lock for the lead.

    A new leader replaces it, and so does each claim, always the version that this leader has written last. So a leader
    that has lost the lead without knowing it can claim nothing: its version does not fit (:exc:`TakenOver`). The node
    stays when no beat runs. Times are in seconds since the Unix epoch, on the clock of the beat that has sent.
    """

    def __init__(self, held: Held, session: Session) -> None:
        self._token = held.token
        # The one that has the lead: no write outlives it.
        self._session, self._session_id = session, session.id
        self._path = f"{held.lock.paths[0]}/{paths.BEAT_RECORD}"
        self._version = 0
        self.sent: dict[str, float] = {}

    def take_over(self) -> None:
        """Read what was sent, and write it as this leader; no leader before can claim from then on."""
        while True:
            data, self._version = self._ask("read", self._read)
            # A leader before may just have claimed.
            with contextlib.suppress(TakenOver):
                self._replace(self._decode(data))
                return

    def reconcile(self, schedule: Collection[str]) -> None:
        """Forget entries that are missing in the schedule, and were not sent for long. The next claim writes this.

        The oldest of them are forgotten sooner if there is no room: one-off entries may have new names each day.
        """
        missing = sorted(self.sent.keys() - set(schedule), key=lambda name: self.sent[name])
        room = MAX_BYTES - len(self._encode({**self.sent, **dict.fromkeys(schedule, time.time())}))
        for name in missing:
            if self.sent[name] < time.time() - KEEP_GONE or room < 0:
                room += len(self._encode({name: self.sent.pop(name)})) - len(self._encode({}))

    def claim(self, name: str, sent: float | None = None) -> None:
        """Write that an entry is sent now, or was at ``sent``. After an error it may be claimed nevertheless."""
        self._replace({**self.sent, name: time.time() if sent is None else sent})

    def _replace(self, sent: dict[str, float]) -> None:
        data = self._encode(sent)
        if len(data) > MAX_BYTES:
            raise ZkLockError(f"{len(sent)} entries do not fit in one node; beats with different keys can share them")
        self._version = self._ask("write", partial(self._write, data, self._version), mutates=True)
        self.sent = sent

    def _encode(self, sent: dict[str, float]) -> bytes:
        return json.dumps({"token": self._token, "sent": sent}, ensure_ascii=False).encode(errors="replace")

    def _decode(self, data: bytes) -> dict[str, float]:
        # Every client of ZooKeeper may write there: what cannot be read counts as nothing.
        try:
            sent = {name: float(at) for name, at in json.loads(data)["sent"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return {}
        # Neither infinite nor not a number, which would end beat when it becomes a date.
        sent, now = {name: at for name, at in sent.items() if 0 < at < float("inf")}, time.time()
        # A time in the future, of a clock that was ahead, counts as now.
        if (ahead := max(sent.values(), default=now) - now) > MAX_SKEW:
            logger.warning("event=beat_sent_in_the_future path=%r ahead=%.1f", self._path, ahead)
        return {name: at if at <= now + MAX_SKEW else now for name, at in sent.items()}

    # Request scripts. They run on the connection's thread, and so change no attributes.

    def _ask(self, verb: str, script: Callable[[], RequestScript[Any]], *, mutates: bool = False) -> Any:
        session = self._session

        def of_one_session() -> RequestScript[Any]:
            # After a reconnect a script begins anew. A leader must not write after the end of its session.
            if session.id != self._session_id or session.lease_expired:
                raise ConnectionError("the session that had the lead may have ended")
            return (yield from script())

        action = f"{verb} {self._path}"
        return scripts.run(session, of_one_session, action=action, timeout=session.timeout, mutates=mutates)

    def _read(self) -> RequestScript[tuple[bytes, int]]:
        wire, path = self._session.wire, self._path
        while True:
            # Our server may not have yet what the last leader has written to another one.
            _synced, found = yield [partial(wire.sync, path), or_error(partial(wire.get, path), NoNodeError)]
            if not isinstance(found, Exception):
                return found[0], found[1].version
            yield [or_error(partial(wire.ensure, path, b"", container=False), NodeExistsError)]

    def _write(self, data: bytes, version: int) -> RequestScript[int]:
        write = partial(self._session.wire.set, self._path, data, version=version)
        (stat,) = yield [or_error(write, BadVersionError, NoNodeError)]
        if not isinstance(stat, Exception):
            return int(stat.version)
        if isinstance(stat, NoNodeError):
            # An operator has deleted it. The session, and so the lead, is still ours.
            yield [or_error(partial(self._session.wire.ensure, self._path, data, container=False), NodeExistsError)]
        found, now = yield from self._read()
        if found != data:
            raise TakenOver("another beat has taken the lead")
        # The answer to our write was lost with the connection.
        return now


class ClaimingSchedulerMixin(Scheduler):
    """Mixed into the class of the scheduler that sends, so that it sends only runs that it has claimed.

    One with a ``tick`` of its own may not call :meth:`is_due`; then it only sends nothing when it has lost the lead.
    """

    held: Held
    sends: Sends
    # When this scheduler was made, in seconds since the Unix epoch; ``None`` from the first heap on.
    created_at: float | None
    # Why this beat cannot lead: the broker cannot be reached, or another beat leads. Celery only logs what is raised.
    failure: OperationalError | TakenOver | None = None
    # The entry that is claimed and not sent yet.
    _claimed: str | None = None
    # RedBeat would take a lock of its own by this name. It sets it, and the lead stands for that lock.
    lock_key = property(lambda _self: None, lambda _self, _key: None)

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Make the heap from the last runs of all leaders."""
        self.sends.reconcile(self.schedule)
        for entry in self.schedule.values():
            self._load_last_run(entry)
        self.created_at = None
        super().populate_heap(*args, **options)

    def is_due(self, entry: ScheduleEntry) -> tuple[bool, float]:
        """Claim a due entry. It is not due if it was sent, or if it cannot be claimed now."""
        if self._load_last_run(entry):
            # The heap has the entry at its old due time. In early versions of Celery it would keep back all others.
            plan_again(self)
            return schedstate(False, 0.0)
        verdict = super().is_due(entry)
        if not verdict[0]:
            return verdict
        name = entry.name or ""
        try:
            self.held.check()
            # Before the claim: a claimed run that cannot be sent is lost.
            self._ensure_connected()
            assert self.producer is not None, "Celery would connect to make it"
            self.sends.claim(name)
            self._claimed = name
            return verdict
        except (OperationalError, TakenOver) as error:
            self.failure = error
        except ZkLockError as error:
            logger.warning("event=beat_cannot_claim entry=%r error=%s", name, error)
        return schedstate(False, RETRY_INTERVAL)

    def apply_async(self, entry: ScheduleEntry, *args: Any, **options: Any) -> Any:
        """Send the entry, unless the lead is known to be lost."""
        try:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                self.held.check()
                try:
                    return super().apply_async(entry, *args, **options)
                except SchedulingError as error:
                    cause = error.__context__
                    if isinstance(cause, OperationalError):
                        cause = cause.__cause__ or cause
                    if not isinstance(cause, (OperationalError, *self.connection.connection_errors)):
                        # The broker has refused it.
                        raise
                    # kombu may report a broken connection as a good one.
                    vars(self).pop("producer", None)
                    self.connection.collect()
                    self._ensure_connected()
                    options |= {"producer": self.producer, "advance": False}
                    if attempt == MAX_ATTEMPTS:
                        logger.error("event=beat_gives_up entry=%r error=%s", entry.name, error)  # noqa: TRY400
                        raise
                    time.sleep(RETRY_INTERVAL)
        except (LockLost, OperationalError):
            self._take_back(entry)
            raise
        except (SystemExit, KeyboardInterrupt):
            # Whether the message has gone is not known.
            logger.error("event=beat_not_sent entry=%r reason=this beat ends", entry.name)  # noqa: TRY400
            raise
        finally:
            self._claimed = None

    def _load_last_run(self, entry: ScheduleEntry) -> bool:
        """Correct the last run of an entry by what the leaders have written; return whether it has changed."""
        known = None if entry.last_run_at is None else maybe_make_aware(entry.last_run_at)
        if known is not None and known.timestamp() > time.time() + MAX_SKEW:
            # Stored by a beat whose clock was ahead.
            known = None
        sent = self.sends.sent.get(entry.name or "")
        start = getattr(getattr(entry, "model", None), "start_time", None)
        if sent is not None and isinstance(start, datetime) and sent < start.timestamp():
            # The entry of django-celery-beat has a new start, which its scheduler does not miss.
            sent = None
        if sent is None:
            if known is not None or entry.last_run_at is None:
                return False
            sent = time.time()
        moment = datetime.fromtimestamp(sent, UTC).astimezone(self.app.timezone)
        # An entry without a stored run has the time at which it was made.
        if known is not None and known >= moment and (self.created_at is None or known.timestamp() < self.created_at):
            return False
        entry.last_run_at = moment
        return True

    def _ensure_connected(self) -> Any:
        """Connect to the broker, with one attempt. Celery's own method blocks and retries for an hour."""
        return connect_once(self.connection)

    def _take_back(self, entry: ScheduleEntry) -> None:
        """Take back the claim of an entry that was not sent, and store the run before as its last one."""
        name = entry.name or ""
        if self._claimed != name:
            return
        try:
            self.sends.claim(name, maybe_make_aware(cast("datetime", entry.last_run_at)).timestamp())
        except ZkLockError as refusal:
            logger.error("event=beat_not_sent entry=%r reason=%s", name, refusal)  # noqa: TRY400 - Celery logs the trace
            return
        if (model := getattr(entry, "model", None)) is not None:
            # django-celery-beat counts in the database, and has stored this run.
            model.last_run_at = entry.last_run_at
            model.total_run_count = max(0, model.total_run_count - 1)
            model.no_changes = True
            cast("Any", entry).save()
        self.schedule[name] = entry
        plan_again(self)
        store_schedule(self)


def connect_once(connection: Connection) -> Any:
    """Try each address of the broker once; raise ``OperationalError`` if none can be reached."""
    try:
        return connection.ensure_connection(max_retries=max(0, len(connection.alt or ()) - 1))
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise OperationalError(str(error)) from error


class LeaderScheduler(Scheduler):
    """One of several beats leads and sends; the others wait in the queue of the lead's lock, and send no requests."""

    # RedBeat looks for it in the scheduler of each beat that starts, and takes a lock of its own if there is a name.
    lock_key = None

    def __init__(self, app: Celery, max_interval: int | None = None, lazy: bool = False, **options: Any) -> None:  # noqa: ARG002, FBT001, FBT002 - Celery's
        self._scheduler: ClaimingSchedulerMixin | None = None
        self._ticking = self._closing = False
        self._class = _class_of_scheduler(app)
        self._options = {"app": app, "max_interval": max_interval, **options}
        # Knows its interval and its own description, and opens nothing.
        self._prototype = self._class(lazy=True, **self._options)
        super().__init__(app, max_interval=self._prototype.max_interval, lazy=True)
        key = app.conf.get("zklock_beat_key") or ":".join(filter(None, ["celery-beat", app.main]))
        using = app.conf.get("zklock_beat_using") or DEFAULT_ALIAS
        work = Work(kind="command", name="celery beat")
        self._lock = Lock(key, connections[using], listener=signals.listener, work=lambda: work, template=key)
        # In the queue, or with the lead; set when the lead is granted, lost or revoked.
        self._attempt: Acquisition | None = None
        self._event = AutoResetEvent()
        # Until when this beat stays out of the queue (monotonic clock), and whether that is because of the broker.
        self._retry_at, self._broker_is_away = 0.0, False
        self._outage_logged = False

    @property
    def info(self) -> str:
        """The description that beat prints when it starts."""
        lead = f"    . lead -> {self._lock.key}, ZKLOCK[{self._lock.pool.name!r}]"
        sends = f"    . sends -> {self._class.__module__}.{self._class.__name__}"
        return "\n".join(filter(None, [lead, sends, self._prototype.info]))

    # Empty while another beat leads.
    schedule = property(lambda self: {} if self._scheduler is None else self._scheduler.schedule)

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Send a due entry if this beat leads, and wait: beat itself would sleep, and not wake up with the lead."""
        if self._closing:
            # Beat's SystemExit was lost, in a finalizer or by an error in a `finally`.
            raise SystemExit
        self._ticking = True
        try:
            if (delay := self._tick() or 0.0) > 0:  # nothing is 0, as in Celery's loop
                self._event.wait(min(delay, cast("int", self.max_interval)))
                if self._scheduler is not None and self._scheduler.should_sync():
                    # Celery's loop does this after it has slept.
                    store_schedule(self._scheduler)
        except OperationalError as error:
            # Another beat may reach the broker. Due entries are not claimed, so the next leader sends them.
            if not self._broker_is_away:
                text = "event=beat_steps_down key=%r reason=the broker cannot be reached: %s"
                logger.warning(text, self._lock.key, error)
            self._broker_is_away = True
            self._step_down(PROBE_INTERVAL)
        except ZkLockError as error:
            self._step_down(RETRY_INTERVAL)
            level = logging.DEBUG if self._outage_logged else logging.WARNING
            self._outage_logged = True
            logger.log(level, "event=beat_cannot_stand key=%r error=%s", self._lock.key, error)
        finally:
            self._ticking = False
        return 0.0

    def _tick(self) -> float | None:
        """Stand for the lead, and send a due entry if this beat has it; return the seconds until the next tick."""
        lock, attempt = self._lock, self._attempt
        if attempt is None:
            if (pause := self._retry_at - monotonic()) > 0:
                return pause
            if self._broker_is_away:
                with self.app.connection_for_write() as connection:
                    connect_once(connection)
                logger.info("event=beat_broker_is_back")
                self._broker_is_away = False
            attempt = self._attempt = Acquisition(lock, None, self._event.set, owners.caller(), wants_holder=True)
            attempt.start()
        is_new = attempt.held() is None and attempt.poll()
        if (held := attempt.held()) is None:
            if attempt.newly_contended():
                self._outage_logged = False
                logger.info("event=beat_waits key=%r leader=%s", lock.key, attempt.contender.holder or "unknown")
                lock.listener.notify("contended", lock, holder=attempt.contender.holder)
            wakeup = attempt.next_wakeup()
            return math.inf if wakeup is None else wakeup
        if is_new:
            self._outage_logged = False
            logger.info("event=beat_leads key=%r token=%d waited=%.1f", lock.key, held.token, held.waited)
            lock.listener.notify("acquired", lock, held=held)
        if held.lost or held.revoked:
            reason = held._loss_error() if held.lost else f"asked to release: {held.revoked}"
            logger.warning("event=beat_steps_down key=%r token=%d reason=%s", held.key, held.token, reason)
            self._step_down(0.0)
            return 0.0
        if self._scheduler is None:
            sends = Sends(held, attempt.contender.session)
            sends.take_over()
            created_at = time.time()
            # Not made before: it reads what the last leader has stored.
            scheduler = self._class(**self._options)
            scheduler.held, scheduler.sends, scheduler.created_at = held, sends, created_at
            # A leader may be killed at any time, and Celery stores only every three minutes.
            scheduler.sync_every_tasks = scheduler.sync_every_tasks or 1
            self._scheduler = scheduler
        delay: float | None = self._scheduler.tick()
        if (failure := self._scheduler.failure) is not None:
            raise failure
        return delay

    def _step_down(self, seconds: float) -> None:
        """Leave the queue, so that the next contender leads at once, and stay out of it for ``seconds``."""
        attempt, self._attempt = self._attempt, None
        scheduler, self._scheduler = self._scheduler, None
        try:
            if scheduler is not None:
                scheduler.close()
                # Early versions of Celery leave it open.
                if (connection := vars(scheduler).pop("connection", None)) is not None:
                    with contextlib.suppress(*connection.connection_errors):
                        connection.release()
        except Exception:
            # The lead must be given up nevertheless.
            logger.exception("event=beat_not_stored scheduler=%s", self._class.__name__)
        finally:
            if attempt is not None:
                attempt.end()
        self._retry_at = monotonic() + seconds

    def close(self) -> None:
        """Store the state and give up the lead, so that the next beat leads at once. Closing again does nothing."""
        self._closing = True
        if self._ticking:
            # Beat's signal handler closes, then ends the tick, and beat closes again. If the connection were closed
            # during a send, the end would look like a failed send, and beat would go on.
            return
        attempt = self._attempt
        self._step_down(0.0)
        if attempt is not None and attempt.contender.session.connected:
            # A process may end without closing its session, as a beat inside of a worker does.
            gone = AutoResetEvent()
            attempt.contender.post(partial(attempt.contender.when_deleted, gone.set))
            gone.wait(self._lock.pool.options.connect_timeout)


def _class_of_scheduler(app: Celery) -> type[ClaimingSchedulerMixin]:
    name = app.conf.get("zklock_beat_scheduler") or DEFAULT_SCHEDULER
    found = symbol_by_name(name, aliases=dict(cast("Any", load_extension_class_names("celery.beat_schedulers"))))
    if issubclass(found, LeaderScheduler):
        raise ImproperlyConfigured(
            f"zklock_beat_scheduler is the scheduler that sends, got {name!r}; LeaderScheduler is for beat_scheduler"
        )
    facts = {"__module__": found.__module__, "__qualname__": found.__qualname__}
    return type(found.__name__, (ClaimingSchedulerMixin, found), facts)
