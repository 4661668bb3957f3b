"""Many locks that are held, made at once."""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.client import KazooClient
from kazoo.interfaces import IAsyncResult

from django_zklock.zk.node_data import Identity, Work
from tests.toolbox.timing import scaled

# So many nodes share a transaction.
BATCH_SIZE = 500


def hold_many(client: KazooClient, root: str, count: int, *, first: int = 0) -> None:
    """Hold ``count`` locks under ``root``, `invoice:00000` and so on, in the session of ``client``."""
    client.ensure_path(root)
    nodes = []
    for number in range(first, first + count):
        work = Work(kind="task", name="billing.tasks.bill", id=f"{number:032x}")
        data = Identity(host=f"web{number % 40}", pid=1000 + number, thread="MainThread", work=work).encode()
        guid = f"{number:08x}-89ab-cdef-0123-456789abcdef"
        nodes.append((f"{root}/invoice:{number:05}", f"_c_{guid}-lock-", data))
    results = []
    for start in range(0, count, BATCH_SIZE):
        transaction = client.transaction()
        for path, name, data in nodes[start : start + BATCH_SIZE]:
            transaction.create(path)
            transaction.create(f"{path}/{name}", data, ephemeral=True, sequence=True)
        results.append(transaction.commit_async())
    _check(results)


def leave_many(client: KazooClient, root: str, count: int) -> None:
    """Leave ``count`` empty queues under ``root``, `order:00000` and so on, which ZooKeeper does not remove."""
    client.ensure_path(root)
    results = []
    for start in range(0, count, BATCH_SIZE):
        transaction = client.transaction()
        for number in range(start, min(start + BATCH_SIZE, count)):
            transaction.create(f"{root}/order:{number:05}")
        results.append(transaction.commit_async())
    _check(results)


def _check(results: Sequence[IAsyncResult]) -> None:
    for result in results:
        for outcome in result.get(timeout=scaled(60)):
            assert isinstance(outcome, str), outcome
