"""A process with gevent, patched or not, whose bodies are interrupted: ``main()`` and ``unpatched()``.
Their arguments are hosts and root.

It says what has happened in lines on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import gevent  # type: ignore[import-untyped, unused-ignore]

from django_zklock.exceptions import LockLost
from django_zklock.interrupt import run
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.contract.programs.scripted_child import send
from tests.toolbox.timing import scaled

LONG = scaled(20)


def delete(held: Held) -> None:
    """Break a lock as an operator does."""
    session = held.lock.pool.sessions()[0]
    session.post(lambda: session.wire.delete(held.node, lambda _value, _error: None))


def interrupted(pool: Pool) -> bool:
    """Whether a body that waits is ended soon."""
    with gevent.Timeout(LONG), Lock("k", pool).acquire() as held:
        delete(held)
        try:
            run(held, lambda: gevent.sleep(2 * LONG))
        except LockLost as error:
            held.release()
            return error.key == "k" and "its node was deleted" in str(error)
    return False


def caught_once(pool: Pool) -> bool:
    """Whether a body that catches the error is left alone from then on."""
    caught = []

    def body() -> None:
        # Until it comes, and then for as long as a second one would take.
        for duration in (LONG, 0.3):
            try:
                gevent.sleep(duration)
            except LockLost as error:
                caught.append(error.key)

    with Lock("k", pool).acquire() as held:
        delete(held)
        run(held, body)
        held.release()
    return caught == ["k"]


class Stub:
    """A hold that is lost when its body ends."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def _when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        self.calls.append(call)
        return lambda: None

    def _loss_error(self) -> LockLost:
        return LockLost("stub")


def left_alone() -> bool:
    """Whether nothing comes to a greenlet that has ended its body between the loss and the hub's turn."""
    stub = Stub()

    def body() -> None:
        stub.calls.pop()()

    run(stub, body)  # type: ignore[arg-type]
    gevent.sleep(0.05)
    return True


def unpatched() -> None:
    """Interrupt a greenlet while another one of its thread is at work nearly all the time."""
    hosts, root = sys.argv[1:]
    pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(3)), root=root))
    waiting = gevent.spawn(interrupted, pool)

    def work() -> None:
        while not waiting.ready():
            gevent.sleep(0)

    bystander = gevent.spawn(work)
    if waiting.get():
        send("greenlet interrupted")
    bystander.get()
    send("bystander left alone")
    pool.close()


def main() -> None:
    hosts, root = sys.argv[1:]
    pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(3)), root=root))
    if interrupted(pool):
        send("main greenlet interrupted")
    if gevent.spawn(interrupted, pool).get():
        send("greenlet interrupted")
    if caught_once(pool):
        send("caught once")
    if left_alone() and gevent.spawn(left_alone).get():
        send("left alone")
    with Lock("k", pool).acquire() as held:
        run(held, lambda: gevent.sleep(0.05))
    send("not lost")
    pool.close()
