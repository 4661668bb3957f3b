"""Celery's events, switched on by remote control as a monitor does."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SOON = 20.0


def test_switched_on__events_are_sent(open_workshop: Any, key: str) -> None:
    """A worker that was started without events sends the events of locks as soon as a monitor has enabled events."""
    # Without heartbeats and gossip a worker has no event dispatcher.
    with open_workshop(concurrency=1, session_timeout=30, heartbeat=True) as workshop:
        heard: list[dict[str, Any]] = []
        with workshop.sender.connection() as connection:
            receiver = workshop.sender.events.Receiver(connection, handlers={"*": heard.append})
            with receiver.consumer_context() as (listening, _, _):

                def has_heard(kind: str) -> bool:
                    with contextlib.suppress(TimeoutError):
                        listening.drain_events(timeout=0.2)
                    return any(event["type"] == kind for event in heard)

                # The transport subscribes when it first listens.
                has_heard("anything")
                replies = workshop.control.enable_events(reply=True, timeout=5, limit=1)
                assert "task events enabled" in str(replies)
                workshop.other_client.take(key)
                task = workshop.send("shared_below", key)
                wait_until(lambda: has_heard("zklock-waiting"), SOON, "the wait is told")
                workshop.other_client.release(key)
                workshop.result(task)
                # The last event of the task: the gate's events are sent before.
                wait_until(lambda: has_heard("task-succeeded"), SOON, "the task's events have come")
                wait_until(lambda: has_heard("zklock-released"), SOON, "the lock's events have come")
        ours = [event for event in heard if event["type"].startswith("zklock-")]
        assert [event["type"] for event in ours] == ["zklock-waiting", "zklock-held", "zklock-released"]
        assert {(event["uuid"], event["key"]) for event in ours} == {(task.id, key)}
