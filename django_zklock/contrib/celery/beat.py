"""``celery beat`` on several hosts: one leads and sends.

``celery beat -S django_zklock.contrib.celery.beat:LeaderScheduler``

Each beat is a contender of one lock (`LeaderElection`). The leader makes the scheduler that sends, with
`ClaimingSchedulerMixin` mixed into its class, and claims each run in ZooKeeper before it sends it (`Sends`).
`LeaderScheduler` is what Celery's beat runs, and puts the three together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
from django_zklock.contrib.celery import internals
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.zk import owners, paths, scripts
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.scripts import RequestScript, or_error
from django_zklock.zk.waiting import AutoResetEvent, boottime, monotonic
from django_zklock.zk.wire import BadVersionError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from django_zklock.zk.session import Session

__all__ = ["LeaderScheduler"]

logger = logging.getLogger("django_zklock.beat")

T = TypeVar("T")

DEFAULT_SCHEDULER = "celery.beat:PersistentScheduler"
# Seconds from a refusal to the next attempt: to stand for election, and to claim or send an entry.
RETRY_INTERVAL = 1.0
# Seconds between two attempts to reach the broker, of a beat that has left the election because it cannot. It delays
# due entries when no other beat can reach the broker either.
PROBE_INTERVAL = 3.0
# Attempts to send one run of an entry while the broker accepts connections. If the broker breaks the connection each
# time, the message is the cause.
MAX_ATTEMPTS = 3
# Seconds by which a last run may lie in the future. Beats whose clocks differ by less send no due time twice. NTP keeps
# clocks within milliseconds. Without it a host drifts by a second or two a day, so there are weeks to notice.
MAX_SKEW = 30.0
# Seconds between the clocks of a beat and of ZooKeeper. Two beats within this are within MAX_SKEW of each other.
MAX_OFFSET = MAX_SKEW / 2
# Seconds for which an entry that is missing in the schedule of the leaders is remembered.
KEEP_GONE = 7 * 86400.0
# ZooKeeper closes the connection of a client that sends a megabyte.
MAX_BYTES = 1_000_000
VERSION = 2


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
        held = self._attempt.held if self._attempt is not None else None
        if held is not None:
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

    def _campaign(self) -> Held | None:
        if self._attempt is None:
            if not self.may_join():
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

    def wait(self, seconds: float) -> None:
        """Wait until :meth:`poll` has something to do, for at most ``seconds``."""
        limit: float | None = None
        if self._attempt is None:
            limit = self._retry_at - monotonic()
        elif self._attempt.held is None:
            limit = self._attempt.next_wakeup()
        self._event.wait(max(0.0, seconds if limit is None else min(seconds, limit)))

    def give_up(self, error: ZkLockError) -> None:
        """Leave the queue, or release the lead; the next attempt begins after ``RETRY_INTERVAL``."""
        self.step_aside(RETRY_INTERVAL)
        level = logging.DEBUG if self._failure_logged else logging.WARNING
        self._failure_logged = True
        logger.log(level, "event=beat_cannot_stand key=%r error=%s", self.lock.key, error)

    def step_aside(self, seconds: float) -> None:
        """Leave the queue, so that the next contender leads at once, and stay out of it for ``seconds``."""
        self._leave()
        self._retry_at = monotonic() + seconds

    def may_join(self) -> bool:
        """Tell whether the time is over for which this beat stays out of the queue."""
        return monotonic() >= self._retry_at

    def resign(self) -> None:
        """Leave the queue for good, and wait until the server has confirmed it, for at most the connect timeout.

        A process may end without closing its session, as a beat inside of a worker does.
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


class TakenOver(ZkLockError):  # noqa: N818 - as LockLost
    """Another beat has replaced what was sent, so this one leads no more."""


