"""Node data: what we write, and what others may have written."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from django_zklock.zk import node_data
from django_zklock.zk.node_data import Identity, Work

WORK = Work(kind="task", name="billing.deposit", id="0f8fad5b", arguments="account_id=7")


def test_identity__round_trip() -> None:
    """What was written is read again, and is that of this process and thread."""
    mine = node_data.current_identity(WORK)
    assert node_data.decode_identity(mine.encode()) == mine
    assert (mine.pid, mine.thread) == (os.getpid(), threading.current_thread().name)


def test_identity__text() -> None:
    """It reads as a sentence's end."""
    assert str(Identity(host="h", pid=7, work=WORK)) == "task billing.deposit [0f8fad5b] (pid 7 on h)"
    assert str(Identity(host="h", pid=7)) == "pid 7 on h"


@pytest.mark.parametrize(
    ("child", "process"),
    [
        (0, "worker w@web1, main pid 7 on h"),
        (93, "pid 93 on h, worker w@web1"),
        (None, "pid 7 on h, worker w@web1"),
    ],
)
def test_identity__task_of_a_worker(child: int | None, process: str) -> None:
    """The process is the one that runs the task; the main process of a worker is named as such."""
    work = Work(kind="task", name="bill", id="77", worker="w@web1", child=child, time_limit=1.5)
    identity = Identity(host="h", pid=7, work=work)
    assert str(identity) == f"task bill [77] ({process})"
    assert node_data.decode_identity(identity.encode()) == identity


def test_holder__is_this_very_process() -> None:
    """A caller that waits for its own process is told so; the main process of a worker has many tasks."""
    mine = node_data.current_identity(None)
    assert mine.as_holder == f"{mine}, which is this very process, thread {mine.thread}"
    for other in (replace(mine, pid=mine.pid + 1), replace(mine, host="elsewhere")):
        assert other.as_holder == str(other)
    task = replace(mine, work=Work(kind="task", name="bill", worker="w@web1", child=0))
    assert task.as_holder == str(task)


def test_run__is_added() -> None:
    """The child is added to the data of a task, and that its worker has forgotten it; a request to release is kept."""
    work = Work(kind="task", name="bill", id="77", worker="w@web1", child=0)
    data = node_data.encode_revoke(Identity(host="h", pid=7, work=work).encode(), "deploy")
    changed = node_data.add_run(data, child=93, granted=1234.5678, forgotten=True)
    assert changed is not None
    assert (node_data.decode_owner(data)[1], node_data.decode_owner(changed)[1]) == (None, 1234.568)
    identity = node_data.decode_identity(changed)
    assert identity is not None
    assert identity.work is not None
    assert (identity.work.child, identity.work.forgotten) == (93, True)
    assert node_data.decode_revoke(changed) == "deploy"


@pytest.mark.parametrize("data", [b"junk", b'{"v":1}', b'{"work":[]}', b'{"work":{"name":"%s"}}' % (b"x" * 4075)])
def test_run__is_not_added(data: bytes) -> None:
    """Data of other clients, and data that would be too large, is left alone."""
    assert node_data.add_run(data, child=93, granted=1.0, forgotten=False) is None


@pytest.mark.parametrize("character", ["x", "\0", '"', "\N{PARTY POPPER}", "\ud800", "\x1b"])
def test_identity__long_texts(character: str) -> None:
    """However long the texts are, as much of them is kept as there is room for, which is less with many keys."""
    long = character * 5000
    who = Identity(
        host=long,
        pid=2**22,
        thread=long,
        work=Work(
            kind=long, name=long, id=long, worker=long, child=2**22, time_limit=1e14 / 3, command=long, arguments=long
        ),
    )
    assert len(who.encode()) <= node_data.MAX_BYTES
    for room in (node_data.MIN_BYTES, 1000, 2000, node_data.MAX_BYTES):
        data = who.encode(room, keys=100_000)
        assert len(data) <= room
        assert node_data.decode_identity(data) is not None


def test_keys() -> None:
    """One that takes several keys writes how many, also into what a task adds; the data of one key has no more."""
    mine = node_data.current_identity(replace(WORK, worker="w@web1", child=0))
    assert mine.encode(keys=1) == mine.encode()
    data = mine.encode(keys=3)
    assert node_data.decode_owner(data) == (mine, None, 3)
    changed = node_data.add_run(data, child=93, granted=1234.5, forgotten=False)
    assert changed is not None
    assert node_data.decode_owner(changed)[1:] == (1234.5, 3)


@pytest.mark.parametrize("keys", [1, 0, -3, 2.5, True, "3", None, [3], 10**30])
def test_keys__hostile(keys: object) -> None:
    """What is no number of several keys is none."""
    assert node_data.decode_owner(form(keys=keys)).keys is None


def form(**facts: Any) -> bytes:
    return json.dumps({"v": 1, "host": "h", "pid": 1, **facts}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\xfd",
        b'{"v":1,"host":"\xff","pid":1}',
        b"null",
        b"{",
        b"[" * 4000,
        b'{"v":1,"host":"h","pid":' + b"9" * 4000 + b"}",
        b'{"v":1,"host":"h","pid":1e400}',
        b'{"v":1,"host":"h","pid":NaN}',
        form(v=2),
        form(host=None),
        form(pid=1.5),
        form(pid=True),
        form(pid=10**30),
        form(thread="x" * 4096),
    ],
)
def test_decode__not_ours(data: bytes) -> None:
    """What is not an identity in our form is none, whatever it is."""
    assert node_data.decode_identity(data) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"thread": 5, "started": "x", "joined": [], "work": "x"},
        {"started": True, "joined": {}, "work": []},
        {"started": 10**300, "work": {"kind": 1, "name": None, "id": {}}},
        {"started": float("nan"), "joined": float("inf"), "extra": {"deep": [1]}},
        {
            "thread": "\ud800",
            "host": "\udfff",
            "work": {"kind": "a\nb", "name": "\x1b[2J", "id": "\x9b", "arguments": "\n"},
        },
        {"thread": "x" * 1000, "host": "y" * 1000, "work": {"name": "z" * 1000}},
    ],
)
def test_decode__hostile_fields(facts: dict[str, Any]) -> None:
    """Wrong fields are dropped or cut, and what is left can be printed and encoded."""
    found = node_data.decode_identity(form(**facts))
    assert found is not None
    text = f"{found} {found.thread}"
    assert text.encode()
    assert text.isprintable()
    assert len(text) < 2000
