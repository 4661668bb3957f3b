"""The same operations on the test server and on the real one: every reply, Stat and event is the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from django_zklock.testing import ZooKeeperServer
from tests.testserver.comparison import Stage, Step
from tests.testserver.strategies import plays
from tests.toolbox.zookeeper.server import ZooKeeper

Address = tuple[str, int]

_numbers = itertools.count(1)


def compare(reference: Address, other: Address, steps: tuple[Step, ...]) -> None:
    """Run the steps on both servers; fail at the first step with a difference."""
    name = f"example-{next(_numbers)}"
    stages = [Stage(reference, name), Stage(other, name)]
    try:
        for number, step in enumerate(steps, 1):
            expected, seen = (stage.play(step) for stage in stages)
            assert seen == expected, f"step {number} of {len(steps)}, {step}\nexpected {expected}\nseen     {seen}"
        expected, seen = (stage.close() for stage in stages)
        assert seen == expected, f"at the end\nexpected {expected}\nseen     {seen}"
    finally:
        for stage in stages:
            stage.abandon()


# Shrinking a failure takes minutes, and the long profile takes them anyway.
@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.zookeeper
@given(steps=plays)
def test_operations__same_as_zookeeper(reference: ZooKeeper, ours: ZooKeeperServer, steps: tuple[Step, ...]) -> None:
    """The test server answers any requests of several sessions, in any order, like ZooKeeper."""
    compare(reference.address, ours.address, steps)
