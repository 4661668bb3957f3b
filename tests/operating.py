"""Fixtures for tests of the command: locks to look at, and an operator; a test module names this as a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from services.zookeeper import ZooKeeper

from django_zklock.locks import zk_lock
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from tests.command import Hold, Screen, Type

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def hold(zklock: str) -> Iterator[Hold]:
    """Give a function that takes a lock until the end of the test."""
    taken: list[Held] = []

    def take(key: str, work: Work | None = None, **options: object) -> Held:
        taken.append(zk_lock(key, work=lambda: work, **options).acquire(5))  # type: ignore[arg-type]
        return taken[-1]

    yield take
    for held in taken:
        held.release()


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Give a function that has somebody sit at the terminal who will type these lines."""

    def type_in(*lines: str) -> None:
        stdin = Screen("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr("sys.stdin", stdin)

    return type_in


@pytest.fixture
def shop(zookeeper: ZooKeeper, settings: Settings) -> str:
    """Have this process use the same locks as the ones that it starts; give where."""
    settings.ZKLOCK = {"default": {"HOSTS": zookeeper.hosts, "SESSION_TIMEOUT": 6}}
    return zookeeper.hosts
