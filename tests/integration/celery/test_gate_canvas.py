"""Tasks at the gate with a chord, calls of others, rate limits and new children, and in a worker without the app."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery, chord
from celery.canvas import Signature

from tests.toolbox.celery.workshop import Sent
from tests.toolbox.timing import wait_until

pytestmark = [
    pytest.mark.celery,
    pytest.mark.zookeeper,
    # kombu 5.3 warns with redis 5.3, in the client that inspects the worker.
    pytest.mark.filterwarnings("ignore:Call to 'get_connection' function with deprecated usage"),
]

# Longer than every timeout here: no lock is freed by a session timeout.
SESSION_TIMEOUT = 30.0
# Seconds, enough for a busy machine, and less than the session timeout.
SOON = 20.0


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    # One slot, and a prefetch window of one message.
    environment = {"WORKSHOP_PREFETCH": "1"}
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        yield workshop


@dataclass(frozen=True)
class Canvas:
    """A canvas that a task in the worker sends, so that this process has no results with a connection to the broker."""

    workshop: Any
    app: Celery

    def task(self, name: str, *args: Any) -> Signature[Any]:
        made: Signature[Any] = self.app.signature(f"workshop.tasks.{name}", args, queue=self.workshop.queue)
        return made

    def send(self, canvas: Signature[Any]) -> list[Sent]:
        """Send the canvas, and return the tasks that have its results."""
        ids = self.workshop.result(self.workshop.send("conduct", canvas))
        return [Sent(each, self.workshop.results) for each in ids]


@pytest.fixture(scope="module")
def canvas(workshop: Any) -> Canvas:
    return Canvas(workshop, workshop.sender)


def reserved(workshop: Any) -> set[str]:
    (requests,) = workshop.inspect().reserved().values()
    return {request["id"] for request in requests}


# Canvas.


def test_chord__body_after_a_locked_header(workshop: Any, canvas: Canvas, key: str) -> None:
    """The body of a chord joins the queue when the whole header is done, and gets its results, including skips."""
    workshop.other_client.take(key)
    header = [canvas.task(name, key) for name in ("shared_below", "skip", "shared_below")]
    (sent,) = canvas.send(chord(header, canvas.task("carry", key)))
    workshop.wait_count(key, 3)
    workshop.other_client.release(key)
    *results, body = workshop.result(sent)
    assert [result.get("zklock") for result in results] == [None, "skipped", None]
    assert [step["key"] for step in (*results, body)] == [key] * 4
    assert body["token"] > max(results[0]["token"], results[2]["token"])
    workshop.wait_empty(key)


def test_call__inside_of_a_task(workshop: Any, key: str) -> None:
    """Tasks that a locked task calls or runs eagerly share its lock or acquire their own, and release neither."""
    result = workshop.result(workshop.send("call_others", key))
    token = result["after"]["token"]
    assert [result[how]["token"] for how in ("called", "eager")] == [token] * 2
    assert [result[how]["key"] for how in ("called_other", "eager_other")] == [f"{key}:other"] * 2
    assert [step["key"] for step in result["chain"]] == [key, f"{key}:other"]
    assert result["chain"][0]["token"] == token
    workshop.wait_empty(key)
    workshop.wait_empty(f"{key}:other")


# Rate.


def test_rate_limit__counts_once(workshop: Any, key: str) -> None:
    """A task that its rate limit delays is not in the queue; one that has passed it waits, and is not counted again."""
    workshop.other_client.take(key)
    first = workshop.send("seldom", key)
    workshop.wait_count(key, 2)
    second = workshop.send("seldom", key)
    workshop.wait_log(f"seldom[{second.id}] received")
    # The worker has handled the message when it replies.
    assert reserved(workshop) == {first.id}
    workshop.wait_count(key, 2)
    workshop.other_client.release(key)
    assert workshop.result(first)["key"] == key
    workshop.wait_empty(key)
    assert second.state == "PENDING"
    # Celery keeps the message, and its place in the window, for an hour; another worker may run it now.
    workshop.worker.stop()
    workshop.worker.start()
    assert workshop.result(second)["key"] == key


# New children.


def test_new_children__inherit_nothing(open_workshop: Any, key: str) -> None:
    """A child that is forked while the main process has a session does not use it, and gets its lock by a ticket."""
    options = ["--max-tasks-per-child=1"]
    with open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, options=options) as workshop:
        results = [workshop.result(each) for each in [workshop.send("look_around", key) for _ in range(3)]]
        assert len({result["pid"] for result in results} | {workshop.worker.pid}) == 4
        for result in results:
            assert result["key"] == key
            assert (result["to_zookeeper"], result["sessions"]) == (0, 0)
        tokens = [result["token"] for result in results]
        assert len(set(tokens)) == 3
        assert [each["own"] for each in sorted(results, key=lambda each: each["token"])] == sorted(
            each["own"] for each in results
        )
        # One session of the main process, and one of each child for the lock that it acquires itself.
        assert workshop.sessions_begun() == 4
        workshop.wait_empty(key)


def test_autoscale__no_slot_is_lost(open_workshop: Any, key: str) -> None:
    """A pool that grows and shrinks while a task waits keeps all of its slots."""
    environment = {"AUTOSCALE_KEEPALIVE": "0.5", "WORKSHOP_PREFETCH": "10"}
    options = ["--autoscale=3,1"]
    with open_workshop(
        concurrency=1, session_timeout=SESSION_TIMEOUT, environment=environment, options=options
    ) as workshop:

        def slots() -> int:
            (stats,) = workshop.inspect().stats().values()
            return len(stats["pool"]["processes"])

        def fill() -> None:
            for _ in range(3):
                workshop.send("idle", f"{key}:gate")
            for _ in range(3):
                workshop.entered(f"{key}:gate")
            for _ in range(3):
                workshop.let_go(f"{key}:gate")

        workshop.other_client.take(key)
        waiting = workshop.send("shared_below", key)
        workshop.wait_count(key, 2)
        fill()
        wait_until(lambda: slots() == 1, SOON, "the pool has shrunk")
        workshop.other_client.release(key)
        assert workshop.result(waiting)["key"] == key
        fill()


# Workers without the app.


def test_bare_project__locks_for_itself(open_workshop: Any, key: str) -> None:
    """If the project does not have the app, tasks acquire their locks in their slots, with the same policies."""
    environment = {"DJANGO_SETTINGS_MODULE": "workshop.bare"}
    with open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        workshop.other_client.take(key)
        assert workshop.result(workshop.send("skip", key))["zklock"] == "skipped"
        sent = [workshop.send("contend", key, f"{key}:run") for _ in range(4)]
        workshop.wait_count(key, 3)
        workshop.other_client.release(key)
        for task in sent:
            result = workshop.result(task)
            assert (result["key"], result["pid"] == workshop.worker.pid) == (key, False)
        assert {note["together"] for note in workshop.notes(f"{key}:run")} == {1}
        assert workshop.result(workshop.send("shared_above", key))["key"] == key
        workshop.wait_empty(key)
