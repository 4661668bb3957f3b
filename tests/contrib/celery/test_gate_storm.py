"""Many tasks, few keys, two workers, and children that are killed at random."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.zk.onlooker import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.slow]

TASKS, KEYS, KILLS = 1000, 10, 12
PATIENCE = 90.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_storm__none_lost_and_none_together(open_workshop: Any, key: str) -> None:
    """No two tasks of one key run together, by token and by time, each task runs to its end, and nothing is left."""
    # Celery would sit on a killed child's task for ten seconds.
    environment = {"WORKSHOP_LOST_WAIT": "0.5"}
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    keys = [f"{key}-{number}" for number in range(KEYS)]
    with open_workshop(concurrency=3, session_timeout=30, environment=environment) as workshop:
        second = workshop.start_another(concurrency=3)
        mains = [workshop.worker.pid, second.pid]
        for number in range(TASKS):
            workshop.send("enter_in_ledger", chance.choice(keys), key, number)
        over = threading.Event()
        for _ in range(KILLS):
            over.wait(0.3)
            victims = children_of(chance.choice(mains))
            if victims:
                os.kill(chance.choice(victims), signal.SIGKILL)
        wait_until(lambda: workshop.board.scard(f"{key}:done") == TASKS, PATIENCE, f"every task is done; seed {seed}")
        for each in keys:
            workshop.wait_empty(each)
        ledger = workshop.board.hgetall(key)
    entries: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, moment in ledger.items():
        line, token, what = name.rsplit(":", 2)
        entries[line][int(token)][what] = float(moment)
    assert entries.keys() <= set(keys)
    for line, runs in entries.items():
        in_order = [runs[token] for token in sorted(runs)]
        for earlier, later in itertools.pairwise(in_order):
            # Whoever was killed has no end.
            assert earlier.get("ended", earlier["began"]) <= later["began"], f"two at once in {line}; seed {seed}"
