"""A process that plays a part in a test.

``python -m tests.contract.programs.scripted_child <hosts> <root> <timeout> <part> [argument...]``

It says what it does in lines on standard output and does what lines on standard input tell it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from django_zklock.exceptions import LockLost, LockTimeout, ZkLockError
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.held import current
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.locks.pools import wire_of
from tests.toolbox.processes.raw_fork import raw_fork


def send(*words: object) -> None:
    # One write for each line, also of forked children.
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def receive() -> str:
    return sys.stdin.readline().strip()


def hold(pool: Pool) -> None:
    """Hold until told how to end."""
    held = Lock("k", pool).acquire(timeout=20)
    send("held", held.token)
    order = receive()
    if order == "exit":
        sys.exit(3)
    elif order == "raise":
        raise ValueError("unhandled")
    elif order == "check":
        try:
            held.check()
            send("fine")
        except LockLost:
            send("lost")
        time.sleep(0.5)
        send("still lost" if held.lost else "recovered")
        held.release()


def hold_to_the_end(pool: Pool) -> None:
    """Hold, and leave the hold to a function that was registered to run at the exit."""
    held = Lock("k", pool).acquire(timeout=20)
    send("held", held.token)
    sys.modules["__main__"].holds.append(held)


def count(pool: Pool, counter: str, rounds: str) -> None:
    """Read, add one and write back, without any other protection than the lock."""
    path = Path(counter)
    send("ready")
    receive()
    for _ in range(int(rounds)):
        with Lock("counter", pool) as held:
            value = int(path.read_text())
            with path.with_suffix(".grants").open("a") as grants:
                grants.write(f"{held.token}\n")
            path.write_text(str(value + 1))
    send("done")


def fork(pool: Pool) -> None:
    """Fork inside a block; the child leaves it, makes a lock of its own and exits."""
    lock = Lock("k", pool)
    waiting = threading.Event()
    with lock as held:
        session = pool.sessions()[0].id
        child = os.fork()
        if child == 0:
            send("child lost", held.lost)
            try:
                lock.__exit__(None, None, None)
                send("child left quietly")
            except LockLost as error:
                send("child was told", "inherited over a fork" in str(error))
            try:
                Lock("k", pool).acquire(timeout=2)
                send("child got the parent's lock")
            except LockTimeout as error:
                send("child waits for parent", error.holder is not None and error.holder.pid == os.getppid())
            with Lock("own", pool).acquire(timeout=60) as own:
                send("child has its own", not own.lost, pool.sessions()[0].id != session)
            send("child ends", pool.close())
            os._exit(0)
        os.waitpid(child, 0)
        # Longer than a heartbeat and the session: the parent's session goes on living.
        waiting.wait(2.5)
        send("parent", not held.lost, pool.sessions()[0].id == session, pool.sessions()[0].epoch == 0)
        held.check()
    send("parent again", Lock("k", pool).acquire(timeout=60).token > held.token)


def fork_while_it_waits(pool: Pool) -> None:
    """Fork in a thread that waits for a lock, as a signal handler may; the child takes the same lock."""
    first = Lock("k", pool).acquire(timeout=20)

    class Fork(LockListener):
        def wants(self, event: str) -> bool:
            return event == "contended"

        def notify(self, event: str, _lock: object, /, **_facts: Any) -> None:
            if event != "contended":
                return
            child = os.fork()
            if child == 0:
                try:
                    Lock("k", pool).acquire(timeout=1)
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    send("child", type(error).__name__)
                os._exit(0)
            os.waitpid(child, 0)
            first.release()

    thread = threading.Thread(target=lambda: send("parent", not Lock("k", pool, listener=Fork()).acquire(20).lost))
    thread.start()
    thread.join()


def fork_of_the_waiter(pool: Pool, where: str) -> None:
    """Fork in the thread that waits for a lock, or begins to, and go on there in the child too."""
    # The end of the wait for a first answer would tell the child too.
    pool = Pool(pool.name, replace(pool.options, connect_timeout=600.0))
    taken, forked = threading.Event(), threading.Event()
    children: list[int] = []

    def block() -> None:
        with Lock("k", pool).acquire(timeout=20):
            taken.set()
            forked.wait()
            os.waitpid(children[0], 0)

    def split(*_: object) -> None:
        children.append(os.fork())
        forked.set()

    class Receiver(LockListener):
        def wants(self, event: str) -> bool:
            return event == "contended"

        def notify(self, event: str, _lock: object, /, **_facts: Any) -> None:
            if event == "contended" and where == "receiver":
                split()
            elif event == "contended" and where == "signal handler":
                signal.setitimer(signal.ITIMER_REAL, 0.05)

    signal.signal(signal.SIGALRM, split)
    threading.Thread(target=block).start()
    taken.wait()
    if where == "beginning":
        begin = Acquisition.start

        def begin_and_split(self: Acquisition) -> None:
            begin(self)
            split()

        Acquisition.start = begin_and_split  # type: ignore[method-assign]
    try:
        held = Lock("k", pool, listener=Receiver()).acquire()
    except ZkLockError as error:
        send("child", children == [0], "when this process was forked" in str(error))
        os._exit(0)
    send("parent", not held.lost, pool.sessions()[0].epoch == 0)
    held.release(wait=True)


def fork_in_c(pool: Pool) -> None:
    """Fork as a server does that is written in C: Python's fork hooks do not run."""
    held = Lock("k", pool).acquire(timeout=10)
    session = pool.sessions()[0].id
    child = raw_fork()
    if child == 0:
        own = Lock("own", pool).acquire(timeout=10)
        send("child", held.lost, not own.lost, pool.sessions()[0].id != session)
        send("child ends", pool.close())
        os._exit(0)
    os.waitpid(child, 0)
    send("parent", not held.lost, pool.sessions()[0].id == session)
    held.release(wait=True)


