"""The locks of the screenshots in the documents, the same each time: a shop at three in the morning."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from unittest import mock

from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server import service
from django_zklock.zk import node_data, paths, queue
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import trail
from django_zklock.zk.ops.trail import Action
from django_zklock.zk.queue import Kind
from tests.toolbox.timing import scaled

MINUTE = 60.0
HOUR = 60 * MINUTE
ROOT = "/django_zklock"
# Larger than on a new server: tokens have this size where locks have been in use for a while.
ZXID = 28_117
SESSION = 0x100A206A6650000
NOW = datetime(2026, 11, 20, 3, 7, 12, tzinfo=UTC).timestamp()


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
    # Whether it joined the queue first, so that it is known when it was granted the lock.
    first: bool = True


def task(name: str, number: int, child: int = 0, arguments: str = "") -> Work:
    """Return a task; ``child`` runs it, if it runs."""
    task_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{number}"))
    return Work(kind="task", name=name, id=task_id, child=child, arguments=arguments)


# The lock with a history.
ASKED = "export:customers"

SCENE = [
    Contender(key="nightly-report", ago=3.2 * HOUR, host="batch2", pid=944, work=Work(kind="command", name="report")),
    Contender(
        key="invoice:42",
        ago=41 * MINUTE,
        host="worker3",
        pid=71,
        work=task("billing.tasks.bill", 42, 94, "invoice_id=42"),
        first=False,
    ),
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
    Contender(key="gpu", ago=13 * MINUTE, host="gpu1", pid=51, kind=Kind.PERMIT, limit=2, work=task("ml.train", 1, 61)),
    Contender(key="gpu", ago=12 * MINUTE, host="gpu2", pid=52, kind=Kind.PERMIT, limit=2, work=task("ml.train", 2, 62)),
    Contender(key="gpu", ago=35, host="gpu1", pid=53, kind=Kind.PERMIT, limit=2, work=task("ml.train", 3)),
    Contender(
        key=ASKED,
        ago=22 * MINUTE,
        host="worker2",
        pid=70,
        work=task("crm.tasks.export", 5, 85),
        revoked="blocks the release at four (root)",
    ),
    Contender(key="account:17", ago=3, host="worker1", pid=69, work=task("billing.tasks.settle", 17, 96)),
]


@contextmanager
def played(server: ZooKeeperServer) -> Iterator[None]:
    """Create the node of each contender at its time, with one session for each process."""
    server.service.sessions._last = SESSION
    with ExitStack() as stack:
        clients: dict[tuple[str, int], KazooClient] = {}
        for contender in sorted(SCENE, key=lambda each: -each.ago):
            process = contender.host, contender.pid
            if process not in clients:
                clients[process] = stack.enter_context(connect(server))
            client = clients[process]
            if not contender.first:
                client.delete(join(client, contender))
            path = join(client, contender)
            if contender.revoked:
                asked = path, client.exists(path).czxid
        data = b""
        for action in _history(*asked):
            data = trail.added(data, action)
        client.create(f"{ROOT}/{paths.TRAIL}", data)
        yield


def _history(path: str, token: int) -> Iterator[Action]:
    """Yield what was done to the lock, the last of it to its present holder."""
    facts = {"key": ASKED, "lock": paths.escape(ASKED)}
    task = "task crm.tasks.export [0f8fad5b-d9cb-469f-a165-70867728950e] (pid 85 on worker2, worker celery@worker2)"
    yield Action(
        at=NOW - 7 * HOUR,
        what=trail.BROKEN,
        node="_c_1-lock-0000000000",
        token=token - 2,
        holder=task,
        by="ada@batch2",
        why="The file server does not answer, and the month has to be closed before six",
        **facts,
    )
    yield Action(
        at=NOW - HOUR,
        what=trail.REQUESTED,
        node="_c_2-lock-0000000001",
        token=token - 1,
        holder="function crm.views.export in command runserver (pid 944 on web1)",
        by="pid 17 on deploy1",
        why="deploy",
        **facts,
    )
    node = path.rpartition("/")[2]
    yield Action(
        at=NOW - MINUTE,
        what=trail.REQUESTED,
        node=node,
        token=token,
        holder=task,
        by="root",
        why="blocks the release at four",
        **facts,
    )


def join(client: KazooClient, contender: Contender) -> str:
    """Create the node of a contender, and return its path."""
    joined = round((NOW - contender.ago) * 1000)
    guid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{contender.key}/{contender.host}/{contender.pid}/{contender.ago}"))
    stem = queue.name_prefix(guid, contender.kind, contender.limit)
    # The server takes the creation time of a node from its clock.
    with mock.patch.object(service, "_now", return_value=joined):
        path: str = client.create(
            f"{ROOT}/{paths.escape(contender.key)}/{stem}",
            _data(contender),
            ephemeral=True,
            sequence=True,
            makepath=True,
        )
    return path


@contextmanager
def connect(server: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts)
    client.start(timeout=scaled(20))
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _data(contender: Contender) -> bytes:
    work = contender.work
    if work.kind == "task":
        work = dataclasses.replace(work, worker=f"celery@{contender.host}")
    data = Identity(host=contender.host, pid=contender.pid, work=work).encode()
    return node_data.encode_revoke(data, contender.revoked) if contender.revoked else data
