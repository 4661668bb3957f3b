"""Request scripts: several requests to ZooKeeper, one after the other, written as one generator.

A script yields requests, gets their answers, and goes on with them. It runs on the connection's thread, so it must
neither block nor compute for long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import owners, wire
from django_zklock.zk.formatting import advise, format_silence
from django_zklock.zk.session import Session, SessionListener
from django_zklock.zk.waiting import RETRY_INTERVAL, Deadline
from django_zklock.zk.wire import MAX_READS_PER_REQUEST

if TYPE_CHECKING:
    from django_zklock.zk.system import Event
    from django_zklock.zk.wire import KazooException, Read

T = TypeVar("T")

Reply = Callable[[Any, "Exception | None"], None]
Request = Callable[[Reply], object]
"""A request to ZooKeeper that lacks only its reply."""

RequestScript = Generator["Sequence[Request] | None", list[Any], T]
"""Yields requests, which are sent together, and gets the answers to all of them; or :data:`EVENT`.

The first error that does not pass is raised where the script has yielded.
"""

# Yielded in place of requests, to wait for :meth:`Script.wake` and look at the facts again.
EVENT = None

# The largest number of reads that are sent together. The requests of locks on the same session wait for these only.
MAX_READS = 16 * MAX_READS_PER_REQUEST


class Interrupted(Exception):  # noqa: N818 - a fact about a request, which its script handles
    """Whether a request was executed is not known: its answer was lost, or the server refuses it for now."""


class Once(partial[object]):
    """A request that is not sent again as it is, because it may have been executed: :exc:`Interrupted` answers it."""


class OrError(partial[object]):
    """A request whose answer may be an error that does not pass, in place of a value; see :func:`or_error`."""

    errors: tuple[type[Exception], ...] = (Exception,)


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A request that is sent until there is an answer: on each new connection, and after a passing refusal.

    This is the one place that repeats requests. All but those that are made :class:`Once` have the same effect if they
    are executed twice. ``use`` is called once, with the answer or with an error that does not pass. Without it, the
    generator of the script waits for the answer.
    """

    script: Script
    request: Request
    use: Reply | None = None
    # Whether there is no answer, and one is needed.
    is_open: bool = True
    value: Any = None
    # The epoch of the session in which the request was sent last.
    sent_in: int | None = None

    def send(self) -> None:
        """Send the request, if there is a connection on which that was not done."""
        session = self.script.session
        # Listeners are resumed one after the other. What one of them has caused another one to send is sent already.
        if self.is_open and session.connected and self.sent_in != session.epoch:
            self.sent_in = session.epoch
            self.request(partial(self.script.on_answer, self))

    def repeat(self) -> None:
        """Send the request again, or interrupt it, after the pause that follows a refusal."""
        if self.script.repeats and not isinstance(self.request, Once):
            self.sent_in = None
            self.send()
        else:
            self.interrupt()

    def interrupt(self) -> None:
        """Answer a request that was sent, if it is not to be sent again."""
        is_once = isinstance(self.request, Once) or not self.script.repeats
        if self.sent_in is not None and is_once:
            self.script.on_answer(self, None, Interrupted())


class Script(SessionListener):
    """What asks a server: by single requests, and by a generator that goes on with the answers to what it yields.

    Every method is called under the session's monitor. The generator may be replaced by another one while it waits, and
    is not told, so it has no ``finally``.
    """

    __slots__ = ("_awaited", "_left", "_run", "open", "refusal", "session")

    # Whether requests are sent again one by one.
    repeats = True

    def __init__(self, session: Session) -> None:
        self.session = session
        # What is not answered, oldest first.
        self.open: list[Pending] = []
        # What the generator waits for, nothing if it waits for an event; and how many of these are not answered.
        self._awaited: Sequence[Pending] = ()
        self._left = 0
        self._run: RequestScript[Any] | None = None
        # The last refusal that passes; the request is sent again.
        self.refusal: KazooException | None = None

    def ended(self, value: Any, error: Exception | None, /) -> None:
        """Use what the generator has returned, or the error that it has raised."""
        raise NotImplementedError

    def ask(self, request: Request, use: Reply) -> None:
        """Send ``request`` until there is an answer, and call ``use`` with it."""
        pending = Pending(self, request, use)
        self.open.append(pending)
        pending.send()

    def begin(self, run: RequestScript[Any]) -> None:
        """Run a generator, instead of the one that waits. No answer to what was asked before is needed any more."""
        if self.open:
            self.drop_answers()
        self._run = run
        self._step(run.send, None)

    def stop(self) -> None:
        """End the generator, and need no answer any more."""
        self.drop_answers()
        self._run = None

    def wake(self) -> None:
        """Continue the generator if it waits for an event."""
        if self._run is not None and not self._awaited:
            self._step(self._run.send, None)

    def drop_answers(self) -> None:
        """Need no answer any more to what was asked."""
        for pending in self.open:
            pending.is_open = False
        self.open, self._awaited = [], ()

    def on_answer(self, pending: Pending, value: Any, error: Exception | None) -> None:
        """Use an answer, or continue the generator, if that is needed and final."""
        if not pending.is_open:
            return
        if isinstance(error, wire.KazooException):
            if wire.is_temporary(error):
                self.refusal = error
                self.session.retry_later(pending.repeat, error)
                return
            if isinstance(pending.request, OrError) and isinstance(error, pending.request.errors):
                value, error = error, None
        pending.is_open = False
        self.open.remove(pending)
        if pending.use is not None:
            pending.use(value, error)
            return
        assert self._run is not None
        pending.value = value
        self._left -= 1
        if error is not None:
            for other in self._awaited:
                other.is_open = False
            self.open = [each for each in self.open if each.is_open]
            self._step(self._run.throw, error)
        elif not self._left:
            self._step(self._run.send, [each.value for each in self._awaited])

    def _step(self, advance: Callable[[Any], Sequence[Request] | None], what: Any) -> None:
        run, value, problem = self._run, None, None
        self._awaited = ()
        try:
            requests = advance(what)
            while requests is not EVENT and not requests:
                assert run is not None
                requests = run.send([])
        except StopIteration as end:
            value = end.value
        except Exception as error:  # noqa: BLE001 - handed on
            problem = error
        else:
            if requests is not EVENT:
                self._awaited = awaited = [Pending(self, request) for request in requests]
                self._left = len(awaited)
                self.open += awaited
                for pending in awaited:
                    pending.send()
            return
        self._run = None
        self.ended(value, problem)

    # SessionListener.

    def suspended(self) -> None:
        """The connection is lost, and with it the answers under way."""
        for pending in list(self.open):
            pending.interrupt()

    def resumed(self) -> None:
        """There is a connection again."""
        for pending in list(self.open):
            pending.send()


