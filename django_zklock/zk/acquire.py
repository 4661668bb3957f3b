"""One acquisition of a lock, by a blocking or an asyncio caller.

Both call :meth:`Acquisition.poll` and then sleep; they differ in how they sleep. Every way out but a
:class:`~django_zklock.zk.held.Held` goes through :meth:`Acquisition.end`, which leaves no node.
"""

from __future__ import annotations

import math
import os
from shlex import quote
from typing import TYPE_CHECKING
from weakref import ref

from django_zklock.exceptions import (
    AlreadyAwaited,
    LockCancelled,
    LockConflict,
    LockTimeout,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.zk import nesting, owners
from django_zklock.zk.contender import SessionUnavailable, State
from django_zklock.zk.formatting import advise, format_silence, program
from django_zklock.zk.held import Held, Possession
from django_zklock.zk.owners import Caller
from django_zklock.zk.waiting import (
    RETRY_INTERVAL,
    AsyncAutoResetEvent,
    Cancellation,
    get_ident,
    serving_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_zklock.zk.contender import Contender
    from django_zklock.zk.listener import LockValue
    from django_zklock.zk.owners import Owner
    from django_zklock.zk.system import Event

# Seconds after the deadline for reading the holder, which the error names: the last known one may be gone.
HOLDER_READ_GRACE = 0.2
# A healthy ensemble may leave a request unanswered for this long, because it or this machine is busy. A shorter timeout
# does not mean that ZooKeeper is unavailable. Seconds.
MAX_NORMAL_DELAY = 0.1

# That of the commands without `--using`.
_DEFAULT_ALIAS = "default"


class Acquisition:
    """One acquisition, used by one caller, once.

    ``timeout`` is in seconds; ``None`` waits for ever and 0 tries once. It also limits how long ZooKeeper may take to
    answer; with ``None`` and 0 that limit is the connect timeout of the pool. With ``may_be_taken`` a taken lock is a
    result, and not an error that names the holder. ``wants_holder`` says that the holder is needed while this waits;
    by default it is if the listener is called with it. An error that names the holder reads it anew. ``cancellation``
    wakes the caller, whose next :meth:`poll` raises.
    """

    # Thousands may wait in one process.
    __slots__ = (
        "__weakref__", "_asked_at", "_began", "_cancellation", "_deadline", "_holder_deadline", "_holder_reads",
        "_is_announced", "_is_contended", "_may_be_taken", "_owner", "_possession", "_response_deadline", "_system",
        "_thread", "_wants_holder", "contender", "held", "is_waiting", "lock", "timeout", "wake",
    )  # fmt: skip

    def __init__(
        self,
        lock: LockValue,
        timeout: float | None,
        wake: Callable[[], bool | None],
        caller: Caller | None = None,
        *,
        may_be_taken: bool = False,
        wants_holder: bool | None = None,
        cancellation: Cancellation | None = None,
    ) -> None:
        if cancellation is not None and not isinstance(cancellation, Cancellation):
            raise TypeError(f"cancellation must be a django_zklock.Cancellation, got {cancellation!r}")
        self.lock = lock
        self._system = lock.pool.system
        self.timeout = timeout
        self._may_be_taken = may_be_taken
        self._wants_holder = lock.listener.wants("contended") if wants_holder is None else wants_holder
        # From the start until the lock is granted, refused or abandoned; so it stays in a forked child.
        self.is_waiting = False
        # What was granted, and learns of changes from then on; and the hold, as long as its owner has it.
        self._possession: Possession | None = None
        self.held: Callable[[], Held | None] = _nothing
        self._owner: Callable[[], Owner | None] = _nothing if caller is None else ref(caller.owner)
        self._thread: Callable[[], Owner | None] = (
            _nothing if caller is None or caller.thread is None else ref(caller.thread)
        )
        self.wake = wake
        self._cancellation = cancellation
        # Moments on the monotonic clock; infinity is never.
        self._began = self._system.monotonic()
        self._deadline = math.inf if timeout is None else self._began + timeout
        # On the clock of leases.
        self._asked_at = self._system.boottime()
        # Until when the holder is read after the deadline, and how often it had been read before that.
        self._holder_deadline = math.inf
        self._holder_reads = 0
        # The caller has begun to wait, and has been told so.
        self._is_contended = self._is_announced = False
        self.contender = self._new_contender()
        # Those that wait for this one wait for the lock too.
        for owner in () if caller is None else (caller.owner, *caller.outer):
            known = [get for get in owner.acquisitions if (other := get()) is not None and other.is_waiting]
            owner.acquisitions = [*known, ref(self)]

    def start(self) -> None:
        """Let the contender join. Does not wait. Raises ``LockCancelled``, and then it has not joined."""
        self.is_waiting = True
        if self._cancellation is not None:
            self._cancellation._add(self, self.wake)
            if self._cancellation.cancelled:
                raise self._cancelled()
        self.contender.session.post(self.contender.join)

    def _new_contender(self) -> Contender:
        """Return a contender that has not joined, and note until when ZooKeeper is to have answered it."""
        self._response_deadline = self._deadline
        if not self.timeout:
            self._response_deadline = self._system.monotonic() + self.lock.pool.options.connect_timeout
        lock = self.lock
        try:
            contender = lock._new_contender(wait=self.timeout != 0, notify=self._changed, stays=self.timeout is None)
        except ZooKeeperUnavailable as error:  # this process can have no session
            raise ZooKeeperUnavailable(
                f"lock {lock.key!r}: {error}", key=lock.key, timeout=self.timeout
            ) from error.__cause__
        # A timeout also limits the wait for ZooKeeper during an outage.
        contender.has_deadline = bool(self.timeout)
        contender.wants_holder = self._wants_holder
        return contender

    def poll(self) -> bool:
        """Return ``True`` when the acquisition is decided, ``False`` to sleep until :meth:`next_wakeup`.

        Raises ``LockTimeout``, ``AlreadyAwaited``, ``LockCancelled``, ``ZooKeeperUnavailable`` or another
        ``ZkLockError``.
        """
        contender = self.contender
        if contender.session.pid != os.getpid():
            # T1 waits, and a signal handler of it forks: the child comes back here too.
            raise ZkLockError(
                f"lock {self.lock.key!r} was being acquired when this process was forked: only the parent process "
                f"waits for it; acquire it anew",
                key=self.lock.key,
                timeout=self.timeout,
            )
        if self._cancellation is not None and self._cancellation.cancelled:
            raise self._cancelled()
        if self.expired:
            # This caller slept since the grant: it has to wait again, and nothing has happened under the lock.
            contender.session.post(contender.leave)
            self.contender = self._new_contender()
            self.start()
            return False
        if contender.state is State.HELD:
            owner = self._owner()
            assert owner is not None, "the caller of poll() has the owner"
            held = Held(
                self.lock,
                contender,
                waited=self._system.monotonic() - self._began,
                caller=Caller(owner, self._thread()),
            )
            self.is_waiting = False
            if self._cancellation is not None:
                self._cancellation._remove(self)
            self._possession = held._possession
            self.held = self._possession.outermost
            # The lock may have been lost, or a release requested, before the assignment.
            self._possession.on_change()
            return True
        if contender.error is not None:
            raise self._refused(contender.error) from contender.session.start_failure or contender.error
        if contender.is_taken and self._may_be_taken:
            self.is_waiting = False
            contender.forget_caller()
            return True
        if contender.state is State.WAITING and not contender.wants_holder:
            self._is_contended = True
        self._check_deadlines()
        return False

    def reenter(self, caller: Caller) -> bool:
        """Leave the queue for a nested hold, if the lock is kept for the caller, a job, by now; return whether it is.

        Raises ``LockConflict``.
        """
        nested = nesting.kept_hold(self.lock, caller)
        if nested is None:
            return False
        self.held = ref(nested)
        self._stop_waiting()
        self.contender.post(self.contender.leave)
        return True

    @property
    def expired(self) -> bool:
        """Whether the lock was granted, and was lost or its lease is over."""
        contender = self.contender
        return contender.lost is not None or (contender.state is State.HELD and contender.session.lease_expired)

    def _check_deadlines(self) -> None:
        contender, now = self.contender, self._system.monotonic()
        if contender.session.start_failure is not None:
            contender.session.start_wire()
        if self._holder_deadline < math.inf:
            if contender.holder_reads != self._holder_reads:
                raise self._timed_out()
            if now >= self._holder_deadline:
                is_known = contender.is_taken or self._waits_surely or self._has_received
                raise self._timed_out() if is_known else self._unanswered()
        elif contender.is_taken:
            self._read_holder()
        elif not contender.answered:
            if now >= self._response_deadline:
                raise self._timed_out() if self._is_normal_delay() else self._unanswered()
        elif now >= self._deadline:
            if not contender.session.connected:
                raise self._timed_out() if self._waits_surely else self._unanswered()
            self._read_holder()

    @property
    def _waits_surely(self) -> bool:
        """Whether our node is behind another one, also if ZooKeeper cannot be reached at this moment."""
        return self.contender.state is State.WAITING and not self.contender.session.silent

    def _is_normal_delay(self) -> bool:
        """Whether ZooKeeper seems healthy, and only the timeout was too short for an answer."""
        contender = self.contender
        if not self.timeout or contender.refusal is not None or contender.session.wire.failure is not None:
            return False
        return self._has_received or (contender.session.connected and self.timeout <= MAX_NORMAL_DELAY)

    @property
    def _has_received(self) -> bool:
        """Whether there is a connection, and ZooKeeper has sent anything since our request."""
        session = self.contender.session
        return session.connected and session.wire.received > self._asked_at

    def _read_holder(self) -> None:
        self._holder_reads, self._holder_deadline = (
            self.contender.holder_reads,
            self._system.monotonic() + HOLDER_READ_GRACE,
        )
        self.contender.session.post(self.contender.refresh_holder)

    def next_wakeup(self) -> float | None:
        """Return the seconds after which :meth:`poll` has something to decide without an event; ``None`` for ever."""
        deadline = self._deadline if self.contender.answered else self._response_deadline
        if self._holder_deadline < math.inf:
            deadline = self._holder_deadline
        if self.contender.session.start_failure is not None:
            deadline = min(deadline, self._system.monotonic() + RETRY_INTERVAL)
        return None if deadline == math.inf else max(0.0, deadline - self._system.monotonic())

    def newly_contended(self) -> bool:
        """Return ``True`` once, when the caller has begun to wait."""
        is_new = self._is_contended and not self._is_announced
        self._is_announced = self._is_contended
        return is_new

    def end(self) -> None:
        """Leave in any state. It may be called at any time and more than once."""
        self._stop_waiting()
        for held in self._registered():
            held.release()
        self.contender.post(self.contender.leave)

    async def aend(self) -> None:
        """Leave like :meth:`end`, and wait for the receivers of signals."""
        self._stop_waiting()
        registered = self._registered()
        self.contender.post(self.contender.leave)
        for held in registered:
            await held.arelease()

    def _stop_waiting(self) -> None:
        self.is_waiting = False
        if self._cancellation is not None:
            self._cancellation._remove(self)
        if not self._registered():
            self.contender.forget_caller()

    def _registered(self) -> list[Held]:
        # Not `mine` alone: an exception may have come after the owner has registered a hold, and before we keep it.
        owner, mine = self._owner(), self.held()
        holds = [] if owner is None else owner.holds
        return [held for held in holds if held is mine or held._possession.contender is self.contender]

    def _changed(self) -> None:
        # Under the monitor.
        is_awake = self.wake() is not False
        if self._possession is not None:
            self._possession.on_change()
        elif not is_awake:
            # The event loop was closed, and the task in it did not end: it will never take what it is granted.
            self.contender.session.post(self.contender.leave)

    # The errors: what happened, for how long, which contender holds the lock, and what to do.

    def _cancelled(self) -> LockCancelled:
        """Return the error of a wait that was ended from outside."""
        holder = self.contender.holder
        by = f", held by {holder.as_holder}," if holder else ""
        waited = self._system.monotonic() - self._began
        return LockCancelled(
            f"the wait for lock {self.lock.key!r}{by} was cancelled after {waited:.1f} s",
            key=self.lock.key,
            timeout=self.timeout,
            holder=holder,
        )

    def _timed_out(self) -> LockTimeout | LockConflict:
        """Return the error of a lock that was not granted in time, or for which another call waits already."""
        lock, contender, timeout, holder = self.lock, self.contender, self.timeout, self.contender.holder
        by = f"held by {holder.as_holder}" if holder else "its holder left no readable identity"
        if not contender.answered and not contender.is_taken:
            by = "ZooKeeper had not answered by then, so its holder is not known"
        if contender.is_taken and timeout != 0:
            return AlreadyAwaited(
                f"lock {lock.key!r} is taken, and another call of the function waits for it already; {by}",
                key=lock.key,
                timeout=timeout,
                holder=holder,
            )
        what = "is taken" if timeout == 0 else f"was not granted within {timeout:g} s"
        alias = lock.pool.name
        using = "" if alias == _DEFAULT_ALIAS else f" --using {quote(alias)}"
        advice = program.spell(f"see `manage.py zklock show{using}`, or wait longer with a larger timeout")
        return LockTimeout(
            f"lock {lock.key!r} {what}; {by}; {advice}",
            key=lock.key,
            timeout=timeout,
            holder=holder,
        )

    def _unanswered(self) -> ZooKeeperUnavailable:
        """Return the error of an acquisition that ZooKeeper has not answered."""
        session, refusal = self.contender.session, self.contender.refusal
        waited = self._system.monotonic() - self._began
        return self._unavailable(
            format_silence(session.wire.server, waited, connected=session.connected, refusal=refusal)
        )

    def _refused(self, error: Exception) -> ZkLockError:
        """Return the error of an acquisition that has failed with ``error``."""
        lock, server = self.lock, self.contender.session.wire.server
        if isinstance(error, SessionUnavailable):
            return self._unavailable(f"ZooKeeper at {server}: {error}")
        return ZkLockError(
            f"lock {lock.key!r}: ZooKeeper at {server} refused: {error!r} at {' and '.join(lock.paths)}; "
            f"check the ACL there and the credentials in ZKLOCK",
            key=lock.key,
            timeout=self.timeout,
        )

    def _unavailable(self, facts: str) -> ZooKeeperUnavailable:
        advice = advise(facts, self.lock.pool.options.connection.hosts)
        error = ZooKeeperUnavailable(
            f"lock {self.lock.key!r}: {facts}; {advice}", key=self.lock.key, timeout=self.timeout
        )
        error.__cause__ = self.contender.session.start_failure
        return error


def _nothing() -> None:
    return None


def acquire(
    lock: LockValue,
    timeout: float | None,
    caller: Caller,
    *,
    may_be_taken: bool = False,
    cancellation: Cancellation | None = None,
) -> Held | None:
    """Acquire ``lock``, blocking the calling thread; raise like :meth:`Acquisition.poll` if it is not granted.

    Return ``None`` only with ``may_be_taken``, if another contender holds the lock. Raises ``AsyncUnsafe`` in a thread
    in which nothing may wait.
    """
    if get_ident() in serving_threads:  # mostly not, so this is no call
        owners.check_may_wait(f"lock {lock.key!r} cannot be acquired", key=lock.key)
    changed = lock.pool.system.event()
    acquisition = Acquisition(lock, timeout, changed.set, caller, may_be_taken=may_be_taken, cancellation=cancellation)
    try:
        # A call, because in CPython the jump back of a loop is not covered by the `try` around it.
        return _wait(acquisition, changed, caller)
    except BaseException:
        try:
            acquisition.end()
        except BaseException:  # raised in this thread meanwhile: a time limit, Ctrl-C
            acquisition.end()
            raise
        raise


def _wait(acquisition: Acquisition, changed: Event, caller: Caller) -> Held | None:
    lock, listener = acquisition.lock, acquisition.lock.listener
    acquisition.start()
    changed.wait(acquisition.next_wakeup())
    while not acquisition.poll():
        if acquisition.newly_contended():
            nesting.begin_to_wait(lock, caller)
            listener.notify("contended", lock, holder=acquisition.contender.holder)
            continue  # a receiver may have forked
        if acquisition.reenter(caller):
            return acquisition.held()
        changed.wait(acquisition.next_wakeup())
    held = acquisition.held()
    if held is not None:
        listener.notify("acquired", lock, held=held)
    return held


async def aacquire(
    lock: LockValue,
    timeout: float | None,  # noqa: ASYNC109 - its end is an error that names the holder
    caller: Caller,
    *,
    may_be_taken: bool = False,
    cancellation: Cancellation | None = None,
) -> Held | None:
    """Acquire ``lock`` like :func:`acquire`, without a thread."""
    if get_ident() in serving_threads:
        owners.check_may_wait(f"lock {lock.key!r} cannot be acquired", key=lock.key)
    changed = AsyncAutoResetEvent()
    acquisition = Acquisition(lock, timeout, changed.set, caller, may_be_taken=may_be_taken, cancellation=cancellation)
    listener = lock.listener
    try:
        acquisition.start()
        await changed.wait(acquisition.next_wakeup())
        while not acquisition.poll():
            if acquisition.newly_contended():
                nesting.begin_to_wait(lock, caller)
                await listener.anotify("contended", lock, holder=acquisition.contender.holder)
                continue  # a receiver may have forked
            if acquisition.reenter(caller):
                return acquisition.held()
            await changed.wait(acquisition.next_wakeup())
        held = acquisition.held()
        if held is not None:
            await listener.anotify("acquired", lock, held=held)
        return held
    except GeneratorExit:  # nothing can be awaited any more
        acquisition.end()
        raise
    except BaseException:
        await acquisition.aend()
        raise
