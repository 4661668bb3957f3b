"""An operator deletes a whole queue, and all nodes in it, while some hold and others wait, for locks of every kind."""

from __future__ import annotations

import pytest

from django_zklock.zk.lock import Lock
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer


@pytest.mark.shows("faults#a-queue-is-deleted")
@pytest.mark.parametrize("keys", ["k", ["k", "l"]], ids=["one", "several"])
@pytest.mark.parametrize("kind", RULES)
def test_queue_deleted(make_pool: MakePool, observer: Observer, kind: str, keys: str | list[str]) -> None:
    """The holder has lost all of it; each waiter queues up again, as the lock exists again, and all have their turn."""
    rule = RULES[kind]
    # Exclusive, so that every other contender waits.
    held = Lock(keys, make_pool(session_timeout=3.0)).acquire(timeout=60)
    path = held.lock.paths[0]
    pools = [make_pool(session_timeout=3.0) for _ in range(2)]

    def enter(number: int) -> int:
        with Lock(keys, pools[number % 2], rule=rule).acquire(timeout=120) as mine:
            mine.check()
            return mine.token

    waiters = [Runner(lambda number=number: enter(number)) for number in range(4)]  # type: ignore[misc]
    names = observer.wait_count(path, 5)
    everything = observer.client.transaction()
    for name in names:
        everything.delete(f"{path}/{name}")
    everything.delete(path)
    assert all(outcome is True for outcome in everything.commit())
    wait_until(lambda: held.lost, 10)
    # It still stands in the other queue.
    held.release(wait=True)
    assert all(waiter.result(20) > held.token for waiter in waiters)
    for each in held.lock.paths:
        observer.wait_empty(each)
