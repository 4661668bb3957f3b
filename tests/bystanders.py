"""What tests of the Django layer look through: an ensemble, somebody else who holds locks, a receiver of signals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.zk.onlooker import Onlooker
from tests.zk.runner import Runner

SIGNALS = ("acquired", "contended", "released", "lost", "revoked", "refused", "skipped")


@dataclass
class Ensemble:
    """What the project under test talks to as ``default``, and one that is not there as ``absent``."""

    root: str
    onlooker: Onlooker

    @property
    def pool(self) -> Pool:
        return connections["default"]

    def nodes(self, key: str) -> list[str]:
        """Give who stands in the line of ``key``."""
        return self.onlooker.children(self.pool.path(key))

    def wait_empty(self, key: str) -> None:
        self.onlooker.wait_empty(self.pool.path(key))

    def wait_count(self, key: str, count: int) -> None:
        self.onlooker.wait_count(self.pool.path(key), count)

    def delete(self, held: Held) -> None:
        """Delete the node of a hold, as an operator does who breaks a lock."""
        self.onlooker.client.delete(held.node)

    def end_session(self) -> None:
        """End the session of the project under test, from outside."""
        self.onlooker.end_session(self.pool)


@dataclass
class Stranger:
    """Somebody else's process, which takes locks and gives them back when told."""

    pool: Pool
    held: dict[str, Held] = field(default_factory=dict)

    def take(self, key: str) -> Held:
        """Take a lock; in a thread of its own, since a hold belongs to who has acquired it."""
        lock = Lock(key, self.pool, work=lambda: Work(kind="label", name="the stranger"))
        self.held[key] = Runner(lambda: lock.acquire(10)).result(15)
        return self.held[key]

    def release(self, key: str) -> None:
        self.held.pop(key).release(wait=True)

    def release_all(self) -> None:
        for key in list(self.held):
            self.release(key)


class Recorder:
    """Receives every signal, and keeps what it was told and in which thread."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any], threading.Thread]] = []
        self._arrived = threading.Condition()
        self._receivers: list[tuple[Signal, Callable[..., None]]] = []

    def connect(self) -> None:
        for name in SIGNALS:
            self._connect(name, getattr(signals, name))

    def _connect(self, name: str, signal: Signal) -> None:
        def receive(signal: Signal, **facts: Any) -> None:
            with self._arrived:
                self.seen.append((name, facts, threading.current_thread()))
                self._arrived.notify_all()

        signal.connect(receive, weak=False)
        self._receivers.append((signal, receive))

    def disconnect(self) -> None:
        for signal, receive in self._receivers:
            signal.disconnect(receive)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.seen]

    def facts(self, name: str) -> dict[str, Any]:
        """Wait for a signal and give what the last one of that name said."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: name in self.names, 10), f"{name} was not sent, but {self.names}"
            return [facts for seen, facts, _ in self.seen if seen == name][-1]

    def thread(self, name: str) -> threading.Thread:
        self.facts(name)
        return [thread for seen, _, thread in self.seen if seen == name][-1]
