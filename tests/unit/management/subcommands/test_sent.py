"""`zklock sent`, and what `show` and `prune` say about calls that are sent and have not begun."""

from __future__ import annotations

import json
import re

import pytest

from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.zk.ops import sent
from tests.toolbox.django.command import Hold, run
from tests.toolbox.timing import scaled

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no slow answer look like none."""
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))


def send(key: str, id: str, *, calls: int = 0, max_age: float = 3600.0) -> None:  # noqa: A002
    """Do what a sender does, and make some more calls."""
    pool = connections["default"]
    data = sent.encode(key=key, task="bill", max_age=max_age)
    assert sent.claim(pool, sent.new_mark(pool, id, key), data, max_age=max_age) == id
    sent.confirm(pool, sent.new_mark(pool, id, key))
    for number in range(calls):
        assert sent.claim(pool, sent.new_mark(pool, f"{id}-{number}", key), data, max_age=max_age) == id
    # Behind the confirmation in its session.
    sent.remove(pool, sent.new_mark(pool, "another", key), timeout=scaled(20))


def facts(text: str) -> list[list[str]]:
    return [re.split("  +", row) for row in text.splitlines()]


def test_sent__table(zklock: str) -> None:
    """One row for each call: since when, how many calls it has saved, and its task."""
    assert run("sent") == f"No call is known to be sent and not begun under {zklock}.\n"
    send("invoice:42", "one", calls=3)
    send("account:17", "two", max_age=-1.0)
    header, *rows = facts(run("sent"))
    assert header == ["KEY", "STATE", "SENT", "SAVED", "TASK"]
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("account:17", "stale", "0", "bill [two]"),
        ("invoice:42", "sent", "3", "bill [one]"),
    ]
    assert [row[0] for row in facts(run("sent", "invoice:42"))[1:]] == ["invoice:42"]
    assert run("sent", "invoice", status=1).startswith("No call of lock invoice is known")


def test_list__says_how_many(zklock: str, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all locks ends with the number of calls, if there are any and it may be read."""
    hold("account:17")
    assert "sent" not in run("list")
    send("invoice:42", "one")
    assert run("list").splitlines()[-1] == "1 call of tasks is sent and not begun: zklock sent shows them."
    send("account:17", "two")
    assert "2 calls of tasks are sent" in run("list")
    assert "sent" not in run("list", "account*")
    assert "sent" not in run("list", "--json")

    def refuse(*_arguments: object, **_options: object) -> int:
        raise ZkLockError("refused")

    monkeypatch.setattr(sent, "count", refuse)
    assert "calls" not in run("list")


def test_sent__json(zklock: str) -> None:
    """JSON has the same facts."""
    send("invoice:42", "one", calls=3)
    (call,) = json.loads(run("sent", "--format", "json"))["sent"]
    assert call.pop("since") > 0
    assert call == {
        "alias": "default", "state": "sent", "key": "invoice:42", "task": "bill", "id": "one", "saved": 3,
        "is_confirmed": True, "max_age": 3600.0,
    }  # fmt: skip


def test_show(hold: Hold) -> None:
    """The calls of a lock are shown with its queue, and alone if it is free."""
    send("invoice:42", "one", calls=3)
    text = run("show", "invoice:42", status=1)
    assert text.startswith("Lock invoice:42 is free")
    assert "Sent, and not begun:\nKEY" in text
    held = hold("invoice:42")
    assert run("show", "invoice:42").endswith("bill [one]\n")
    (call,) = json.loads(run("show", "invoice:42", "--format", "json"))["sent"]
    assert call["id"] == "one"
    held.release(wait=True)


def test_prune(zklock: str) -> None:
    """Marks of calls that may be lost are removed, and with an option those of all."""
    send("invoice:42", "one")
    send("account:17", "two", max_age=-1.0)
    last = "Would remove 1 mark of calls: the next ones are sent."
    assert run("prune", "--dry-run").splitlines()[::2] == ["account:17: bill [two]", last]
    assert run("prune").splitlines()[0] == "account:17: bill [two]"
    assert run("prune") == f"Removed 0 empty queues under {zklock}.\n"
    assert "Removed 1 mark of calls" in run("prune", "--sent")
    assert run("sent").startswith("No call is known")
