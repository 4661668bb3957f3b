"""Calls whose end nobody has to wait for."""

from __future__ import annotations

import threading
import time

import pytest

from django_zklock.zk.deadline import Deadline
from django_zklock.zk.errand import Errand


def test_result() -> None:
    """What the call gives is the result, as often as it is asked for."""
    errand = Errand(lambda: 42)
    assert errand.result(Deadline.after(5)) == 42
    assert errand.result(Deadline.after(0)) == 42


def test_result__none() -> None:
    """Nothing is a result too."""
    assert Errand(lambda: None).result(Deadline.after(5)) is None


def test_result__error() -> None:
    """What the call raises is raised again."""

    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        Errand(fail).result(Deadline.after(5))


def test_result__too_late() -> None:
    """A call that is not over is left alone, and its result may be had later."""
    go = threading.Event()

    def wait() -> str:
        return "gone" if go.wait(30) else "never"

    errand = Errand(wait)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        errand.result(Deadline.after(0.05))
    assert time.monotonic() - began < 5
    go.set()
    assert errand.result(Deadline.after(5)) == "gone"
