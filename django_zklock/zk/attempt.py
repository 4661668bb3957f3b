"""One caller's attempt at a lock: the blocking and the asyncio front of a contender.

Both ask :meth:`Attempt.step` what there is to do and how long to sleep; they differ in how they sleep. Every way
out that is not a :class:`~django_zklock.zk.held.Held` goes through :meth:`Attempt.end`, which leaves no node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from django_zklock.exceptions import AlreadyAwaited, LockConflict, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import holds
from django_zklock.zk.alarm import Alarm, AsyncAlarm
from django_zklock.zk.claim import State, Unavailable
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from django_zklock.zk.claim import Claim
    from django_zklock.zk.lock import Lock

# After the deadline, for the name of the holder in the error: the last one known may be long gone.
LAST_LOOK = 0.2


class Observer(Protocol):
    """Who is told of what happens to locks.

    ``lost`` and ``revoked`` run in a thread of their own, the other plain methods in the caller's.
    """

    def contended(self, lock: Lock, holder: Identity | None) -> None:
        """The caller waits in line."""

    def acquired(self, held: Held) -> None:
        """The caller holds."""

    def released(self, held: Held) -> None:
        """The caller has let go."""

    def lost(self, held: Held, reason: str) -> None:
        """A held lock was lost."""

    def revoked(self, held: Held, reason: str) -> None:
        """The holder was asked to let go."""

    async def acontended(self, lock: Lock, holder: Identity | None) -> None: ...
    async def aacquired(self, held: Held) -> None: ...
    async def areleased(self, held: Held) -> None: ...


class Attempt:
    """One attempt; used by one caller, once.

    ``timeout`` is in seconds; ``None`` waits for ever and 0 tries once. How long ZooKeeper itself may take to
    answer is ``timeout`` too, but the connect timeout of the pool where ``timeout`` sets no such limit.
    """

    # Thousands may wait in one process.
    __slots__ = (
        "_announce", "_answer_by", "_began", "_deadline", "_in_line", "_looking", "_looks", "_untold", "_wake",
        "contender", "held", "lock", "may_be_busy", "timeout",
    )  # fmt: skip

    def __init__(self, lock: Lock, timeout: float | None, wake: Callable[[], None]) -> None:
        self.lock = lock
        self.timeout = timeout
        # Whether a busy lock is an answer, and not an error that names the holder.
        self.may_be_busy = False
        self.held: Held | None = None
        self._wake = wake
        self._began = time.monotonic()
        self._deadline = Deadline.after(timeout)
        self._answer_by = self._answer_deadline()
        self._in_line = False
        self._looking: Deadline | None = None
        self._looks = 0
        # What there is to tell of once at most. Taken out by whoever tells it: this caller, or the machine's threads.
        self._untold = ["lost", "revoked"]
        self._announce = False
        self.contender = self._new_contender()

    def start(self) -> None:
        """Send the contender on its way. Does not wait."""
        self.contender.session.post(self.contender.join)

    def _answer_deadline(self) -> Deadline:
        return self._deadline if self.timeout else Deadline.after(self.lock.pool.options.connect_timeout)

    def _new_contender(self) -> Claim:
        return self.lock.contender(wait=self.timeout != 0, notify=self._changed)

    def step(self) -> bool:
        """Look at the contender: ``True`` when the attempt is decided, ``False`` to sleep for :meth:`sleep_for`.

        Raises ``LockTimeout``, ``AlreadyAwaited``, ``ZooKeeperUnavailable`` or another ``ZkLockError``.
        """
        contender = self.contender
        if contender.lost is not None:
            # Granted, and lost again before this caller came to look.
            contender.session.post(contender.leave)
            self._answer_by = self._answer_deadline()
            self.contender = self._new_contender()
            self.start()
            return False
        if contender.state is State.HELD:
            self.held = Held(self.lock, contender, waited=time.monotonic() - self._began)
            self._tell()
            return True
        if contender.error is not None:
            raise self._refusal(contender.error) from contender.error
        if contender.busy and self.may_be_busy:
            return True
        if contender.state is State.WAITING and contender.looks and not self._in_line:
            self._in_line = self._announce = True
        self._mind_the_time()
        return False

    def _mind_the_time(self) -> None:
        contender = self.contender
        if self._looking is not None:
            if contender.looks != self._looks:
                raise self._timed_out()
            if self._looking.passed:
                raise self._timed_out() if contender.busy else self._unanswered()
        elif contender.busy:
            self._look()
        elif not self._answered:
            if self._answer_by.passed:
                raise self._unanswered()
        elif self._deadline.passed:
            if not contender.session.connected:
                raise self._unanswered()
            self._look()

    def _look(self) -> None:
        self._looks, self._looking = self.contender.looks, Deadline.after(LAST_LOOK)
        self.contender.session.post(self.contender.look)

    def sleep_for(self) -> float | None:
        """Give the seconds after which :meth:`step` has something to decide without being woken."""
        if self._looking is not None:
            return self._looking.remaining()
        return (self._deadline if self._answered else self._answer_by).remaining()

    def take_announcement(self) -> bool:
        """Whether the caller has just joined a line, told once."""
        announce, self._announce = self._announce, False
        return announce

    def end(self) -> None:
        """Leave, whatever the state; safe to call at any time and more than once."""
        # Not self.held: the exception may have come after the hold was entered here and before it was kept there.
        for held in [held for held in holds.stack() if held.through(self.contender)]:
            held.release()
        self.contender.session.post(self.contender.leave)

    @property
    def _answered(self) -> bool:
        """Whether ZooKeeper has given us a place in the line."""
        return self.contender.looks > 0 or self.contender.state is State.WAITING

    def _changed(self) -> None:
        # On the machine's threads, under the monitor.
        self._wake()
        self._tell()

    def _tell(self) -> None:
        contender = self.contender
        if self.held is None:
            return
        if contender.lost is not None and not contender.asking_why and self._take("lost"):
            in_own_thread(self.held.tell_loss, contender.lost)
        if contender.revoked is not None and self._take("revoked"):
            in_own_thread(self.lock.observer.revoked, self.held, contender.revoked)

    def _take(self, news: str) -> bool:
        """Whether this has not been told; after that it has. Taking it out is one step."""
        try:
            self._untold.remove(news)
        except ValueError:
            return False
        return True

    # Errors: what, how long, who, and what to do.

    def _timed_out(self) -> LockTimeout | LockConflict:
        holder = self.contender.holder
        by = f"held by {holder}" if holder else "its holder left no readable identity"
        if self.contender.busy and self.timeout != 0:
            return AlreadyAwaited(
                f"lock {self.lock.key!r} is taken, and somebody waits for it already; {by}",
                key=self.lock.key,
                timeout=self.timeout,
                holder=holder,
            )
        what = "is taken" if self.timeout == 0 else f"was not granted within {self.timeout:g} s"
        return LockTimeout(
            f"lock {self.lock.key!r} {what}; {by}; see `manage.py zklock show`, or wait longer with timeout=",
            key=self.lock.key,
            timeout=self.timeout,
            holder=holder,
        )

    def _unanswered(self) -> ZooKeeperUnavailable:
        session = self.contender.session
        waited = time.monotonic() - self._began
        what = "no answer from" if session.connected else "no connection to"
        return self._unavailable(f"{what} ZooKeeper at {session.server} within {waited:.1f} s")

    def _refusal(self, error: Exception) -> ZkLockError:
        session = self.contender.session
        if isinstance(error, Unavailable):
            return self._unavailable(f"ZooKeeper at {session.server}: {error}")
        where = " and ".join(self.lock.paths)
        return ZkLockError(
            f"lock {self.lock.key!r}: ZooKeeper at {session.server} refused: {error!r} at {where}; "
            f"check the ACL there and the credentials in ZKLOCK",
            key=self.lock.key,
            timeout=self.timeout,
        )

    def _unavailable(self, facts: str) -> ZooKeeperUnavailable:
        return ZooKeeperUnavailable(
            f"lock {self.lock.key!r}: {facts}; is it running and reachable, and are HOSTS, TLS and AUTH "
            f"in ZKLOCK right?",
            key=self.lock.key,
            timeout=self.timeout,
        )


def in_own_thread(tell: Callable[..., None], *facts: object) -> None:
    """Tell an observer. It may take its time, and neither heartbeat nor connection has any to give."""
    thread = threading.Thread(target=tell, args=facts, name="zklock-news", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter is about to exit
        thread.start()


def acquire(lock: Lock, timeout: float | None) -> Held:
    """Acquire ``lock``, blocking the calling thread; raise as :meth:`Attempt.step` if it is not granted."""
    changed = Alarm()
    return granted(_drive(Attempt(lock, timeout, changed.ring), changed))


def try_acquire(lock: Lock) -> Held | None:
    """Acquire ``lock`` if it is free, blocking the calling thread for no longer than ZooKeeper takes to answer."""
    changed = Alarm()
    attempt = Attempt(lock, 0, changed.ring)
    attempt.may_be_busy = True
    return _drive(attempt, changed)


# Not coroutines themselves: of what thousands wait in, each level counts.


def aacquire(lock: Lock, timeout: float | None) -> Coroutine[Any, Any, Held | None]:
    """Acquire ``lock`` without a thread; raise as :meth:`Attempt.step` if it is not granted."""
    changed = AsyncAlarm()
    return _adrive(Attempt(lock, timeout, changed.ring), changed)


def atry_acquire(lock: Lock) -> Coroutine[Any, Any, Held | None]:
    """Acquire ``lock`` if it is free."""
    changed = AsyncAlarm()
    attempt = Attempt(lock, 0, changed.ring)
    attempt.may_be_busy = True
    return _adrive(attempt, changed)


def _drive(attempt: Attempt, changed: Alarm) -> Held | None:
    try:
        # A call, since CPython leaves a loop's jump back out of the `try` around it.
        return _wait(attempt, changed)
    except BaseException:
        try:
            attempt.end()
        except BaseException:  # thrown into this thread meanwhile: a time limit, Ctrl-C
            attempt.end()
            raise
        raise


def _wait(attempt: Attempt, changed: Alarm) -> Held | None:
    observer = attempt.lock.observer
    attempt.start()
    while not attempt.step():
        if attempt.take_announcement():
            observer.contended(attempt.lock, attempt.contender.holder)
        changed.wait(attempt.sleep_for())
    if attempt.held is not None:
        observer.acquired(attempt.held)
    return attempt.held


async def _adrive(attempt: Attempt, changed: AsyncAlarm) -> Held | None:
    observer = attempt.lock.observer
    try:
        attempt.start()
        while not attempt.step():
            if attempt.take_announcement():
                await observer.acontended(attempt.lock, attempt.contender.holder)
            await changed.wait(attempt.sleep_for())
        if attempt.held is not None:
            await observer.aacquired(attempt.held)
        return attempt.held
    except BaseException:
        attempt.end()
        raise


def granted(held: Held | None) -> Held:
    """Give the hold of an attempt that ends with one, or with an error."""
    assert held is not None, "an attempt that may not be busy ends with a hold or an error"
    return held
