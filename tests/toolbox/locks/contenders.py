"""Contenders in a queue: they come one after the other, and each is asked whether it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.place import Turn
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from django_zklock.zk.session import Session
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

RULES: dict[str, Rule] = {"exclusive": EXCLUSIVE, "write": WRITE, "read": READ, "lease": semaphore(2)}
# A read that an event triggers, one that its answer triggers, and one more for each.
ROUND_TRIPS = 4


def settle(pool: Pool) -> None:
    """Wait until whatever the server has told ``pool`` so far has been answered, and the answers too.

    A server keeps the order of what it tells a session, events among the answers. An answer that is lost with its
    connection is asked for again.
    """
    for session in pool.sessions():
        for _ in range(ROUND_TRIPS):
            answered = threading.Event()
            wait_until(lambda session=session, answered=answered: _is_answered(session, answered), what=repr(session))  # type: ignore[misc]


def _is_answered(session: Session, answered: threading.Event) -> bool:
    session.post(partial(_ask, session, answered))
    return answered.wait(2)


def _ask(session: Session, answered: threading.Event) -> None:
    if session.connected:
        session.wire.children("/", lambda _names, _error: answered.set())


def node_of(contender: Contender) -> str | None:
    """Return the name of its node in the first of its queues."""
    return contender.places[0].node


def is_next(contender: Contender) -> bool:
    """Whether it holds without a request when its predecessor is deleted, or released by its own session."""
    follows = [place._ahead.turn for place in contender.places if place._ahead is not None]
    return contender.state is State.WAITING and (contender.needs_lease or Turn.CLEAR in follows)


def is_watching(listener: object) -> bool:
    """Whether a listener of a session is a contender that waits, and all that it has asked is answered."""
    if not isinstance(listener, Contender):
        return False
    # In the middle of a step it may wait already, and ask for the watch only then.
    with listener.session.monitor:
        return (
            listener.state is State.WAITING
            and not listener.open
            and not any(place.is_listing for place in listener.places)
        )


@dataclass
class Caller:
    """A caller that wants a lock, in a thread of its own; the thread ends when it has it, and the hold stays."""

    runner: Runner
    node: str
    pool: Pool

    @property
    def granted(self) -> bool:
        """Whether its contender holds, as far as it knows by now."""
        return any(
            isinstance(listener, Contender) and node_of(listener) == self.node and listener.state is State.HELD
            for session in self.pool.sessions()
            for listener in list(session.listeners)
        )

    def get(self) -> Held:
        """Wait for the hold."""
        held = self.runner.result()
        assert isinstance(held, Held)
        return held

    def leave(self) -> None:
        """Let go, and wait until the server knows."""
        self.get().release(wait=True)


@dataclass
class Contenders:
    """The queue of one lock, and the callers in it; ``next_pool`` returns the pool of the next caller."""

    observer: Observer
    next_pool: Callable[[], Pool]
    key: str = "k"
    callers: list[Caller] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.next_pool().path(self.key)

    def join(self, rule: Rule, pool: Pool | None = None) -> Caller:
        """Add a contender at the end of the queue, and wait until its node is there."""
        lock = Lock(self.key, pool or self.next_pool(), rule=rule)
        before = self.names()
        runner = waiting_in(lock)
        (node,) = wait_until(lambda: set(self.names()) - set(before), what=f"another node in {before}")
        caller = Caller(runner, node, lock.pool)
        self.callers.append(caller)
        return caller

    def join_for_a_while(self, rule: Rule) -> Acquisition:
        """Add a contender that gives up by ``end``, like every caller."""
        before = self.names()
        attempt = Acquisition(Lock(self.key, self.next_pool(), rule=rule), None, lambda: None)
        attempt.start()
        self.observer.wait_count(self.path, len(before) + 1)
        return attempt

    def join_all(self, *rules: Rule) -> list[Caller]:
        """Add several contenders, one after the other."""
        return [self.join(rule) for rule in rules]

    def follow(self, caller: Caller) -> None:
        """Wait until ``caller``, whose node is gone, is at the end of the queue with a new one."""
        known = {each.node for each in self.callers}
        (caller.node,) = wait_until(lambda: set(self.names()) - known, what=f"{caller} comes back")

    def names(self) -> list[str]:
        """Return the nodes in the queue."""
        return self.observer.children(self.path)

    def expect(self, *expected: Caller) -> None:
        """Wait until those have the lock; once all that was asked is answered, they alone."""
        for caller in expected:
            wait_until(lambda caller=caller: caller.granted, what=f"{caller} holds")  # type: ignore[misc]
        here = set(self.names())
        present = [caller for caller in self.callers if caller.node in here]
        for caller in present:
            settle(caller.pool)
        assert [caller.node for caller in present if caller.granted] == [
            caller.node for caller in present if caller in expected
        ]
