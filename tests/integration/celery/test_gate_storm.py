"""A minute of the storm; ``make storm`` runs ten minutes, and takes a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.celery.storm.run import storm

SECONDS, RATE = 60.0, 8.0


# One group with the tests that start a RabbitMQ: two such servers and four workers are enough for one machine.
@pytest.mark.celery
@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.timeout(900)
def test_storm(tmp_path: Path) -> None:
    """Under all faults each task ends as its policy says, with at most one run per delivery, and leaves nothing."""
    seed = random.randrange(2**32)
    report = storm(seed, SECONDS, rate=RATE, gate=True, log=tmp_path / "storm.jsonl")
    assert not report.wrong, f"`make storm ARGS='--seed {seed} --seconds {SECONDS:g} --rate {RATE:g}'`\n{report}"
