"""The plan of the faults depends on the seed alone."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from tests.chaos.nemesis import Fault, Kind, draw


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
