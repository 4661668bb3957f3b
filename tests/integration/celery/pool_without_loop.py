"""End a child of a pool without an event loop that has a second thread, and then give the pool more work.

A program of its own: a pool whose lock is never free again cannot be closed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import billiard
from billiard.context import ForkContext
from billiard.pool import DEATH, Pool
from billiard.queues import SimpleQueue

from django_zklock.contrib.celery import shutdown

put = SimpleQueue.put


def put_slowly(queue: SimpleQueue, message: object) -> None:
    """Keep the lock of the queue for a while after the child's last word, so that the answer arrives under it."""
    if message[0] != DEATH:
        put(queue, message)
        return
    with queue._wlock:
        lock, queue._wlock = queue._wlock, None
        put(queue, message)
        queue._wlock = lock
        time.sleep(0.3)


def hold() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(600)


def main() -> None:
    SimpleQueue.put = put_slowly
    pool = Pool(2, on_process_exit=lambda *_: shutdown._end_child(), threads=True, context=ForkContext())
    accepted = threading.Event()
    pids: list[int] = []
    pool.apply_async(hold, accept_callback=lambda pid, _when: (pids.append(pid), accepted.set()))
    assert accepted.wait(60)
    ended = pool._process_by_pid(pids[0])[0]
    # Until its second thread runs.
    while len([*Path(f"/proc/{ended.pid}/task").iterdir()]) < 2:
        time.sleep(0.01)
    pool.terminate_job(ended.pid)
    while ended.exitcode is None:
        time.sleep(0.01)
    try:
        pids = [pool.apply_async(os.getpid).get(timeout=20) for _ in range(4)]
        sys.stdout.write("ended\n" if ended.pid in pids else "working\n")
    except billiard.TimeoutError:
        sys.stdout.write("stuck\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
