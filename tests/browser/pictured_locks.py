"""The locks of the screenshots in the documents, the same each time: a shop at three in the morning."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer, service
from django_zklock.zk import node_data, paths, queue
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.queue import Kind

MINUTE = 60.0
HOUR = 60 * MINUTE
ROOT = "/django_zklock"
# Larger than on a new server: tokens have this size where locks have been in use for a while.
ZXID = 28_117


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A contender in the queue of a key, which joined ``ago`` seconds before now."""

    key: str
    ago: float
    host: str
    pid: int
    work: Work
    kind: Kind = Kind.EXCLUSIVE
    limit: int | None = None
    revoked: str = ""


def task(name: str, number: int) -> Work:
    return Work(kind="task", name=name, id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{number}")))


SCENE = [
    Contender(key="nightly-report", ago=3.2 * HOUR, host="batch2", pid=944, work=Work(kind="command", name="report")),
    Contender(key="invoice:42", ago=41 * MINUTE, host="worker3", pid=71, work=task("billing.tasks.bill", 42)),
    Contender(key="invoice:42", ago=26 * MINUTE, host="worker1", pid=68, work=task("billing.tasks.bill", 43)),
    Contender(key="invoice:42", ago=9 * MINUTE, host="worker2", pid=70, work=task("billing.tasks.remind", 1)),
    Contender(key="invoice:42", ago=50, host="web1", pid=311, work=Work(kind="function", name="billing.views.cancel")),
    *(
        Contender(key="catalogue", ago=7 * MINUTE - 90 * n, host=f"web{n}", pid=300 + n, kind=Kind.READ, work=view)
        for n, view in enumerate([Work(kind="function", name="shop.views.browse")] * 3, start=1)
    ),
    Contender(
        key="catalogue", ago=64, host="batch1", pid=1204, kind=Kind.WRITE, work=task("shop.tasks.import_catalogue", 7)
    ),
    Contender(key="gpu", ago=13 * MINUTE, host="gpu1", pid=51, kind=Kind.LEASE, limit=2, work=task("ml.train", 1)),
    Contender(key="gpu", ago=12 * MINUTE, host="gpu2", pid=52, kind=Kind.LEASE, limit=2, work=task("ml.train", 2)),
    Contender(key="gpu", ago=35, host="gpu1", pid=53, kind=Kind.LEASE, limit=2, work=task("ml.train", 3)),
    Contender(
        key="export:customers",
        ago=22 * MINUTE,
        host="worker2",
        pid=70,
        work=task("crm.tasks.export", 5),
        revoked="blocks the release at four (root)",
    ),
    Contender(key="account:17", ago=3, host="worker1", pid=69, work=task("billing.tasks.settle", 17)),
]


@contextmanager
def played(server: ZooKeeperServer) -> Iterator[None]:
    """Create the node of each contender at its time, with one session for each process."""
    now = time.time()
    with ExitStack() as stack:
        clients: dict[tuple[str, int], KazooClient] = {}
        for contender in sorted(SCENE, key=lambda each: -each.ago):
            process = contender.host, contender.pid
            if process not in clients:
                clients[process] = stack.enter_context(_client(server))
            joined = now - contender.ago
            # The server takes the creation time of a node from its clock.
            with mock.patch.object(service, "_now", lambda joined=joined: round(joined * 1000)):
                stem = queue.name_prefix(queue.new_guid(), contender.kind, contender.limit)
                clients[process].create(
                    f"{ROOT}/{paths.escape(contender.key)}/{stem}",
                    _data(contender),
                    ephemeral=True,
                    sequence=True,
                    makepath=True,
                )
        yield


@contextmanager
def _client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _data(contender: Contender) -> bytes:
    data = Identity(host=contender.host, pid=contender.pid, work=contender.work).encode()
    return node_data.encode_revoke(data, contender.revoked) if contender.revoked else data
