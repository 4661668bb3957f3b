"""The mark of a message at the gate: no body begins, and no refusal counts, before it is removed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Retry

from django_zklock.contrib.celery import unique
from django_zklock.contrib.celery.gate import attempt
from django_zklock.contrib.celery.gate.states import Phase, Verdict
from django_zklock.contrib.celery.unique import HEADER
from django_zklock.exceptions import LockConflict, ZooKeeperUnavailable
from django_zklock.zk.ops.sent import Mark

from .workplace import Workplace

pytestmark = pytest.mark.celery

WRAPPED = ExceptionWithTraceback(Retry("later"), None)


class Removal:
    """A removal that the test ends."""

    made: list[Removal]

    def __init__(self, _session: object, mark: Mark, done: Callable[[Exception | None], object]) -> None:
        self.mark, self.done = mark, done

    def start(self) -> None:
        self.made.append(self)


@pytest.fixture
def removals(monkeypatch: pytest.MonkeyPatch) -> list[Removal]:
    """Return the removals that requests have begun; every message has a mark."""
    Removal.made = []
    monkeypatch.setattr(attempt, "Removal", Removal)
    monkeypatch.setattr(unique, "mark_in", lambda _headers, message: (None, Mark("/sent/a", message)))
    return Removal.made


def asking(workplace: Workplace, *, keeps_mark: bool = False) -> Any:
    """Return a request whose turn has come."""
    locked = workplace.request(headers={HEADER: ["default", "a"]})
    locked._call.keeps_mark = lambda _refusal: keeps_mark
    locked._retries.should_retry = lambda _error: False
    locked.request.request_dict[HEADER] = ["default", "a"]
    locked.ask()
    return locked


def refuse(locked: Any) -> None:
    """Let the attempt of a request be refused at its next look."""

    def poll() -> bool:
        raise LockConflict("taken")

    locked.attempt.poll = poll
    locked.step()


def test_granted(removals: list[Removal]) -> None:
    """A granted request enters the pool when its mark is gone, and its child does not remove it once more."""
    workplace = Workplace()
    locked = asking(workplace)
    locked.attempts.contender.answered = True
    locked.attempts.decided = True
    locked.step()
    locked.step()
    assert (locked.phase, len(removals), removals[0].mark.id) == (Phase.JOINING, 1, "id")
    removals[0].done(None)
    workplace.loop.turn()
    assert locked.pair == (Phase.DECIDED, Verdict.GRANTED)
    workplace.end_task()
    assert workplace.submitted == ["id"]
    assert HEADER not in locked.request.request_dict


@pytest.mark.parametrize("waits", [True, False])
def test_refused__asks_once_more(removals: list[Removal], waits: bool) -> None:
    """A refused request asks again when its mark is gone, and the second answer counts."""
    workplace = Workplace()
    locked = asking(workplace)
    refuse(locked)
    assert (locked.phase, locked.refusal, locked.attempts.starts) == (Phase.JOINING, None, 1)
    locked.step()
    removals[0].done(None)
    workplace.loop.turn()
    assert (locked.phase, locked.attempts.starts) == (Phase.JOINING, 2)
    if waits:
        locked.attempts.contender.answered = True
        locked.step()
        assert locked.phase is Phase.WAITING
    refuse(locked)
    assert (locked.pair, len(removals)) == ((Phase.DECIDED, Verdict.REFUSED), 1)


def test_refused__comes_back_later(removals: list[Removal]) -> None:
    """A task that goes back to its broker keeps its mark, and its child knows it."""
    workplace = Workplace()
    locked = asking(workplace, keeps_mark=True)
    refuse(locked)
    assert (locked.pair, removals) == ((Phase.DECIDED, Verdict.REFUSED), [])
    workplace.end_task()
    assert HEADER in locked.request.request_dict


def test_removal__refused(removals: list[Removal]) -> None:
    """A mark that ZooKeeper does not let a worker remove is an error of the task."""
    workplace = Workplace()
    locked = asking(workplace)
    locked.attempts.decided = True
    locked.step()
    removals[0].done(PermissionError("no"))
    workplace.loop.turn()
    assert locked.pair == (Phase.DECIDED, Verdict.REFUSED)
    assert "cannot be removed" in str(locked.refusal)


def test_removal__session_closed(removals: list[Removal]) -> None:
    """Where the session has ended, the request acquires its lock again, and removes its mark then."""
    workplace = Workplace()
    locked = asking(workplace)
    locked.attempts.decided = True
    locked.step()
    removals[0].done(ConnectionError("closed"))
    workplace.loop.turn()
    assert (locked.phase, len(removals)) == (Phase.JOINING, 2)
    removals[1].done(None)
    workplace.loop.turn()
    assert locked.pair == (Phase.DECIDED, Verdict.GRANTED)


def test_zookeeper_silent(removals: list[Removal], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose mark is not removed in time removes it in its slot."""
    workplace = Workplace()
    locked = asking(workplace)
    locked.attempts.decided = True
    locked.step()
    monkeypatch.setattr(attempt, "MAX_JOINING", 0.0)
    locked.step()
    assert locked.pair == (Phase.DECIDED, Verdict.IN_SLOT)
    workplace.end_task()
    assert (workplace.submitted, HEADER in locked.request.request_dict) == (["id"], True)


@pytest.mark.parametrize("by", ["on_success", "on_failure"])
@pytest.mark.parametrize(
    ("error", "is_removed"), [(ZooKeeperUnavailable("away"), True), (Retry("later"), False), (WRAPPED, False)]
)
def test_reported(
    removals: list[Removal], monkeypatch: pytest.MonkeyPatch, by: str, error: Exception, is_removed: bool
) -> None:
    """A message that has ended keeps no call from being sent, although its child could not tell that to ZooKeeper."""
    removed: list[Mark] = []
    monkeypatch.setattr(unique, "remove_soon", lambda _pool, mark: removed.append(mark))
    workplace = Workplace()
    locked = asking(workplace, keeps_mark=True)
    refuse(locked)
    workplace.end_task()
    assert removed == []
    failure = SimpleNamespace(exception=error)
    if by == "on_success":
        # By which Celery's pools report what a task has raised, too.
        locked.on_success((True, failure, 0.0))
    else:
        locked.on_failure(failure)
    assert [mark.id for mark in removed] == ["id"] * is_removed
