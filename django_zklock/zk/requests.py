"""Request scripts: several requests to ZooKeeper, one after the other, written as one generator.

A script yields requests, gets their answers, and goes on with them. It runs on the connection's thread, so it must
neither block nor compute for long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import wire
from django_zklock.zk.formatting import advise, format_silence
from django_zklock.zk.session import Session, SessionListener
from django_zklock.zk.waiting import AutoResetEvent
from django_zklock.zk.wire import MAX_READS_PER_REQUEST

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException, Read

T = TypeVar("T")

Reply = Callable[[Any, "KazooException | None"], None]
Request = Callable[[Reply], object]
"""A request to ZooKeeper that lacks only its reply."""

RequestScript = Generator[Sequence[Request], list[Any], T]
"""Yields requests, which are sent together, and gets the answers to all of them.

The first error is raised where the script has yielded. After a reconnect, and after an error that passes, the script
starts anew.
"""

# The largest number of reads that are sent together. The requests of locks on the same session wait for these only.
MAX_READS = 16 * MAX_READS_PER_REQUEST


class ScriptRun(Generic[T]):
    """One run of a request script. Every method is called under the session's monitor.

    ``ended`` is called once, with what the script returns and ``None``, or with ``None`` and what it raises.
    ``delayed`` is called with each error that makes it start anew.
    """

    __slots__ = ("_answers", "_delayed", "_ended", "_generation", "_make", "_open", "_script", "_session", "wanted")

    def __init__(
        self,
        session: Session,
        script: Callable[[], RequestScript[T]],
        *,
        ended: Callable[[T | None, Exception | None], None],
        delayed: Callable[[KazooException], None],
    ) -> None:
        self._session = session
        self._make = script
        self._ended = ended
        self._delayed = delayed
        self._script: RequestScript[T] | None = None
        # Grows whenever the answers to open requests have become void.
        self._generation = 0
        self._answers: list[Any] = []
        # How many requests are not answered.
        self._open = 0
        # Any thread may clear this: answers are ignored from then on.
        self.wanted = True

    def start(self) -> None:
        """Run the script from its beginning."""
        self._script = self._make()
        self._step(partial(next, self._script))

    def stop(self) -> None:
        """Ignore all answers from now on."""
        self._generation += 1
        self._script = None

    def _step(self, advance: Callable[[], Sequence[Request]]) -> None:
        self._generation += 1
        script = self._script
        try:
            requests = advance()
            while not requests:
                assert script is not None
                requests = script.send([])
        except StopIteration as end:
            self.stop()
            self._ended(end.value, None)
        except Exception as error:  # noqa: BLE001 - handed on
            self.stop()
            self._ended(None, error)
        else:
            self._answers = [None] * len(requests)
            self._open = len(requests)
            for number, request in enumerate(requests):
                request(partial(self._answered, self._generation, number))

    def _answered(self, asked: int, number: int, value: Any, error: KazooException | None) -> None:
        if asked != self._generation or self._script is None or not self.wanted:
            return
        self._answers[number] = value
        self._open -= 1
        if error is not None and wire.is_temporary(error):
            self._generation += 1
            self._delayed(error)
            self._session.retries.add(self._start_again, error)
        elif error is not None:
            self._step(partial(self._script.throw, error))
        elif not self._open:
            self._step(partial(self._script.send, self._answers))

    def _start_again(self) -> None:
        if self._script is not None and self.wanted and self._session.connected:
            self.start()


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
    refuses, and what the script raises.
    """
    blocking = _BlockingRun(session, script, has_deadline=timeout is not None)
    session.post(blocking.begin)
    try:
        if not blocking.done.wait(timeout):
            connected, refusal = session.connected, blocking.refusal
            silence = format_silence(session.server, timeout or 0.0, connected=connected, refusal=refusal)
            blocking.error = TimeoutError(silence)
    finally:
        # An answer may come before the session knows that it comes too late.
        blocking.run.wanted = False
        session.post(blocking.end)
    error = blocking.error
    if error is None:
        return blocking.outcome[0]
    if isinstance(error, wire.KazooException):
        raise ZkLockError(f"ZooKeeper at {session.server} refused to {action}: {error!r}") from error
    if isinstance(error, OSError):
        facts = str(error) if isinstance(error, TimeoutError) else f"ZooKeeper at {session.server}: {error}"
        doubt = "; whether that was done is not known" if mutates else ""
        raise ZooKeeperUnavailable(
            f"{facts}{doubt}; {advise(facts, session.wire.hosts)}",
            timeout=timeout,
        ) from error
    raise error


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


def or_error(request: Request, *errors: type[KazooException]) -> Request:
    """Return ``request`` with these errors, all that do not pass by default, as its answer instead of raised."""

    def send(reply: Reply) -> None:
        def answered(value: Any, error: KazooException | None) -> None:
            if error is not None and not wire.is_temporary(error) and (not errors or isinstance(error, errors)):
                reply(error, None)
            else:
                reply(value, error)

        request(answered)

    return send


class _BlockingRun(SessionListener, Generic[T]):
    """A script run for which a thread waits. Methods are called under the session's monitor."""

    def __init__(self, session: Session, script: Callable[[], RequestScript[T]], *, has_deadline: bool) -> None:
        # These are written before the event is set. The first has one element when there is an outcome.
        self.outcome: list[T] = []
        self.error: Exception | None = None
        self.done = AutoResetEvent()
        # The last error that made the script start anew.
        self.refusal: KazooException | None = None
        # The waiting thread has a deadline, which covers outages too.
        self._has_deadline = has_deadline
        self._session = session
        self.run = ScriptRun(session, script, ended=self._ended, delayed=self._on_delay)

    def begin(self) -> None:
        """Start as soon as there is a connection."""
        self._session.add_listener(self)
        if self._session.connected:
            self.run.start()

    def end(self) -> None:
        """Stop, whatever is answered from now on."""
        self.run.stop()
        self._session.remove_listener(self)

    def _ended(self, outcome: T | None, error: Exception | None) -> None:
        if not self.run.wanted:
            return
        if error is None:
            self.outcome.append(outcome)  # type: ignore[arg-type]
        self.error = error
        self._session.remove_listener(self)
        self.done.set()

    def _on_delay(self, error: KazooException) -> None:
        self.refusal = error

    # SessionListener.

    def suspended(self) -> None:
        self.run.stop()

    def resumed(self) -> None:
        self.run.start()

    def unavailable(self, reason: str, /) -> None:
        if self._session.ended is not None or not self._has_deadline:
            self.end()
            self._ended(None, ConnectionError(reason))
