"""The contestants: what each is called, what it can do, and how it is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.toolbox.curator.installation import HOW_TO_GET_CURATOR, find_curator
from tests.toolbox.processes.java import find_java

ROOT = Path(__file__).resolve().parents[2]
ZOOKEEPER, REDIS = "zookeeper", "redis"
JAVA_SOURCE = Path(__file__).parent / "clients" / "LockClient.java"
# One program for all threads, and one of many, each of which has one contender; both have Java's own compilers.
TOGETHER = ("-Xmx512m",)
APART = ("-Xmx64m", "-XX:+UseSerialGC")


def python_client(name: str) -> Callable[[], list[str]]:
    """Return what makes the command line of a contestant in Python."""
    return lambda: [sys.executable, "-m", "benchmarks.peers.clients.locks", name]


@cache
def java_classes() -> Path:
    """Compile the source once. Debian's headless runtime has the compiler, without a program for it."""
    folder = ROOT / ".cache" / "peers"
    compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", str(folder)]
    subprocess.run(
        [find_java(HOW_TO_GET_CURATOR), *compiler, "-cp", find_curator(), str(JAVA_SOURCE)], check=True, cwd=ROOT
    )
    return folder


def curator_client(recipe: str, *options: str) -> Callable[[], list[str]]:
    """Return what makes the command line of a recipe of Curator, with these options of Java."""
    return lambda: [
        find_java(HOW_TO_GET_CURATOR),
        # Java's performance data is a file that a killed program would leave behind.
        "-XX:-UsePerfData",
        *options,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        *("-cp", f"{java_classes()}:{find_curator()}"),
        JAVA_SOURCE.stem,
        recipe,
    ]


@dataclass(frozen=True)
class Contestant:
    """A library of locks, or the floor.

    ``kinds`` are the loads that it can do, and ``can_wait`` tells whether its contenders can wait for each other.
    ``apart`` is the command line of a program with one of several contenders; without it a program forks.
    """

    name: str
    label: str
    service: str
    kinds: frozenset[str]
    arguments: Callable[[], list[str]]
    apart: Callable[[], list[str]] | None = None
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
            "curator",
            "Curator",
            ZOOKEEPER,
            SHARED | {"several"},
            curator_client("mutex", *TOGETHER),
            curator_client("mutex", *APART),
            warms_up=True,
        ),
        Contestant(
            "curator-semaphore-mutex",
            "Curator, semaphore mutex",
            ZOOKEEPER,
            EXCLUSIVE,
            curator_client("semaphore-mutex", *TOGETHER),
            curator_client("semaphore-mutex", *APART),
            warms_up=True,
        ),
        Contestant("redis-py", "redis-py", REDIS, EXCLUSIVE, python_client("redis-py")),
        Contestant("python-redis-lock", "python-redis-lock", REDIS, EXCLUSIVE, python_client("python-redis-lock")),
        Contestant("raw", "raw socket", ZOOKEEPER, EXCLUSIVE, python_client("raw"), can_wait=False),
    )
}  # fmt: skip
