"""What processes of different versions share is what the page about versions says."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from django_zklock import zk_lock

VERSIONS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "versions.md"
PAGE = VERSIONS.read_text(encoding="utf-8").partition("## What processes share")[2]
LABELS = dict(re.findall(r"^\| ([a-z ]+) \| `(-[\w-]+)` \|$", PAGE, re.MULTILINE))
KINDS: dict[str, dict[str, Any]] = {
    "exclusive": {},
    "write": {"mode": "write"},
    "read": {"mode": "read"},
    "a semaphore of four": {"limit": 4},
}


@pytest.mark.shows("versions#old-and-new-processes-side-by-side")
@pytest.mark.parametrize("kind", KINDS)
def test_node(kind: str, zklock: str, kazoo_client: KazooClient) -> None:
    """Names and data of a node have the form that older and newer versions expect."""
    assert KINDS.keys() == LABELS.keys()
    with zk_lock("shared", **KINDS[kind]) as held:
        data, _stat = kazoo_client.get(held.node)
    name = held.node.rpartition("/")[2]
    assert held.node == f"{zklock}/shared/{name}"
    assert re.fullmatch(rf"_c_[0-9a-f-]{{36}}{LABELS[kind]}\d{{10}}", name)
    values = json.loads(data)
    assert values["v"] == 1
    work = values.get("work") or {}
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {*values, *work} <= named
    assert {"v", "host", "pid"} <= values.keys()


@pytest.mark.shows("versions#old-and-new-processes-side-by-side")
def test_data_of_another_format(zklock: str, kazoo_client: KazooClient) -> None:
    """A holder whose data we cannot read keeps its lock, and so does one with fields that we do not know."""
    identity = {"host": "web9", "pid": 9, "thread": "", "work": {"kind": "task", "name": "bill", "id": "7", "shard": 3}}
    for version, work in ((1, "task bill [7]"), (2, None)):
        data = json.dumps({"v": version, **identity, "colour": "red"}).encode()
        path = f"{zklock}/shared-{version}/_c_{uuid.uuid4()}-lock-"
        kazoo_client.create(path, data, ephemeral=True, sequence=True, makepath=True)
        lock = zk_lock(f"shared-{version}")
        assert lock.try_acquire() is None
        (holder,) = lock.holders()
        assert (str(holder.work) if holder else None) == work
