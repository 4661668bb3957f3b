"""Helpers of tests of the Django layer: an ensemble, another owner of locks, and a receiver of signals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.observer import Observer

SIGNALS = ("acquired", "contended", "released", "lost", "revoked", "refused", "skipped")


@dataclass
class Ensemble:
    """The ensemble of the alias ``default`` of the project under test; that of ``absent`` does not exist."""

    root: str
    observer: Observer

    @property
    def pool(self) -> Pool:
        return connections["default"]

    def nodes(self, key: str) -> list[str]:
        """Return the names of the nodes in the queue of ``key``."""
        return self.observer.children(self.pool.path(key))

    def wait_empty(self, key: str) -> None:
        self.observer.wait_empty(self.pool.path(key))

    def wait_count(self, key: str, count: int) -> None:
        self.observer.wait_count(self.pool.path(key), count)

    def delete(self, held: Held) -> None:
        """Delete the node of a hold, as an operator does to break a lock."""
        self.observer.client.delete(held.node)

    def end_session(self) -> None:
        """End the session of the project under test, from outside."""
        self.observer.end_session(self.pool)


@dataclass
class OtherClient:
    """Another owner, with a session of its own, that acquires and releases locks on demand."""

    pool: Pool
    held: dict[str, Held] = field(default_factory=dict)

    def take(self, key: str) -> Held:
        """Acquire a lock in another thread, which then owns the hold."""
        lock = Lock(key, self.pool, work=lambda: Work(kind="label", name="the other client"))
        self.held[key] = Runner(lambda: lock.acquire(scaled(30))).result(40)
        return self.held[key]

    def release(self, key: str) -> None:
        self.held.pop(key).release(wait=True)

    def release_all(self) -> None:
        for key in list(self.held):
            self.release(key)


class Recorder:
    """Receives every signal, and keeps its arguments and thread."""

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
        """Wait for a signal and return the arguments of the last one of that name."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: name in self.names, 10), f"{name} was not sent, but {self.names}"
            return [facts for seen, facts, _ in self.seen if seen == name][-1]

    def thread(self, name: str) -> threading.Thread:
        self.facts(name)
        return [thread for seen, _, thread in self.seen if seen == name][-1]
