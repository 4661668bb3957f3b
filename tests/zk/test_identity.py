"""Node data: what we write, and what others may have written."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import pytest

from django_zklock.zk import identity
from django_zklock.zk.identity import Identity, Work

WORK = Work(kind="task", name="billing.deposit", id="0f8fad5b")


def test_identity__round_trip() -> None:
    """What was written is read again."""
    mine = identity.own(WORK)
    assert identity.decode(mine.encode()) == mine


def test_identity__own() -> None:
    """The identity is that of this process and thread."""
    mine = identity.own(None)
    assert (mine.pid, mine.thread) == (os.getpid(), threading.current_thread().name)
    assert mine.started is not None
    assert mine.joined is not None
    assert time.time() - 86400 < mine.started <= mine.joined <= time.time()


def test_identity__text() -> None:
    """It reads as a sentence's end."""
    assert str(Identity(host="h", pid=7, work=WORK)) == "task billing.deposit [0f8fad5b] (pid 7 on h)"
    assert str(Identity(host="h", pid=7)) == "pid 7 on h"


@pytest.mark.parametrize("character", ["x", "\0", '"', "\N{PARTY POPPER}", "\ud800", "\x1b"])
def test_identity__long_texts(character: str) -> None:
    """However long the names are, the data is at most 4 kB and readable."""
    long = character * 5000
    data = Identity(host=long, pid=1, thread=long, work=Work(kind=long, name=long, id=long)).encode()
    assert len(data) <= identity.MAX_BYTES
    assert identity.decode(data) is not None


def form(**facts: Any) -> bytes:
    return json.dumps({"v": 1, "host": "h", "pid": 1, **facts}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\xfd",
        b'{"v":1,"host":"\xff","pid":1}',
        b"null",
        b"[]",
        b"1",
        b"{",
        b"[" * 4000,
        b'{"v":1,"host":"h","pid":' + b"9" * 4000 + b"}",
        b'{"v":1,"host":"h","pid":1e400}',
        b'{"v":1,"host":"h","pid":NaN}',
        form(v=2),
        form(v="1"),
        form(v=None),
        form(host=None),
        form(host=1),
        form(host=["h"]),
        form(pid="1"),
        form(pid=1.5),
        form(pid=True),
        form(pid=10**30),
        form(pid=-(10**30)),
        form(thread="x" * 4096),
    ],
)
def test_decode__not_ours(data: bytes) -> None:
    """What is not an identity in our form is none, whatever it is."""
    assert identity.decode(data) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"thread": 5, "started": "x", "joined": [], "work": "x"},
        {"started": True, "joined": {}, "work": []},
        {"started": 10**300, "work": {"kind": 1, "name": None, "id": {}}},
        {"started": float("nan"), "joined": float("inf"), "extra": {"deep": [1]}},
        {"thread": "\ud800", "host": "\udfff", "work": {"kind": "a\nb", "name": "\x1b[2J", "id": "\x9b"}},
        {"thread": "x" * 1000, "host": "y" * 1000, "work": {"name": "z" * 1000}},
    ],
)
def test_decode__hostile_fields(facts: dict[str, Any]) -> None:
    """Wrong fields are dropped or cut, and what is left can be printed, encoded and formatted as a time."""
    found = identity.decode(form(**facts))
    assert found is not None
    text = f"{found} {found.thread}"
    assert text.encode()
    assert text.isprintable()
    assert len(text) < 2000
    for moment in (found.started, found.joined):
        assert moment is None or abs(moment) < 1e15


def test_process_started__fork() -> None:
    """The cache belongs to one process."""
    moment = identity._process_started()
    assert identity._process_started() == moment
    identity._started = (0, 1.0)
    assert identity._process_started() == pytest.approx(moment, abs=1.0)
