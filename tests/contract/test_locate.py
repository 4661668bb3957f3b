"""How many stand before somebody in the line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from django_zklock.zk.attempt import Attempt
from django_zklock.zk.claim import State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.rules import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.zk.onlooker import MakePool, Onlooker, wait_until

Come = Callable[..., Attempt]


@pytest.fixture
def come(make_pool: MakePool, onlooker: Onlooker) -> Iterator[Come]:
    """Give a function that has somebody come to a line, or several, each through a pool of its own."""
    attempts: list[Attempt] = []

    def come(rule: Rule, *keys: str) -> Attempt:
        lock = Lock(keys or "k", make_pool(), rule=rule)
        counts = [len(onlooker.children(path)) for path in lock.paths]
        attempts.append(Attempt(lock, None, lambda: None))
        attempts[-1].start()
        for path, count in zip(lock.paths, counts, strict=True):
            onlooker.wait_count(path, count + 1)
        # What the server shows already may not have been answered yet.
        contender = attempts[-1].contender
        wait_until(lambda: contender.state in {State.WAITING, State.HELD})
        return attempts[-1]

    yield come
    for attempt in attempts:
        attempt.end()


def ahead(attempt: Attempt) -> int | None:
    """Ask somebody who stands in a line how many stand before it."""
    counts: list[int | None] = []
    told = threading.Event()

    def tell(count: int | None) -> None:
        counts.append(count)
        told.set()

    contender = attempt.contender
    contender.session.post(partial(contender.locate, tell))
    assert told.wait(10)
    return counts[0]


@pytest.mark.parametrize(
    ("rules", "counts"),
    [
        ([EXCLUSIVE] * 4, [0, 1, 2, 3]),
        ([WRITE, READ, READ, WRITE, READ], [0, 1, 1, 3, 2]),
        # Those who are in are in the way as well, once there is no room.
        ([semaphore(2)] * 4, [0, 0, 2, 3]),
    ],
)
def test_locate__line(come: Come, rules: list[Rule], counts: list[int]) -> None:
    """Those who have to go first are counted, and nobody else."""
    people = [come(rule) for rule in rules]
    assert [ahead(each) for each in people] == counts


def test_locate__moves_on(come: Come, onlooker: Onlooker) -> None:
    """It is the line of now, and not the one that was met at the beginning."""
    people = [come(EXCLUSIVE) for _ in range(5)]
    assert ahead(people[4]) == 4
    for left, each in enumerate(people[:3], 1):
        each.end()
        onlooker.wait_count(each.lock.paths[0], 5 - left)
        assert ahead(people[4]) == 4 - left


def test_locate__several_keys(come: Come) -> None:
    """Of several lines the one counts in which most stand before it."""
    for _ in range(3):
        come(EXCLUSIVE, "b")
    come(EXCLUSIVE, "a")
    assert ahead(come(EXCLUSIVE, "a", "b", "c")) == 3


def test_locate__nowhere(pool: Pool) -> None:
    """Who has not joined, or has left, stands nowhere."""
    for keys in ("k", ["a", "b"]):
        attempt = Attempt(Lock(keys, pool), 5, lambda: None)
        assert ahead(attempt) is None
        attempt.start()
        assert ahead(attempt) in {0, None}
        gone = threading.Event()
        attempt.end()
        contender = attempt.contender
        contender.session.post(partial(contender.when_gone, gone.set))
        assert gone.wait(10)
        assert ahead(attempt) is None
