"""Which tickets a task accepts."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.signing import Signer

from django_zklock.contrib.celery.gate import ticket as tickets


def header(**facts: Any) -> str:
    """Return a ticket as the main process "worker" writes it for the task "one"."""
    known: dict[str, Any] = {
        "task": "one",
        "origin": "worker",
        "slot": 3,
        "nonce": 7,
        "keys": ["a"],
        "arguments": "",
        "since": 1.0,
        "waited": 0.5,
        "contended": False,
        "session_timeout": 4.0,
    }
    return tickets.Ticket(**known | facts).sign()


def test_read() -> None:
    """A ticket for the task, of a main process of this worker, is read as it was written."""
    ticket = tickets.read(header(token=5), task_id="one", origins={"worker"})
    assert (ticket.nonce, ticket.keys, ticket.token) == (7, ["a"], 5)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        pytest.param(header(task="another"), "it is for task another", id="of another task"),
        pytest.param(header(origin="another"), "it is of another worker process", id="of another worker"),
        pytest.param(header() + "x", "its signature is not ours", id="changed"),
        pytest.param(
            Signer().sign_object({"task": "one"}), "its signature is not ours", id="signed for something else"
        ),
        pytest.param(None, "its signature is not ours", id="nothing"),
    ],
)
def test_read__refused(refused: object, reason: str) -> None:
    """A ticket that was not written for this task, by a main process of this worker, is refused with the reason."""
    with pytest.raises(tickets.TicketRejected, match=reason):
        tickets.read(refused, task_id="one", origins={"worker"})
