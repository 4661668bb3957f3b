"""End a child of a pool without an event loop that has a second thread, and then give the pool more work.

A program of its own: a pool whose lock is never free again cannot be closed.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import billiard
from billiard.context import ForkContext
from billiard.pool import DEATH, Pool
from billiard.queues import SimpleQueue

from django_zklock.contrib.celery import shutdown

put = SimpleQueue.put


def put_slowly(outq: Any, message: Any) -> None:
    """Keep the lock of the queue after the child's last word until the answer has arrived."""
    if message[0] != DEATH:
        put(outq, message)
        return
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    # Written to when a signal arrives, in whichever thread, before Python code handles it.
    signal.set_wakeup_fd(wakeup)
    with outq._wlock:
        lock, outq._wlock = outq._wlock, None
        put(outq, message)
        outq._wlock = lock
        select.select([signals], [], [], 60)


def hold() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(600)


def main() -> None:
    setattr(SimpleQueue, "put", put_slowly)  # noqa: B010 - mypy
    pool: Any = Pool(2, on_process_exit=lambda *_: shutdown._end_child(), threads=True, context=ForkContext())
    accepted: queue.Queue[int] = queue.Queue()
    pool.apply_async(hold, accept_callback=lambda pid, _when: accepted.put(pid))
    ended = pool._process_by_pid(accepted.get(timeout=60))[0]
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
