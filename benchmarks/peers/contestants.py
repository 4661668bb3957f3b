"""The contestants: what each is called, what it can do, and how it is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.toolbox.curator.installation import HOW_TO_GET_CURATOR, find_curator
from tests.toolbox.processes.java import find_java

ZOOKEEPER, REDIS = "zookeeper", "redis"
JAVA_SOURCE = Path(__file__).parent / "clients" / "LockClient.java"


def python_client(name: str) -> Callable[[], list[str]]:
    """Return what makes the command line of a contestant in Python."""
    return lambda: [sys.executable, "-m", "benchmarks.peers.clients.locks", name]


def curator_client(recipe: str) -> Callable[[], list[str]]:
    """Return what makes the command line of a recipe of Curator. Java compiles the source at the start."""
    return lambda: [
        find_java(HOW_TO_GET_CURATOR),
        # Java's performance data is a file that a killed program would leave behind.
        "-XX:-UsePerfData",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        *("-cp", find_curator()),
        str(JAVA_SOURCE),
        recipe,
    ]


@dataclass(frozen=True)
class Contestant:
    """A library of locks, or the floor.

    ``kinds`` are the loads that it can do, and ``can_wait`` tells whether its contenders can wait for each other.
    """

    name: str
    label: str
    service: str
    kinds: frozenset[str]
    arguments: Callable[[], list[str]]
    can_wait: bool = True
    # Whether its runtime compiles the code while it runs.
    warms_up: bool = False


EXCLUSIVE = frozenset({"exclusive", "try"})
SHARED = EXCLUSIVE | {"mixed", "semaphore"}

CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("ours", "django_zklock", ZOOKEEPER, SHARED | {"several"}, python_client("ours")),
        Contestant("kazoo", "kazoo", ZOOKEEPER, SHARED, python_client("kazoo")),
        Contestant(
            "curator", "Curator", ZOOKEEPER, SHARED | {"several"}, curator_client("mutex"), warms_up=True
        ),
        Contestant(
            "curator-semaphore-mutex",
            "Curator, semaphore mutex",
            ZOOKEEPER,
            EXCLUSIVE,
            curator_client("semaphore-mutex"),
            warms_up=True,
        ),
        Contestant("redis-py", "redis-py", REDIS, EXCLUSIVE, python_client("redis-py")),
        Contestant("python-redis-lock", "python-redis-lock", REDIS, EXCLUSIVE, python_client("python-redis-lock")),
        Contestant("raw", "raw socket", ZOOKEEPER, EXCLUSIVE, python_client("raw"), can_wait=False),
    )
}  # fmt: skip
