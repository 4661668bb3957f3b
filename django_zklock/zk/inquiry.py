"""Conversations with the ensemble that are no locks: somebody asks, waits for the answers, and is done.

What is said is a script: a generator that yields requests, gets their answers, and goes on with them. It runs where
requests are made and answered, on the connection's thread, so it must neither block nor compute for long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.session import Session
from django_zklock.zk.wire import READS_A_REQUEST, KazooException, NoNodeError, Read, UnimplementedError

T = TypeVar("T")

Reply = Callable[[Any, "KazooException | None"], None]
Request = Callable[[Reply], object]
"""A request of a wire that lacks nothing but its reply."""

Script = Generator[Sequence[Request], list[Any], T]
"""Yields requests, which leave together, and gets the answers to all of them.

The first refusal is raised where the script has yielded. After a reconnect it begins anew.
"""

# So many reads leave together: the locks of the session, whose requests come behind them, wait for those and not for
# all.
TOGETHER = 16 * READS_A_REQUEST


def ask(
    session: Session, script: Callable[[], Script[T]], *, aim: str, timeout: float | None, changes: bool = False
) -> T:
    """Have the conversation of ``script`` on ``session``, in at most ``timeout`` seconds, and give what it returns.

    ``aim`` says what is wanted, after "refused to"; ``changes``, that something may have been changed when no answer
    comes. Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses, and
    what the script raises.
    """
    inquiry = _Inquiry(session, script)
    session.post(inquiry.begin)
    try:
        if not inquiry.done.wait(timeout):
            inquiry.error = TimeoutError(f"no answer within {timeout:.2g} s")
    finally:
        inquiry.wanted = False
        session.post(inquiry.end)
    error = inquiry.error
    if error is None:
        return inquiry.outcome[0]
    if isinstance(error, KazooException):
        raise ZkLockError(f"ZooKeeper at {session.server} refused to {aim}: {error!r}") from error
    if isinstance(error, OSError):
        doubt = "; whether that was done is not known" if changes else ""
        raise ZooKeeperUnavailable(
            f"ZooKeeper at {session.server}: {error}{doubt}; is it running and reachable, and are HOSTS, TLS and AUTH "
            f"in ZKLOCK right?",
            timeout=timeout,
        ) from error
    raise error


def read_many(session: Session, reads: Sequence[Read]) -> Script[list[Any]]:
    """Give an outcome for each of ``reads``, as a part of a script: what was read, ``None`` for what is not there.

    A refusal is the outcome of the read that was refused.
    """
    outcomes: list[Any] = []
    while len(outcomes) < len(reads) and session.multireads:
        rest = reads[len(outcomes) : len(outcomes) + TOGETHER]
        chunks = [rest[start : start + READS_A_REQUEST] for start in range(0, len(rest), READS_A_REQUEST)]
        try:
            answers = yield [partial(session.wire.read_many, chunk) for chunk in chunks]
        except UnimplementedError:
            session.multireads = False
        else:
            outcomes += (outcome for answer in answers for outcome in answer)
    while len(outcomes) < len(reads):
        rest = reads[len(outcomes) : len(outcomes) + TOGETHER]
        outcomes += yield [partial(_read, session, read) for read in rest]
    return outcomes


def _read(session: Session, read: Read, reply: Reply) -> None:
    def answered(value: Any, error: KazooException | None) -> None:
        reply(value if error is None or isinstance(error, NoNodeError) else error, None)

    request = session.wire.children if read.children else session.wire.get
    request(read.path, answered)


class _Inquiry(Generic[T]):
    """One conversation: a tenant of its session. All but what :func:`ask` does is under the session's monitor."""

    def __init__(self, session: Session, script: Callable[[], Script[T]]) -> None:
        # These are written before the alarm rings. The first has one element when there is an outcome.
        self.outcome: list[T] = []
        self.error: Exception | None = None
        self.done = Alarm()
        # Written by whoever asks: an answer may come before the session hears that it comes too late.
        self.wanted = True
        self._session = session
        self._make = script
        self._script: Script[T] | None = None
        # Grows whenever answers that are under way have lost their meaning.
        self._turn = 0
        self._answers: list[Any] = []
        self._outstanding = 0

    def begin(self) -> None:
        """Get in line for a connection, and use it."""
        self._session.attach(self)
        if self._session.connected:
            self.resumed()

    def end(self) -> None:
        """Say nothing more, whatever is answered from now on."""
        self._turn += 1
        self._script = None
        self._session.detach(self)

    # Tenant.

    def suspended(self) -> None:
        self._turn += 1

    def resumed(self) -> None:
        self._script = self._make()
        self._go_on(partial(next, self._script))

    def session_ended(self, _reason: str) -> None: ...

    def unavailable(self, reason: str, /) -> None:
        self._finish(ConnectionError(reason))

    def heartbeat(self) -> None: ...

    def lose(self, _reason: str) -> None: ...

    # The script.

    def _go_on(self, step: Callable[[], Sequence[Request]]) -> None:
        self._turn += 1
        try:
            requests = step()
            while not requests:
                assert self._script is not None
                requests = self._script.send([])
        except StopIteration as end:
            self.outcome.append(end.value)
            self._finish(None)
        except Exception as error:  # noqa: BLE001 - whoever asked is to hear of it, whatever it is
            self._finish(error)
        else:
            self._answers = [None] * len(requests)
            self._outstanding = len(requests)
            for number, request in enumerate(requests):
                request(partial(self._answered, self._turn, number))

    def _answered(self, turn: int, number: int, value: Any, error: KazooException | None) -> None:
        if turn != self._turn or self._script is None or not self.wanted:
            return
        self._answers[number] = value
        self._outstanding -= 1
        if error is not None:
            self._go_on(partial(self._script.throw, error))
        elif not self._outstanding:
            self._go_on(partial(self._script.send, self._answers))

    def _finish(self, error: Exception | None) -> None:
        self.error = error
        self.end()
        self.done.ring()
