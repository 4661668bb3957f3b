"""The trail of what was done to locks: what it keeps, and what it believes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_zklock.zk import paths
from django_zklock.zk.ops import trail
from django_zklock.zk.ops.trail import Action

BREAK = Action(
    at=1e9, what="broken", key="invoice:42", lock="invoice:42", node="n", token=7, holder="pid 1 on web1",
    by="ada", why="it hangs", id="0a1b",
)  # fmt: skip


def written(**changed: Any) -> bytes:
    """Return the data of a trail with one action, some of whose values are others."""
    (values,) = json.loads(trail.added(b"", BREAK))["actions"]
    values = {name: value for name, value in (values | changed).items() if value is not None}
    return json.dumps({"v": 1, "actions": [values]}).encode()


def test_added__is_bounded_by_number() -> None:
    """The oldest actions make room for the next one."""
    data = b""
    for number in range(trail.MAX_ACTIONS + 5):
        data = trail.added(data, Action(**{**vars(BREAK), "token": number, "id": str(number)}))
    found = trail.decode(data)
    assert [found[0].token, found[-1].token, len(found)] == [5, trail.MAX_ACTIONS + 4, trail.MAX_ACTIONS]


def test_added__is_bounded_by_bytes() -> None:
    """However long the texts are, the data is of a length that servers accept, and has the latest action."""
    data = b""
    for number in range(60):
        data = trail.added(
            data, Action(**{**vars(BREAK), "token": number, "id": str(number), "why": "\N{PARTY POPPER}" * 5000})
        )
        assert len(data) <= trail.MAX_BYTES
        assert trail.decode(data)[-1].token == number


def test_added__once() -> None:
    """An action whose answer was lost is carried out again, and is one action."""
    data = trail.added(b"", BREAK)
    assert trail.added(data, BREAK) == data


def test_added__in_one_millisecond() -> None:
    """Actions on one holder are as many as were made, however fast they follow each other."""
    actions = [
        Action(**{**vars(BREAK), "what": what, "by": by, "id": f"{by}-{what}"})
        for what in (trail.REQUESTED, trail.BROKEN)
        for by in ("ada", "bob")
    ]
    data = b""
    for each in actions:
        data = trail.added(data, each)
    assert trail.decode(data) == actions


def test_added__of_earlier_versions() -> None:
    """Actions of earlier versions have no id, and are not taken for one."""
    (old,) = trail.decode(written(id=None))
    assert old.id == ""
    assert trail.decode(trail.added(trail.added(b"", old), old)) == [old, old]


def test_decode__key() -> None:
    """The key is behind the name of the lock's node; if that is shortened, the key is kept with the action."""
    assert trail.decode(trail.added(b"", BREAK)) == [BREAK]
    long = Action(**{**vars(BREAK), "lock": "in%~0123", "key": "in" * 100})
    assert trail.decode(trail.added(b"", long)) == [long]
    assert b"in" * 100 not in trail.added(b"", Action(**{**vars(BREAK), "key": "in" * 100}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        b"[]",
        b'{"v":2,"actions":[]}',
        b'{"v":1,"actions":{}}',
        b'{"v":1,"actions":[7]}',
        written(what="made up"),
        written(token="7"),
        written(token=2**70),
        written(at=1e300),
        written(at=True),
        written(lock="a/b"),
        written(node=""),
        written(node=".."),
        written(lock="a\x1b"),
        written(why=7),
        b"x" * (trail.MAX_BYTES + 1),
    ],
)
def test_decode__of_other_clients(data: bytes) -> None:
    """What is no action of ours is left out."""
    assert trail.decode(data) == []


def test_decode__hostile_texts() -> None:
    """Control characters are shown as escapes."""
    (found,) = trail.decode(written(by="\x1b[2J", why="\ud800", lock="a\u202e"))
    assert (found.by, found.why, found.key) == ("\\x1b[2J", "\\ud800", "a\\u202e")


def test_decode__names_as_they_are() -> None:
    """The names of nodes are kept as they are, because they are paths; only the key is for people."""
    name = paths.escape("Müller\u00a0GmbH")
    (found,) = trail.decode(written(lock=name, node="n\u00ad1"))
    assert (found.lock, found.node, found.key) == (name, "n\u00ad1", "Müller\\xa0GmbH")