class Sends:
    """When each entry of the schedule was last sent: one node, below the queue of the lock for the lead.

    A new leader replaces it, and so does each claim, always the version that this leader has written last. So a leader
    that has lost the lead without knowing it can claim nothing: its version does not fit, which raises
    :exc:`TakenOver`. The node stays when no beat runs. It is used by one thread, that of the leader.

    Times are in seconds since the Unix epoch, on the clock of the beat that has sent, which has found the entry due by
    that clock. With each write a leader measures how far its clock is ahead of ZooKeeper's; one that is far off writes
    that beside its times.

    Methods with requests raise ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if
    it refuses.
    """

    def __init__(self, held: Held, session: Session) -> None:
        self._token = held.token
        # The one that has the lead: no write outlives it.
        self._session, self._session_id = session, session.id
        self._key = held.key
        self._path = f"{held.lock.paths[0]}/{paths.BEAT_RECORD}"
        self._version = 0
        # By name: the time, and by how much the clock that showed it was ahead.
        self._sent: dict[str, tuple[float, float]] = {}
        # When a leader has first missed an entry in its schedule.
        self._gone: dict[str, float] = {}
        self._ahead = 0.0
        self._offset_logged = self._future_logged = False

    def take_over(self) -> None:
        """Read what was sent, and write it as this leader; no leader before can claim from then on."""
        while True:
            data, self._version = self._ask("read", self._read)
            sent, self._gone = _decode(data)
            # A leader before may just have claimed.
            with contextlib.suppress(TakenOver):
                self._replace(sent)
                break
        now = time.time()
        for name, (at, ahead) in sent.items():
            if at - ahead + self._ahead > now + MAX_SKEW:
                # No clock that was ahead explains this time: it counts as now.
                self._warn_of_future(name, at - now)
                self._sent[name] = now, 0.0

    def last(self, name: str) -> float | None:
        """Return when an entry was last sent, on the clock of this host.

        A beat whose clock is ahead has written a time in the future. While that is more than ``MAX_SKEW`` ahead, the
        result is the moment at which it has sent, on the clock of this host.
        """
        sent, ahead = self._sent.get(name, (None, 0.0))
        now = time.time()
        if sent is None or sent <= now + MAX_SKEW:
            return sent
        self._warn_of_future(name, sent - now)
        return sent - ahead + self._ahead

    def _warn_of_future(self, name: str, seconds: float) -> None:
        if not self._future_logged:
            message = "event=beat_sent_in_the_future key=%r entry=%r ahead=%.1f offset=%.1f"
            logger.warning(message, self._key, name, seconds, self._ahead)
        self._future_logged = True

    def claim(self, name: str) -> None:
        """Write that an entry is sent now; raise ``TakenOver`` if another beat leads.

        If another error is raised, the entry may be claimed nevertheless.
        """
        ahead = self._ahead if abs(self._ahead) > MAX_OFFSET else 0.0
        self._replace({**self._sent, name: (time.time(), ahead)})

    def take_back(self, name: str, before: float) -> None:
        """Undo a claim that was not sent; the run before it was at ``before``."""
        self._replace({**self._sent, name: (before, 0.0)})

    def reconcile(self, names: Collection[str]) -> None:
        """Forget entries that were missing in the schedule for a week; ``names`` are in it now.

        The next claim writes this.
        """
        now = time.time()
        for name in self._sent.keys() - set(names):
            self._gone.setdefault(name, now)
        for name, since in [*self._gone.items()]:
            if now - since > KEEP_GONE:
                self._sent.pop(name, None)
            if name in names or name not in self._sent:
                del self._gone[name]

    def _replace(self, sent: dict[str, tuple[float, float]]) -> None:
        data = _encode(self._token, sent, self._gone)
        if len(data) > MAX_BYTES:
            raise ZkLockError(f"{len(sent)} entries do not fit in one node; beats with different keys can share them")
        self._version, offset = self._ask("write", partial(self._write, data, self._version), mutates=True)
        self._sent = sent
        if offset is None:
            return
        self._ahead = offset
        is_off = abs(offset) > MAX_OFFSET
        if is_off and not self._offset_logged:
            logger.error("event=beat_clock_is_off key=%r offset=%.1f limit=%g", self._key, offset, MAX_OFFSET)
        self._offset_logged = is_off

    # Request scripts. They run on the connection's thread, and so change no attributes.

    def _ask(self, verb: str, script: Callable[[], RequestScript[T]], *, mutates: bool = False) -> T:
        session = self._session

        def of_one_session() -> RequestScript[T]:
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

    def _write(self, data: bytes, version: int) -> RequestScript[tuple[int, float | None]]:
        """Replace ``version``; return the new one, and by how much our clock is ahead if that was measured."""
        while True:
            before = time.time()
            write = partial(self._session.wire.set, self._path, data, version=version)
            (stat,) = yield [or_error(write, BadVersionError, NoNodeError)]
            if not isinstance(stat, Exception):
                return stat.version, _certain_offset(before, stat.mtime / 1000)
            found, now = yield from self._read()
            if found == data:
                # The answer to our write was lost with the connection.
                return now, None
            if found or now:
                raise TakenOver("another beat has taken the lead")
            # An operator has deleted the node; it is there again, and empty.
            version = now


