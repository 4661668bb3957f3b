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


@pytest.mark.shows("faults#a-child-is-killed-and-the-system-does-not-tell-of-its-end")
@pytest.mark.parametrize("is_refused", [False, True])
def test_end__is_noticed(monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    """The end of each child is noticed before anybody reads it, also where a container forbids to wait for it."""
    if is_refused:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    ended: queue.Queue[int] = queue.Queue()
    watcher = ChildWatcher(lambda _hold_id: None, ended.put)
    # The second one while the watcher waits for others.
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            assert watcher.add(child.pid)
            assert watcher.add(child.pid)
            child.kill()
            assert ended.get(timeout=SOON) == child.pid
    assert ended.empty()


@pytest.mark.parametrize("is_refused", [False, True])
def test_close(monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    """A watcher that is closed has no descriptor and no thread, and watches no child."""
    if is_refused:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    ended: queue.Queue[int] = queue.Queue()
    watcher = ChildWatcher(lambda _hold_id: None, ended.put)
    pipe = identity(os.fstat(watcher._write_end))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert watcher.add(child.pid)
        thread = watcher._thread
        assert thread is not None
        watcher.close()
        thread.join(SOON)
        assert not watcher.add(child.pid)
        child.kill()
    assert (thread.is_alive(), pipe in open_files(), ended.empty()) == (False, False, True)
    watcher.send_release(7)


@pytest.mark.parametrize("is_refused", [False, True])
def test_end__is_noticed_late(monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    """A child that has ended before it is watched is noticed at once, whether its end was read or not."""
    if is_refused:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    ended: queue.Queue[int] = queue.Queue()
    watcher = ChildWatcher(lambda _hold_id: None, ended.put)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not watcher.add(child.pid) or ended.get(timeout=SOON) == child.pid
        child.wait(SOON)
        assert not watcher.add(child.pid)


def test_end__without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has no descriptor left notices the ends of its children nevertheless, of earlier ones too."""
    ended: queue.Queue[int] = queue.Queue()
    watcher = ChildWatcher(lambda _hold_id: None, ended.put)

    def child() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    with child() as before, child() as after:
        assert watcher.add(before.pid)

        def fail(pid: int, flags: int = 0) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "pidfd_open", fail, raising=False)
        assert watcher.add(after.pid)
        for each in (after, before):
            each.kill()
            assert ended.get(timeout=SOON) == each.pid


def test_end__without_waitid(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS before Python 3.13, which has neither call, the end is noticed when Celery has read it."""
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    monkeypatch.delattr(os, "waitid")
    ended: queue.Queue[int] = queue.Queue()
    watcher = ChildWatcher(lambda _hold_id: None, ended.put)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert watcher.add(child.pid)
        child.kill()
        child.wait(SOON)
        assert ended.get(timeout=SOON) == child.pid


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
