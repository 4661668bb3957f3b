"""Contenders that take locks with other recipes: Apache Curator's, in Java, and kazoo's."""

from __future__ import annotations

import uuid

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock, ReadLock, Semaphore, WriteLock

from tests.toolbox.curator.clients import Curator
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled

# What each of kazoo's locks must be told to see Curator's nodes and ours: the names of those that are in its way.
KAZOO_LOCKS: dict[str, tuple[type[Lock], list[str]]] = {
    "mutex": (Lock, ["-lock-", "__WRIT__", "__READ__", "-lease-"]),
    "write": (WriteLock, ["-lock-", "__WRIT__", "__READ__", "-lease-"]),
    "read": (ReadLock, ["-lock-", "__WRIT__", "-lease-"]),
}
CURATOR_LABELS = {"mutex": "lock-", "write": "__WRIT__", "read": "__READ__"}


class OfCurator:
    """A contender of Curator's, of one kind, at one path; ``start`` begins to wait, and ``tries`` does not wait."""

    def __init__(self, program: Curator, hosts: str, kind: str, path: str) -> None:
        self.client = program.connect(hosts)
        self._lock = f"{kind} {path}"
        self._closed = False

    def acquire(self) -> None:
        self.start()
        self.wait_granted()

    def start(self) -> None:
        self.client.send(f"acquire {self._lock}")

    def wait_granted(self) -> None:
        assert self.client.answer() == "acquired"

    @property
    def waits(self) -> bool:
        return self.client.answers.empty()

    def tries(self) -> bool:
        return self.client.ask(f"try {self._lock} 100") == "acquired"

    def release(self) -> None:
        assert self.client.ask(f"release {self._lock}") == "released"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.client.close()
            self.client.wait_closed()


class OfKazoo:
    """One of kazoo's."""

    def __init__(self, hosts: str, kind: str, path: str) -> None:
        self.client = KazooClient(hosts=hosts)
        self.client.start(timeout=scaled(20))
        self._lock: Lock | Semaphore = (
            Semaphore(self.client, path, "kazoo") if kind == "semaphore" else kazoo_lock(self.client, kind, path)
        )
        self._waiting: Runner | None = None

    def acquire(self) -> None:
        self.start()
        self.wait_granted()

    def start(self) -> None:
        self._waiting = Runner(lambda: self._lock.acquire(timeout=scaled(30)))

    def wait_granted(self) -> None:
        assert self._waiting is not None
        assert self._waiting.result(20) is True

    @property
    def waits(self) -> bool:
        assert self._waiting is not None
        return self._waiting.running

    def tries(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        assert self._lock.release()

    def close(self) -> None:
        self.client.stop()
        self.client.close()


Other = OfCurator | OfKazoo


def kazoo_lock(client: KazooClient, kind: str, path: str) -> Lock:
    """Return a lock of kazoo's that sees our nodes and Curator's."""
    recipe, others = KAZOO_LOCKS[kind]
    return recipe(client, path, "kazoo", extra_lock_patterns=others)


def visible_kazoo_lock(client: KazooClient, kind: str, path: str) -> Lock:
    """Return one that Curator sees too: kazoo has no option for the name of its node, but the name can be set."""
    lock = kazoo_lock(client, kind, path)
    lock.prefix = f"_c_{uuid.uuid4()}-{CURATOR_LABELS[kind]}"
    lock.create_path = f"{path}/{lock.prefix}"
    return lock
