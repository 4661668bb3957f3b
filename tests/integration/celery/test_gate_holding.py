"""What a task knows about the lock that its worker's main process holds for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.ticket import HEADER
from django_zklock.zk.ops import actions
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 4.0


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    options = ("--include", "tests.toolbox.celery.readiness,workshop.converted")
    with open_workshop(concurrency=3, session_timeout=SESSION_TIMEOUT, options=options) as workshop:
        yield workshop


FORGED = {"origin": "0123456789abcdef", "slot": 0, "nonce": 1, "keys": ["forged"], "token": 1}


def test_hold__is_the_main_process_s(workshop: Any, key: str) -> None:
    """A task has the token and the node of the main process's hold, and no session of its own."""
    workshop.result(workshop.send("shared_below", key))
    before = workshop.sessions_begun()
    task = workshop.send("report", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    (holder,) = workshop.holders(key)
    assert holder.pid == workshop.worker.pid != facts["pid"]
    assert str(holder.work) == f"task workshop.tasks.report [{task.id}]"
    assert facts["node"] == f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}"
    workshop.let_go(f"{key}:gate")
    assert workshop.result(task) == {"lost": False, "token": facts["token"]}
    assert workshop.sessions_begun() == before


def test_nested__shares_the_node(workshop: Any, key: str) -> None:
    """A task may acquire its own lock again, and other locks in its own process."""
    result = workshop.result(workshop.send("nest", key))
    assert result["inner"] == result["outer"] < result["other"]
    workshop.wait_empty(key)
    workshop.wait_empty(f"{key}:other")


def test_lost__node_deleted(workshop: Any, key: str) -> None:
    """A task whose node is deleted notices it, and fails with LockLost at its end."""
    task = workshop.send("report", key, f"{key}:gate")
    node = workshop.entered(f"{key}:gate")["node"]
    workshop.delete(node)
    # The next heartbeat of the main process finds it; there are seven in a session timeout.
    workshop.wait_log(f"event=lost path={workshop.pool.path(key)}")
    # The state is set when the reason has been read, before the reply to any later request.
    workshop.result(workshop.send("shared_below", f"{key}:other"))
    workshop.let_go(f"{key}:gate")
    assert type(workshop.outcome(task)).__name__ == "LockLost"


def test_lost__interrupts(workshop: Any, key: str) -> None:
    """A task with `on_lost="interrupt"` is interrupted when its node is deleted, long before it would end."""
    task = workshop.send("hold_interruptibly", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert type(task.outcome(20)).__name__ == "LockLost"


def test_lost__terminates(workshop: Any, key: str) -> None:
    """With `on_lost="terminate"` the worker kills the child whose lock is lost, and the task fails with LockLost."""
    task = workshop.send("hold_terminably", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert type(task.outcome(8)).__name__ == "LockLost"
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10, "the child is gone")
    assert workshop.result(workshop.send("shared_below", key))["key"] == key


def test_lost__terminates_and_is_delivered_again(workshop: Any, key: str) -> None:
    """With `acks_late` and `reject_on_worker_lost` the task is delivered again."""
    task = workshop.send("hold_terminably_late", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert task.outcome(8)["key"] == key


def test_lost__somebody_has_broken_it(workshop: Any, key: str) -> None:
    """A task whose lock was broken knows the reason, and so does its result."""
    task = workshop.send("watch_itself", key, f"{key}:gate")
    token = workshop.entered(f"{key}:gate")["token"]
    # While the queue has other nodes, ZooKeeper does not delete the lock node with the reason.
    workshop.send("hold", key, f"{key}:next")
    node, _ = workshop.wait_count(key, 2)
    path = f"{workshop.pool.path(key)}/{node}"
    actions.break_lock(workshop.pool, path, token=token, why="broken by root: é" + "x" * 300, timeout=scaled(10))
    note = workshop.board.blpop([f"{key}:gate:lost"], timeout=scaled(30))
    assert note is not None
    assert "its node was deleted: broken by root: éxxx" in json.loads(note[1])
    error = workshop.outcome(task)
    assert type(error).__name__ == "LockLost"
    assert "broken by root: éxxx" in str(error)
    workshop.let_go(f"{key}:next")


def test_revoked__reason(workshop: Any, key: str) -> None:
    """A task that is asked to release knows the reason."""
    task = workshop.send("hold_until_revoked", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    [node] = workshop.nodes(key)
    actions.revoke(workshop.pool, f"{workshop.pool.path(key)}/{node}", "asked by root: deploy", timeout=scaled(10))
    assert workshop.result(task) == "asked by root: deploy"


def test_lost__main_process_stands_still(workshop: Any, key: str) -> None:
    """A task knows by its own clock that its lock is lost when the main process was stopped for too long."""
    task = workshop.send("watch_itself", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.worker.signal(signal.SIGSTOP)
    try:
        note = workshop.board.blpop([f"{key}:gate:lost"], timeout=scaled(30))
        assert note is not None
        assert "the lease ran out" in json.loads(note[1])
    finally:
        workshop.worker.signal(signal.SIGCONT)
    assert type(workshop.outcome(task)).__name__ == "LockLost"


@pytest.mark.parametrize("header", [FORGED, "e30:abc"])
def test_header__forged(workshop: Any, key: str, header: Any) -> None:
    """A header that a producer sends is removed with a warning in the log, and the task waits for its lock."""
    workshop.other_client.take(key)
    task_id = f"{key}-{header[:3]}" if isinstance(header, str) else key
    task = workshop.send("shared_below", key, task_id=task_id, headers={HEADER: header})
    workshop.wait_count(key, 2)
    workshop.wait_log(f"event=header_refused task={task_id}")
    workshop.other_client.release(key)
    assert workshop.result(task)["key"] == key
