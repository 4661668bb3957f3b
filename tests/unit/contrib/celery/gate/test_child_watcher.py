"""The ends of children, and the locks that they let their parent release."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from django_zklock.contrib.celery.gate.child_watcher import ChildWatcher
from tests.toolbox.processes.status import identity, open_files
from tests.toolbox.timing import scaled

pytestmark = pytest.mark.celery

# Seconds, enough for a busy machine.
SOON = scaled(20)


def refuse(pid: int, flags: int = 0) -> int:
    raise PermissionError(1, "Operation not permitted")


def child() -> subprocess.Popen[bytes]:
    """Start a child that runs until it is killed."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


@pytest.fixture
def ended() -> queue.Queue[int]:
    """Return the pids of the children whose end the watcher has noticed."""
    return queue.Queue()


@pytest.fixture(params=[False, True], ids=["", "refused"])
def watcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ended: queue.Queue[int]) -> ChildWatcher:
    """Return a watcher, also in a container that forbids to wait for children."""
    if request.param:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    return ChildWatcher(lambda _hold_id: None, ended.put)


@pytest.mark.shows("faults#a-child-is-killed-and-the-system-does-not-tell-of-its-end")
def test_end__is_noticed(watcher: ChildWatcher, ended: queue.Queue[int]) -> None:
    """The end of each child is noticed before anybody reads it."""
    # The second one while the watcher waits for others.
    for _ in range(2):
        with child() as watched:
            assert watcher.add(watched.pid)
            assert watcher.add(watched.pid)
            watched.kill()
            assert ended.get(timeout=SOON) == watched.pid
    assert ended.empty()


def test_close(watcher: ChildWatcher, ended: queue.Queue[int]) -> None:
    """A watcher that is closed has no descriptor and no thread, and watches no child."""
    pipe = identity(os.fstat(watcher._write_end))
    with child() as watched:
        assert watcher.add(watched.pid)
        thread = watcher._thread
        assert thread is not None
        watcher.close()
        thread.join(SOON)
        assert not watcher.add(watched.pid)
        watched.kill()
    assert (thread.is_alive(), pipe in open_files(), ended.empty()) == (False, False, True)
    watcher.send_release(7)


def test_end__is_noticed_late(watcher: ChildWatcher, ended: queue.Queue[int]) -> None:
    """A child that has ended before it is watched is noticed at once, whether its end was read or not."""
    with subprocess.Popen([sys.executable, "-c", ""]) as watched:
        os.waitid(os.P_PID, watched.pid, os.WEXITED | os.WNOWAIT)
        assert not watcher.add(watched.pid) or ended.get(timeout=SOON) == watched.pid
        watched.wait(SOON)
        assert not watcher.add(watched.pid)


@pytest.mark.parametrize("watcher", [False], indirect=True)
def test_end__without_a_descriptor(
    watcher: ChildWatcher, ended: queue.Queue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has no descriptor left notices the ends of its children nevertheless, of earlier ones too."""

    def fail(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with child() as before, child() as after:
        assert watcher.add(before.pid)
        monkeypatch.setattr(os, "pidfd_open", fail, raising=False)
        assert watcher.add(after.pid)
        for each in (after, before):
            each.kill()
            assert ended.get(timeout=SOON) == each.pid


@pytest.mark.parametrize("watcher", [True], indirect=True)
def test_end__without_waitid(watcher: ChildWatcher, ended: queue.Queue[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS before Python 3.13, which has neither call, the end is noticed when Celery has read it."""
    monkeypatch.delattr(os, "waitid")
    with child() as watched:
        assert watcher.add(watched.pid)
        watched.kill()
        watched.wait(SOON)
        assert ended.get(timeout=SOON) == watched.pid


def test_release__another_one_fails() -> None:
    """An error with one release does not lose the others that were read with it."""
    released: queue.Queue[int] = queue.Queue()

    def release(hold_id: int) -> None:
        if hold_id == 1:
            raise KeyError(hold_id)
        released.put(hold_id)

    watcher = ChildWatcher(release, lambda _pid: None)
    for hold_id in (1, 2, 3):
        watcher.send_release(hold_id)
    # Starts the thread, which reads all of them at once.
    watcher.add(os.getpid())
    assert [released.get(timeout=SOON) for _ in range(2)] == [2, 3]


def test_release__pipe_was_closed(tmp_path: Path) -> None:
    """A child whose body has closed the pipe sends nothing, least of all into a file that has got its number."""
    watcher = ChildWatcher(lambda _hold_id: None, lambda _pid: None)
    with (tmp_path / "file").open("wb") as file:
        kept = os.dup(watcher._write_end)
        os.dup2(file.fileno(), watcher._write_end)
        watcher.send_release(1)
        os.dup2(kept, watcher._write_end)
        os.close(kept)
    assert (tmp_path / "file").read_bytes() == b""
