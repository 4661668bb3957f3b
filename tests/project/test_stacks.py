"""The stacks of processes for which a test has waited in vain."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.toolbox.processes.process import Process
from tests.toolbox.processes.project import ProjectProcess
from tests.toolbox.processes.stacks import STACKS, Stacks
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = pytest.mark.once
pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT, ROOT / "testproject"]

GEVENT = "import gevent, gevent.event; spawn, event, sleep = gevent.spawn, gevent.event.Event(), gevent.sleep"
EVENTLET = (
    "import eventlet, eventlet.event; spawn, event, sleep = eventlet.spawn, eventlet.event.Event(), eventlet.sleep"
)


class Program(ProjectProcess):
    """A Python program that is ready when it has said so."""

    name = "Program"

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = textwrap.dedent(code)

    def arguments(self) -> list[str]:
        return [sys.executable, "-c", self._code]

    def is_ready(self) -> bool:
        return "ready" in self.log_tail()


@pytest.fixture
def stacks(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Stacks:
    """Ask also when a test fails at once."""
    found = pytestconfig.stash[STACKS]
    monkeypatch.setattr(found, "shortest_wait", 0.0)
    # To be put back.
    monkeypatch.setattr(found, "timeout", found.timeout)
    return found


def stacks_of(program: Process, *, pause: bool = False) -> str:
    """Fail in a block that ends the program; return what the failure tells about processes."""
    with pytest.raises(AssertionError, match="in vain") as caught, program:
        _fail(program, pause=pause)
    return "\n".join(caught.value.__notes__)


def _fail(program: Process, *, pause: bool) -> None:
    if pause:
        program.pause()
    raise AssertionError("in vain")


@pytest.mark.usefixtures("stacks")
def test_threads() -> None:
    """All threads of a process and of its children are told, each process once, before the test kills them."""
    found = stacks_of(
        Program(
            """
            import os, threading
            def stalled_thread(): threading.Event().wait()
            def stalled_child(): print("ready", flush=True); threading.Event().wait()
            if os.fork():
                threading.Thread(target=stalled_thread).start()
                os.wait()
            else:
                stalled_child()
            """
        )
    )
    assert found.count(" in stalled_thread\n") == 1
    assert found.count(" in stalled_child\n") == 1


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("library", [GEVENT, EVENTLET], ids=["gevent", "eventlet"])
def test_greenlets(library: str) -> None:
    """So are the greenlets."""
    found = stacks_of(
        Program(
            f"""
            {library}
            def stalled_greenlet(): event.wait()
            spawn(stalled_greenlet)
            sleep(0)
            print("ready", flush=True)
            sleep(1000)
            """
        )
    )
    assert found.count(" in stalled_greenlet\n") == 1


@pytest.mark.usefixtures("stacks")
@pytest.mark.zookeeper
def test_zookeeper() -> None:
    """ZooKeeper tells the threads of its virtual machine; a stopped one answers nothing, which is told."""
    assert "org.apache.zookeeper.server.quorum.QuorumPeerMain.main(" in stacks_of(ZooKeeper())
    assert "java: it is stopped, and answers nothing" in stacks_of(ZooKeeper(), pause=True)


@pytest.mark.parametrize("error", [AssertionError, pytest.skip.Exception, KeyboardInterrupt])
def test_nobody_is_asked(stacks: Stacks, error: type[BaseException]) -> None:
    """No process is asked when a test fails at once, or does not fail."""
    if error is AssertionError:
        stacks.shortest_wait = 1000.0
    with pytest.raises(error) as caught, Program("import time; print('ready', flush=True); time.sleep(1000)"):
        raise error
    assert not hasattr(caught.value, "__notes__")


def test_timeout(pytester: pytest.Pytester) -> None:
    """The failure of a test that has reached its timeout has the stacks of a process that is still running."""
    pytester.makepyfile(
        """
        import signal, subprocess, sys
        from tests.toolbox.processes.stacks import STACKS

        def test_that_waits(request):
            request.config.stash[STACKS].shortest_wait = 0.0
            code = "def stalled(): print('begun', flush=True); input()\\nstalled()"
            child = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            request.addfinalizer(child.communicate)
            child.stdout.readline()
            # As if the time were over.
            signal.raise_signal(signal.SIGALRM)
        """
    )
    pytester.makeini("[pytest]\ntimeout = 60\npythonpath = " + " ".join(map(str, PLACES)))
    result = pytester.runpytest_subprocess("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:hypothesispytest")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*Timeout*{scaled(60):g}*", "E * in stalled"])


def test_summary__is_one_line() -> None:
    """The stacks, which are a part of the message, are not in the line of the summary."""
    crash = SimpleNamespace(message="AssertionError: not within 5 s\nProcess 7, sleep: it has no stacks to tell")
    hook: Any = conftest.pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(SimpleNamespace(longrepr=SimpleNamespace(reprcrash=crash)))
    assert crash.message == "AssertionError: not within 5 s"
