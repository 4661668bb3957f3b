"""The search for locks."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.ops.search import LockFilter, Ordering
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import READ
from tests.toolbox.zookeeper.observer import Observer

GUID = "01234567-89ab-cdef-0123-456789abcdef"


def find(pool: Pool, selection: LockFilter, column: str = "key", limit: int | None = None) -> list[str]:
    """Return the keys that are found."""
    found = search.find(pool, selection, Ordering(column=column), limit=limit, timeout=60)
    assert all(each.holders or each.unknown_nodes for each in found)
    return [each.key for each in found]


def test_find(pool: Pool) -> None:
    """Locks are found by name, by their queues and by the data of the nodes; each is read with its whole queue."""
    with Lock("a", pool), Lock("b", pool, rule=READ), Lock("c" * 500, pool):
        assert find(pool, LockFilter()) == ["a", "b", "c" * 500]
        assert find(pool, LockFilter(), limit=2) == ["a", "b"]
        assert find(pool, LockFilter(key="B")) == ["b"]
        assert find(pool, LockFilter(key="*c")) == ["c" * 500]
        assert find(pool, LockFilter(kind="read")) == ["b"]
        assert find(pool, LockFilter(host="nowhere")) == []
        assert find(pool, LockFilter(), "token") == ["a", "b", "c" * 500]
        assert find(pool, LockFilter(), "token", limit=1) == ["a"]


def test_find__idle_queues(pool: Pool, observer: Observer) -> None:
    """A lock with an empty queue is not in use; a lock with nodes of unknown recipes is."""
    observer.client.create(f"{pool.options.root}/idle", makepath=True)
    observer.client.create(f"{pool.options.root}/strange/readme", makepath=True)
    assert find(pool, LockFilter()) == ["strange"]


@pytest.mark.parametrize("column", ["key", "age"])
def test_find__left_meanwhile(pool: Pool, observer: Observer, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """A contender that leaves between the list and the read is not found."""
    path = f"{pool.options.root}/k/_c_{GUID}-lock-"
    node = observer.client.create(path, sequence=True, makepath=True)
    outlines = snapshots.list_queues

    def then_leave(*arguments: object, **options: object) -> object:
        found = outlines(*arguments, **options)  # type: ignore[arg-type]
        observer.client.delete(node)
        return found

    monkeypatch.setattr(snapshots, "list_queues", then_leave)
    assert find(pool, LockFilter(), column) == []


@pytest.mark.parametrize("column", ["key", "token"])
def test_find__in_portions(pool: Pool, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """Any number of locks is found, in order."""
    monkeypatch.setattr(search, "BATCH_SIZE", 2)
    with ExitStack() as stack:
        for key in "abcde":
            stack.enter_context(Lock(key, pool))
        assert find(pool, LockFilter(), column) == list("abcde")