def run(
    session: Session,
    script: Callable[[], RequestScript[T]],
    *,
    action: str,
    timeout: float | None,
    mutates: bool = False,
) -> T:
    """Run ``script`` on ``session``, in at most ``timeout`` seconds, and return what it returns.

    ``action`` is what the error message says after "refused to". With ``mutates`` it says that the outcome is unknown
    if no answer comes. Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it
    refuses, ``AsyncUnsafe`` in a thread in which nothing may wait, and what the script raises.
    """
    owners.check_may_wait(f"ZooKeeper cannot be asked to {action}")
    blocking = _BlockingRun(session, script, has_deadline=timeout is not None)
    session.post(blocking.join)
    try:
        if not _wait(session, blocking.done, Deadline.after(timeout)):
            connected, refusal = session.connected, blocking.refusal
            silence = format_silence(session.wire.server, timeout or 0.0, connected=connected, refusal=refusal)
            blocking.error = TimeoutError(silence)
    finally:
        # An answer may come before the session knows that it comes too late.
        blocking.wanted = False
        session.post(blocking.leave)
    error = blocking.error
    if error is None:
        return blocking.outcome[0]
    if isinstance(error, wire.KazooException):
        raise ZkLockError(f"ZooKeeper at {session.wire.server} refused to {action}: {error!r}") from error
    if isinstance(error, OSError):
        facts = str(error) if isinstance(error, TimeoutError) else f"ZooKeeper at {session.wire.server}: {error}"
        doubt = "; whether that was done is not known" if mutates else ""
        raise ZooKeeperUnavailable(
            f"{facts}{doubt}; {advise(facts, session.wire.hosts)}",
            timeout=timeout,
        ) from session.start_failure or error
    raise error


def _wait(session: Session, done: Event, deadline: Deadline) -> bool:
    """Wait for the event until the deadline, and start the session again where that has failed."""
    while session.start_failure is not None:
        if done.wait(deadline.capped(RETRY_INTERVAL).remaining()):
            return True
        if deadline.passed:
            return False
        session.start_wire()
    return done.wait(deadline.remaining())


def read_many(session: Session, reads: Sequence[Read]) -> RequestScript[list[Any]]:
    """Return an outcome for each of ``reads``, as a part of a script.

    The outcome is what was read, ``None`` for a node that does not exist, or the error of that read.
    """
    outcomes: list[Any] = []
    for begin in range(0, len(reads), MAX_READS):
        batch = reads[begin : begin + MAX_READS]
        chunks = [batch[start : start + MAX_READS_PER_REQUEST] for start in range(0, len(batch), MAX_READS_PER_REQUEST)]
        answers = yield [partial(session.wire.read_many, chunk) for chunk in chunks]
        outcomes += (outcome for answer in answers for outcome in answer)
    return outcomes


def or_error(request: Request, error: type[KazooException], *others: type[KazooException]) -> OrError:
    """Return ``request`` with these errors alone as its answer instead of raised."""
    tolerant = OrError(request)
    tolerant.errors = (error, *others)
    return tolerant


class _BlockingRun(Script, Generic[T]):
    """A script for which a thread waits. It begins anew after a reconnect, and after a refusal that passes."""

    repeats = False

    def __init__(self, session: Session, script: Callable[[], RequestScript[T]], *, has_deadline: bool) -> None:
        super().__init__(session)
        # These are written before the event is set. The first has one element when there is an outcome.
        self.outcome: list[T] = []
        self.error: Exception | None = None
        self.done = session.system.event()
        # Any thread may clear this: answers are ignored from then on.
        self.wanted = True
        # The waiting thread has a deadline, which covers outages too.
        self._has_deadline = has_deadline
        self._script = script

    def join(self) -> None:
        """Start as soon as there is a connection."""
        self.session.add_listener(self)
        self.resumed()

    def leave(self) -> None:
        """Stop, whatever is answered from now on."""
        self.stop()
        self.session.listeners.pop(self, None)

    def ended(self, value: T | None, error: Exception | None, /) -> None:
        if not self.wanted:
            return
        if error is None:
            self.outcome.append(value)  # type: ignore[arg-type]
        self.error = error
        self.leave()
        self.done.set()

    def _step(self, advance: Callable[[Any], Sequence[Request] | None], what: Any) -> None:
        if isinstance(what, Interrupted):
            self.resumed()
        elif self.wanted:
            super()._step(advance, what)

    # SessionListener.

    def suspended(self) -> None:
        self.stop()

    def resumed(self) -> None:
        if self.wanted and self.session.connected:
            self.begin(self._script())

    def unavailable(self, reason: str, /) -> None:
        if self.session.ended is not None or not self._has_deadline:
            self.ended(None, ConnectionError(reason))
