"""Many tasks, few keys, two workers, and children that are killed at random."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.zk.onlooker import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.slow]

TASKS, KEYS, KILLS = 1000, 10, 12
PATIENCE = 90.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Give the database in which each run of a task has a row."""
    with closing(sqlite3.connect(tmp_path / "ledger", timeout=30, isolation_level=None)) as database:
        database.execute("pragma journal_mode = wal")
        # A token that is given twice is an error there.
        database.execute(
            "create table runs (line text, token integer, number integer, began real, ended real, "
            "primary key (line, token))"
        )
        yield database


def test_storm__none_lost_and_none_together(
    open_workshop: Any, key: str, ledger: sqlite3.Connection, tmp_path: Path
) -> None:
    """No two tasks of one key run together, by token and by time, each task runs to its end, and nothing is left."""
    # Celery would sit on a killed child's task for ten seconds.
    environment = {"WORKSHOP_LOST_WAIT": "0.5"}
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    keys = [f"{key}-{number}" for number in range(KEYS)]

    def done() -> int:
        ((count,),) = ledger.execute("select count(distinct number) from runs where ended is not null")
        return int(count)

    with open_workshop(concurrency=3, session_timeout=30, environment=environment) as workshop:
        second = workshop.start_another(concurrency=3)
        mains = [workshop.worker.pid, second.pid]
        for number in range(TASKS):
            workshop.send("enter_in_ledger", chance.choice(keys), str(tmp_path / "ledger"), number)
        over = threading.Event()
        for _ in range(KILLS):
            over.wait(0.3)
            victims = children_of(chance.choice(mains))
            if victims:
                os.kill(chance.choice(victims), signal.SIGKILL)
        wait_until(lambda: done() == TASKS, PATIENCE, f"every task is done; seed {seed}")
        for each in keys:
            workshop.wait_empty(each)
    for each in keys:
        runs = ledger.execute("select began, coalesce(ended, began) from runs where line = ? order by token", (each,))
        # Whoever was killed has no end.
        for (_, ended), (began, _) in itertools.pairwise(runs.fetchall()):
            assert ended <= began, f"two at once in {each}; seed {seed}"
