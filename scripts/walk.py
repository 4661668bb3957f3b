"""Count what a lock enters, by a profiler: functions, files, and changes of file.

``python scripts/walk.py`` prints the figures of four walks on a warm session: a free ``with zk_lock("k")``; joining
behind the node of another client; the hand-over from it, with the release; and a task through the gate of a Celery
worker and back, where both are threads of this process. With ``--functions`` it prints what was entered too, in order,
with the number of calls in a row. The server is the one for tests, and does not count.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parents[1] / "django_zklock"
sys.path.insert(0, str(PACKAGE.parent))

Step = tuple[str, str]
"""A file, from the package on, and a function in it."""


class Walk:
    """What all threads have entered while :meth:`recording` runs."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._is_on = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """Keep a call; the hook of :func:`sys.setprofile`."""
        if not self._is_on or event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "testing"):
            self._steps.append((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    @contextmanager
    def recording(self) -> Iterator[list[Step]]:
        """Record, and add the steps of the walk to the list at the end."""
        self._steps = []
        found: list[Step] = []
        self._is_on = True
        yield found
        self._is_on = False
        found += self._steps


def figures(steps: list[Step]) -> str:
    """Return the figures of one walk."""
    hops = sum(1 for _ in groupby(steps, key=lambda step: step[0])) - 1
    files = {path for path, _ in steps}
    return f"{len(steps):5} calls {len(set(steps)):5} functions {len(files):4} files {hops:5} changes of file"


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for ``condition``."""
    until = time.monotonic() + 10
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the lock did nothing for ten seconds")
        time.sleep(0.01)


def walks() -> Iterator[tuple[str, list[Step]]]:
    """Yield the name of each walk and its steps."""
    import django
    from django.conf import settings
    from kazoo.client import KazooClient

    from django_zklock.testing import ZooKeeperServer

    walk = Walk()
    sys.setprofile(walk.profile)
    threading.setprofile(walk.profile)
    with ZooKeeperServer() as server:
        alias = {"HOSTS": server.hosts, "SESSION_TIMEOUT": 60.0}
        settings.configure(ZKLOCK={"default": alias}, INSTALLED_APPS=["django_zklock"])
        django.setup()
        from django_zklock import zk_lock
        from django_zklock.connections import connections
        from django_zklock.zk.contender import Contender, State

        client = KazooClient(server.hosts)
        client.start()
        lock = zk_lock("k")
        for _ in range(3):
            with lock:
                pass
        session = connections["default"].sessions()[0]
        # What waits for the end of a walk must call nothing that counts.
        listeners = session.listeners
        wait_until(lambda: not listeners)
        with walk.recording() as alone:
            with zk_lock("k"):
                pass
            wait_until(lambda: not listeners)
        yield "alone", alone

        node = client.create(f"{lock.paths[0]}/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-", b"", sequence=True)
        held = threading.Event()

        def wait() -> None:
            with zk_lock("k"):
                held.set()

        def is_waiting() -> bool:
            contenders = [each for each in list(listeners) if isinstance(each, Contender)]
            return any(each.state is State.WAITING and not each.open for each in contenders)

        with walk.recording() as join:
            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(is_waiting)
            time.sleep(0.1)
        yield "join behind another process", join
        with walk.recording() as hand_over:
            client.delete(node)
            waiter.join(10)
            wait_until(lambda: not listeners)
        yield "hand-over, body and release", hand_over
        client.stop()
        yield "task through the gate", through_the_gate(walk, listeners)
        connections["default"].close()


def through_the_gate(walk: Walk, listeners: Collection[object]) -> list[Step]:
    """Return the steps of a task, from its message to the deletion of its node."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    from django_zklock import zk_locked
    from django_zklock.contrib.celery.gate import gate

    app, ran = Celery("walk", broker="memory://", backend="cache+memory://"), 0

    def run(key: str) -> None:
        nonlocal ran
        assert key == "k"
        ran += 1

    task = app.task(name="run")(zk_locked("{key}")(run))
    # The worker for tests does not send the signal at which the gate is put into a worker.
    gate.install(app)
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, loglevel="ERROR"):
        for count in range(1, 4):
            task.delay("k")
            wait_until(lambda count=count: ran == count and not listeners)  # type: ignore[misc]
        # After the check for what no callback reports, which finds nothing.
        time.sleep(1.5)
        with walk.recording() as steps:
            task.delay("k")
            wait_until(lambda: ran == 4 and not listeners)
            time.sleep(0.1)
    return steps


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", action="store_true", help="print what was entered too")
    arguments = parser.parse_args()
    for name, steps in walks():
        sys.stdout.write(f"{name:28}{figures(steps)}\n")
        for (path, function), same in groupby(steps if arguments.functions else ()):
            sys.stdout.write(f"    {path:32} {function} {len(list(same))}\n")


if __name__ == "__main__":
    main()
