"""The locks that somebody wants to see."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.inspection import search, survey
from django_zklock.zk.inspection.selection import Ordering, Selection
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.rules import READ
from tests.zk.onlooker import MakePool, Onlooker

GUID = "01234567-89ab-cdef-0123-456789abcdef"


def find(pool: Pool, selection: Selection, column: str = "key", limit: int | None = None) -> list[str]:
    """Give the keys that are found."""
    lines = search.find(pool, selection, Ordering(column=column), limit=limit, timeout=5)
    assert all(line.holders or line.foreign for line in lines)
    return [line.key for line in lines]


def test_find(pool: Pool) -> None:
    """By name, by who stands in the line, and by what is in the nodes; each is read whole."""
    with Lock("a", pool), Lock("b", pool, rule=READ), Lock("c" * 500, pool):
        assert find(pool, Selection()) == ["a", "b", "c" * 500]
        assert find(pool, Selection(), limit=2) == ["a", "b"]
        assert find(pool, Selection(key="B")) == ["b"]
        assert find(pool, Selection(key="*c")) == ["c" * 500]
        assert find(pool, Selection(kind="read")) == ["b"]
        assert find(pool, Selection(host="nowhere")) == []
        assert find(pool, Selection(), "token") == ["a", "b", "c" * 500]
        assert find(pool, Selection(), "token", limit=1) == ["a"]


def test_find__idle_lines(pool: Pool, onlooker: Onlooker) -> None:
    """Lines in which nobody stands are no locks in use; those with nodes of unknown recipes are."""
    onlooker.client.create(f"{pool.options.root}/idle", makepath=True)
    onlooker.client.create(f"{pool.options.root}/strange/readme", makepath=True)
    assert find(pool, Selection()) == ["strange"]


@pytest.mark.parametrize("column", ["key", "age"])
def test_find__left_meanwhile(pool: Pool, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """Who has left between the two looks is not found."""
    path = f"{pool.options.root}/k/_c_{GUID}-lock-"
    node = onlooker.client.create(path, sequence=True, makepath=True)
    outlines = survey.outlines

    def then_leave(*arguments: object, **options: object) -> object:
        found = outlines(*arguments, **options)  # type: ignore[arg-type]
        onlooker.client.delete(node)
        return found

    monkeypatch.setattr(survey, "outlines", then_leave)
    assert find(pool, Selection(), column) == []


@pytest.mark.parametrize("column", ["key", "token"])
def test_find__in_portions(pool: Pool, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """However many there are, all are found, in order."""
    monkeypatch.setattr(search, "PORTION", 2)
    with ExitStack() as stack:
        for key in "abcde":
            stack.enter_context(Lock(key, pool))
        assert find(pool, Selection(), column) == list("abcde")


def test_find__in_time(make_pool: MakePool) -> None:
    """An ensemble that is not there is an error in time."""
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable):
        search.find(make_pool("127.0.0.1:1"), Selection(), Ordering(), limit=None, timeout=0.3)
    assert time.monotonic() - began < 3