def _certain_offset(before: float, there: float) -> float:
    """Return the part of the difference of two clocks that the duration of its measurement cannot explain."""
    low, high = sorted((before - there, time.time() - there))
    return max(low, min(high, 0.0))


def _encode(token: int, sent: dict[str, tuple[float, float]], gone: dict[str, float]) -> bytes:
    facts = {"v": VERSION, "token": token, "sent": sent, "gone": gone}
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _decode(data: bytes) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    # Every client of ZooKeeper may write there: what cannot be read counts as nothing.
    try:
        facts = json.loads(data)
        if facts["v"] != VERSION:
            return {}, {}
        sent = {name: (float(at), float(ahead)) for name, (at, ahead) in facts["sent"].items()}
        gone = {name: float(since) for name, since in facts["gone"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return {}, {}
    # Neither infinite nor not a number, which would end beat when it becomes a date.
    return {name: (at, ahead) for name, (at, ahead) in sent.items() if at > 0 and 0 < at - ahead < float("inf")}, gone


class ClaimingSchedulerMixin(Scheduler):
    """Mixed into the class of the scheduler that sends, so that it sends only runs that it has claimed.

    A scheduler with a ``tick`` of its own may not call :meth:`is_due`. Then the mixin only refuses to send when the
    lead is known to be lost.
    """

    held: Held
    sends: Sends
    # When this scheduler was made, in seconds since the Unix epoch; ``None`` from the first heap on.
    created_at: float | None

    def __init__(self, *args: Any, **options: Any) -> None:
        # Why this beat cannot lead: the broker cannot be reached, or another beat leads.
        self.broker_error: Exception | None = None
        self.taken_over: TakenOver | None = None
        # By names: failed attempts to send the same run, and when the next one is due (monotonic clock).
        self._failures: dict[str, tuple[int, float]] = {}
        # The entry that is claimed and not sent yet.
        self._claimed: str | None = None
        super().__init__(*args, **options)

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Make the heap from the last runs of all leaders."""
        self.sends.reconcile(self.schedule)
        for entry in self.schedule.values():
            self._load_last_run(entry)
        self.created_at = None
        super().populate_heap(*args, **options)

    def is_due(self, entry: ScheduleEntry) -> tuple[bool, float]:
        """Claim a due entry. It is not due if it was sent, or if it cannot be claimed or sent now."""
        verdict = super().is_due(entry)
        if not verdict[0]:
            return verdict
        if self._load_last_run(entry):
            # The heap has the entry at its old due time. In early versions of Celery it would keep back all others.
            internals.plan_again(self)
            due, delay = super().is_due(entry)
            return schedstate(False, 0.0 if due else delay)
        name = entry.name or ""
        # Before the claim: a claimed run that cannot be sent is lost.
        pause = self._failures.get(name, (0, 0.0))[1] - monotonic()
        if pause <= 0 and (self.held.lost or not self._reach_broker()):
            pause = RETRY_INTERVAL
        if pause > 0:
            return schedstate(False, pause)
        try:
            self.sends.claim(name)
        except ZkLockError as error:
            logger.warning("event=beat_cannot_claim entry=%r error=%s", name, error)
            if isinstance(error, TakenOver):
                self.taken_over = error
            return schedstate(False, RETRY_INTERVAL)
        self._claimed = name
        return verdict

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
        self._failures.pop(entry.name or "", None)
        return result

    def _load_last_run(self, entry: ScheduleEntry) -> bool:
        """Correct the last run of an entry by what the leaders have written; return whether it has changed.

        An entry without a stored run has the time at which it was made instead.
        """
        known = None if entry.last_run_at is None else maybe_make_aware(entry.last_run_at)
        if known is not None and known.timestamp() > time.time() + MAX_SKEW:
            # Stored by a beat whose clock is ahead.
            known = None
        sent = self.sends.last(entry.name or "")
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
        failures = self._failures.pop(name, (0, 0.0))[0] + self._reach_broker()
        if failures >= MAX_ATTEMPTS:
            logger.error("event=beat_gives_up entry=%r error=%s", name, error)
            return
        self._failures[name] = failures, monotonic() + RETRY_INTERVAL
        self._take_back(entry)

    def _take_back(self, entry: ScheduleEntry) -> None:
        """Take back the claim of an entry that was not sent, and store the run before as its last one."""
        name = entry.name or ""
        if self._claimed != name:
            return
        try:
            self.sends.take_back(name, maybe_make_aware(cast("datetime", entry.last_run_at)).timestamp())
        except ZkLockError as refusal:
            logger.error("event=beat_not_sent entry=%r reason=%s", name, refusal)  # noqa: TRY400 - Celery logs the trace
            return
        model = getattr(entry, "model", None)
        if model is not None:
            # django-celery-beat counts in the database, and has stored this run.
            model.last_run_at = entry.last_run_at
            model.total_run_count = max(0, model.total_run_count - 1)
            model.no_changes = True
            cast("Any", entry).save()
        self.schedule[name] = entry
        internals.plan_again(self)
        internals.store(self)


def connect_once(connection: Connection) -> Any:
    """Try each address of the broker once; raise ``OperationalError`` if none can be reached."""
    errors: tuple[type[BaseException], ...] = (*connection.connection_errors, *connection.channel_errors)
    try:
        return connection.ensure_connection(max_retries=max(0, len(connection.alt or ()) - 1))
    except errors as error:
        raise OperationalError(str(error)) from error


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
        # This beat takes part in the election only while it can reach the broker, as far as it knows.
        self._broker_is_away = False
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
        scheduler = None if self._broker_is_away and not self._broker_is_back() else self._lead()
        if scheduler is None:
            self._election.wait(self._longest_wait)
            return
        delay = 0.0
        try:
            delay = scheduler.tick()
        except OperationalError as error:
            # From a scheduler that connects before it calls is_due().
            scheduler.broker_error = error
        if scheduler.taken_over is not None:
            self._dismiss()
            self._election.give_up(scheduler.taken_over)
        elif scheduler.broker_error is not None:
            # Another beat may reach the broker. Due entries are not claimed, so the next leader sends them.
            message = "event=beat_steps_down key=%r reason=the broker cannot be reached: %s"
            logger.warning(message, self._election.lock.key, scheduler.broker_error)
            self._dismiss()
            self._broker_is_away = True
            self._election.step_aside(PROBE_INTERVAL)
        elif delay and delay > 0:
            self._election.wait(min(delay, self._longest_wait))
            if scheduler.should_sync():
                # Celery's loop does this after it has slept.
                internals.store(scheduler)

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
        session = self._election.session
        if self._scheduler is None and held is not None and session is not None:
            sends = Sends(held, session)
            self._clock_difference = time.time() - boottime()
            try:
                sends.take_over()
            except ZkLockError as error:
                self._election.give_up(error)
                return None
            # Not made before: it reads what the last leader has stored.
            created_at = time.time()
            scheduler = self._class(**self._options)
            scheduler.held, scheduler.sends, scheduler.created_at = held, sends, created_at
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

    def _broker_is_back(self) -> bool:
        if not self._election.may_join():
            return False
        with self.app.connection_for_write() as connection:
            try:
                connect_once(connection)
            except OperationalError as error:
                logger.debug("event=beat_broker_away error=%s", error)
                self._election.step_aside(PROBE_INTERVAL)
                return False
        logger.info("event=beat_broker_is_back")
        self._broker_is_away = False
        return True


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
