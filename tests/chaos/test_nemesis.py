"""The plan of the faults depends on the seed alone, and what is to be alone is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import FOLDER
from tests.chaos.nemesis import Fault, Kind, Nemesis, draw


def _act(_fault: Fault) -> Any:
    return contextlib.nullcontext()


KINDS = {
    "stopped": Kind(act=_act, weight=3, victims=["leader", "follower"], longest=8.0, of_servers=True),
    "wiped": Kind(act=_act, weight=1, victims=["leader", "follower"], longest=0.3, of_servers=True, alone=True),
    "cut": Kind(act=_act, weight=6, victims=["threads", "gevent"], longest=0.0),
}


def test_draw__again() -> None:
    """A seed draws the same plan again, and another seed another one."""
    plan = draw("7.3", 240.0, KINDS, pace=1.0)
    assert draw("7.3", 240.0, KINDS, pace=1.0) == plan
    assert draw("7.4", 240.0, KINDS, pace=1.0) != plan


def test_draw__longer() -> None:
    """A longer season begins like a shorter one of its seed, whose last faults are cut off."""
    short, long = (draw("7.3", seconds, KINDS, pace=1.0) for seconds in (60.0, 240.0))
    same = long[: len(short)]
    assert [replace(fault, lasts=0.0) for fault in short] == [replace(fault, lasts=0.0) for fault in same]
    assert [fault.lasts for fault in short] == [min(fault.lasts, 60.0 - fault.at) for fault in same]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (True, True), (False, False)])
def test_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, first: bool, second: bool) -> None:
    """A fault of servers that is to be alone begins when the one before it is mended, however long that takes."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    begun, mended, met, over = (threading.Event() for _ in range(4))

    @contextlib.contextmanager
    def takes_long(_fault: Fault) -> Iterator[None]:
        begun.set()
        yield
        met.wait(0.5 if first or second else 60.0)
        mended.set()

    @contextlib.contextmanager
    def meets(_fault: Fault) -> Iterator[None]:
        if not mended.is_set():
            met.set()
        yield

    nemesis = Nemesis(
        {
            "first": Kind(act=takes_long, weight=1, victims=["leader"], longest=0.0, of_servers=True, alone=first),
            "second": Kind(act=meets, weight=1, victims=["leader"], longest=0.0, of_servers=True, alone=second),
        }
    )
    one, two = (Fault(at=0.0, what=what, lasts=0.0, victim="leader", chance=1) for what in ("first", "second"))
    thread = threading.Thread(target=nemesis._strike, args=(one, over))
    thread.start()
    assert begun.wait(60.0)
    nemesis._strike(two, over)
    thread.join()
    # Without a rule that keeps them apart the second one begins while the first one waits for it.
    assert met.is_set() == (not first and not second)