def end_of_child(hosts: str, root: str, timeout: float, what: str) -> None:
    """In a child of multiprocessing: take a lock, and end with it, or right after its release, or by an error."""
    held = Lock("k", make_pool(hosts, root, timeout)).acquire(timeout=20)
    send("child has", held.lock.pool.sessions()[0].id)
    if what == "released":
        held.release()
    elif what == "raises":
        raise ValueError("unhandled")
    elif what == "exits":
        sys.exit(3)


def children(pool: Pool, module: str, method: str, what: str) -> None:
    """Let a child of multiprocessing, or of billiard, acquire a lock and end."""
    with Lock("other", pool).acquire(timeout=20) as held:
        context = importlib.import_module(module).get_context(method)
        connection = pool.options.connection
        child = context.Process(
            target=end_of_child, args=(connection.hosts, pool.options.root, connection.session_timeout, what)
        )
        child.start()
        child.join()
        send("ended", child.exitcode)
        receive()
        held.check()


def spare(error: BaseException) -> None:
    """Release what was struck at the one instruction that CPython cannot protect: the first of an __exit__."""
    *_, (frame, line), _handler = traceback.walk_tb(error.__traceback__)
    held = current("k")
    if held is not None and frame.f_code is Lock.__exit__.__code__ and line == frame.f_code.co_firstlineno:
        held.release()


def alarm(pool: Pool, rounds: str) -> None:
    """Wait in the main thread while a timer's signal handler raises, over and over, at whatever instant."""

    class TimeUp(BaseException):
        pass

    def raise_it(*_: object) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, raise_it)
    lock = Lock("k", pool)
    lock.acquire(timeout=60).release()
    struck = 0
    # More of them where the signal is often too late.
    for number in itertools.count():
        if number >= int(rounds) and struck > 100:
            break
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.00001 * (number % 400))
            with lock:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeUp as error:
            struck += 1
            spare(error)
    send("struck", struck)
    pool_lives = Lock("other", pool).acquire(timeout=60)
    pool_lives.release(wait=True)
    send("alive")
    receive()


def greenlets(pool: Pool) -> None:
    """Wait for a lock, and give up, while the hub goes on turning."""
    import gevent  # type: ignore[import-untyped, unused-ignore]

    turns = 0

    def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0.005)

    turning = gevent.spawn(turn)
    with Lock("k", pool):
        waiter = gevent.spawn(lambda: Lock("k", pool).acquire())
        before = turns
        while turns - before < 20:
            gevent.sleep(0.005)
        send("turned", turns - before >= 20, not waiter.dead)
        try:
            with gevent.Timeout(0.1):
                gevent.spawn(lambda: None).join()
                waiter.get()
        except gevent.Timeout:
            waiter.kill()
    Lock("k", pool).acquire(timeout=60).release(wait=True)
    turning.kill()
    send("free", type(wire_of(pool.sessions()[0])._client.handler).__name__)


def patched_late(pool: Pool, fork: str) -> None:
    """Use a pool that was made before gevent has patched the process, as with a lock made at import."""
    # It has been looked at, too.
    pool.sessions()
    if fork == "fork" and (child := os.fork()):
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    from gevent import monkey

    monkey.patch_all()
    import gevent

    turned, lost = gevent.event.Event(), gevent.event.Event()
    with Lock("k", pool).acquire(timeout=10) as held:
        session = pool.sessions()[0]
        gevent.spawn(turned.set)
        send("turned", turned.wait(10), type(wire_of(session)._client.handler).__name__)
        held._when_lost(lost.set)
        session.post(lambda: held._possession.contender.lose("to see whether it is notified"))
        send("notified", lost.wait(10))
        held.release()
    os._exit(0 if pool.close(5.0) else 1)


def compute(pool: Pool) -> None:
    """Hold in a greenlet that computes, without yielding, until the lock is lost."""
    held = Lock("k", pool).acquire(timeout=10)
    end = time.monotonic() + 60
    while not held.lost and time.monotonic() < end:
        pass
    try:
        held.check()
        send("still held")
    except LockLost as error:
        send("lost", "the lease ran out" in str(error))
    held.release()


PARTS = {
    part.__name__: part
    for part in (
        hold,
        hold_to_the_end,
        count,
        fork,
        fork_in_c,
        fork_while_it_waits,
        fork_of_the_waiter,
        children,
        alarm,
        greenlets,
        patched_late,
        compute,
    )
}


def make_pool(hosts: str, root: str, timeout: float) -> Pool:
    connection = ConnectionOptions(hosts=hosts, session_timeout=timeout)
    return Pool("player", PoolOptions(connection=connection, root=root))


def main() -> None:
    hosts, root, timeout, part, *arguments = sys.argv[1:]
    PARTS[part](make_pool(hosts, root, float(timeout)), *arguments)


if __name__ == "__main__":
    main()
