"""Many locks that are held, made at once."""

from __future__ import annotations

from kazoo.client import KazooClient

from django_zklock.zk.node_data import Identity, Work
from tests.toolbox.timing import scaled

# So many nodes share a transaction.
BATCH_SIZE = 500


def hold_many(client: KazooClient, root: str, count: int) -> None:
    """Hold ``count`` locks under ``root``, `invoice:00000` and so on, in the session of ``client``."""
    client.ensure_path(root)
    nodes = []
    for number in range(count):
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
    for result in results:
        for outcome in result.get(timeout=scaled(60)):
            assert isinstance(outcome, str), outcome
