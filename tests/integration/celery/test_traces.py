"""The traces of the locks of a worker's tasks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SOON = 40.0
SECOND = 1_000_000_000


def test_spans__of_a_task_at_the_gate(open_workshop: Any) -> None:
    """The wait at the gate has a span, below that of the task although the task begins later; so has the hold."""
    with open_workshop(
        concurrency=1, options=["--include", "tests.toolbox.celery.readiness,workshop.traces"]
    ) as workshop:
        workshop.other_client.take("invoice")
        sent = workshop.send("shared_below", "invoice")
        workshop.wait_count("invoice", 2)
        began = time.time()
        # A while that is longer than the clocks are exact.
        wait_until(lambda: time.time() > began + 0.2)
        released = time.time()
        workshop.other_client.release("invoice")
        token = workshop.result(sent)["token"]
        notes = wait_until(
            lambda: found if len(found := workshop.notes(f"{workshop.queue}:spans")) == 3 else None, SOON, "three spans"
        )
    spans = {note["name"]: note for note in notes}
    wait, hold, task = (spans[name] for name in ("zklock wait", "zklock hold", "run workshop.tasks.shared_below"))
    assert wait["parent"] == hold["parent"] == task["id"]
    # From before the one moment until after the other.
    assert wait["end"] - wait["begin"] >= (released - began) * SECOND
    assert wait["attributes"]["zklock.outcome"] == "granted"
    assert wait["attributes"]["zklock.holder"].startswith("label the other client")
    assert (hold["attributes"]["zklock.key"], hold["attributes"]["zklock.token"]) == ("invoice", token)
    assert hold["end"] <= task["end"]
