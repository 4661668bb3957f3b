"""Calls that are not sent, against a model: whatever dies or is lost, each of them is followed by a run, or is told.

Senders and workers are threads that go through the steps of :mod:`django_zklock.zk.ops.sent`, and may die between any
two of them; the broker is a list. Sessions end, connections break and replies are lost.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from django_zklock.exceptions import ZkLockError
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import sent
from django_zklock.zk.ops.sent import Mark, Removal
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import LONG_SESSION, scaled, wait_until

# So short that no later call makes up for one that was lost.
ROUNDS, SENDERS, WORKERS, CALLS = 15, 4, 2, 4
# Seconds: in some rounds so short that marks are taken over while their messages wait.
MAX_AGES, MAX_UNCONFIRMED = (3600.0, 3600.0, 0.1), 0.2


class Killed(Exception):  # noqa: N818 - what a process meets, and no error of its own
    """The process dies here."""


@dataclass
class Message:
    function: str
    mark: Mark
    acks_late: bool
    deliveries: int = 0


@dataclass
class Call:
    """A call whose sender has got the result object of a message. Times are of one clock."""

    function: str
    came: int
    message: str
    was_sent: bool


class Model:
    """What was called, sent and run, and what has become of the messages."""

    def __init__(self, number: int, pools: list[Pool], server: ZooKeeperServer, chance: random.Random) -> None:
        self.functions = (f"a{number}", f"b{number}")
        self.max_age = chance.choice(MAX_AGES)
        self.calls: list[Call] = []
        self.broker: list[Message] = []
        # Of each function, when its runs began.
        self.runs: dict[str, list[int]] = {function: [] for function in self.functions}
        # The ids of messages whose result says that they did not run; that the broker has lost, or a worker that had
        # acknowledged them: those are for the documents.
        self.told: set[str] = set()
        self.lost: set[str] = set()
        self.revoked: set[str] = set()
        self.errors: list[Exception] = []
        self.is_calm = False
        self.is_over = False
        self._guard = threading.Lock()
        self._ids = itertools.count(1)
        self._pools = pools
        self._server = server
        self._chance = chance

    def dies(self, share: float = 0.06) -> None:
        if not self.is_calm and self._chance.random() < share:
            raise Killed
        time.sleep(self._chance.choice([0, 0, 0, 0.001, 0.005, 0.02]))

    # A sender.

    def call(self, function: str) -> None:
        """Make one call, as :func:`django_zklock.contrib.celery.unique.send` does."""
        pool = self._chance.choice(self._pools)
        mark = sent.new_mark(pool, f"m{next(self._ids)}", function)
        came = time.monotonic_ns()
        self.dies()
        data = sent.encode(key=function, task=function, max_age=self.max_age)
        try:
            found = sent.claim(pool, mark, data, max_age=self.max_age)
        except ZkLockError:
            found = None
        if found not in {None, mark.id}:
            self.calls.append(Call(function, came, str(found), was_sent=False))
            return
        self.dies()
        if not self.is_calm and self._chance.random() < 0.05:
            # The broker refuses; the error is raised.
            Removal(pool.session(mark.path), mark).start()
            return
        self.broker.append(Message(function, mark, acks_late=self._chance.random() < 0.7))
        self.dies()
        if found is not None:
            sent.confirm(pool, mark)
        self.calls.append(Call(function, came, mark.id, was_sent=True))

    # A worker.

    def take(self) -> Message | None:
        with self._guard:
            if not self.broker:
                return None
            return self.broker.pop(self._chance.randrange(len(self.broker)))

    def serve(self, message: Message) -> None:
        """Do with a message what a worker does."""
        pool, mark, has_begun = self._chance.choice(self._pools), message.mark, False
        try:
            self.dies()
            if mark.id in self.revoked:
                self.told.add(mark.id)
                Removal(pool.session(mark.path), mark).start()
                return
            chosen = self._chance.random()
            if not self.is_calm and chosen < 0.1:
                # Its lock is taken: it comes back later, or was returned by the gate.
                self.broker.append(message)
                return
            self._remove(pool, mark)
            self.dies()
            if not self.is_calm and chosen < 0.2:
                # Refused, by an attempt that began when the mark was gone.
                self.told.add(mark.id)
                return
            self.runs[message.function].append(time.monotonic_ns())
            has_begun = True
            self.dies()
        except Killed:
            if message.acks_late:
                # It is delivered again.
                self.broker.append(message)
            elif not has_begun:
                self.lost.add(mark.id)

    def _remove(self, pool: Pool, mark: Mark) -> None:
        while True:
            # A body that cannot remove its mark does not begin.
            with contextlib.suppress(ZkLockError):
                sent.remove(pool, mark, timeout=scaled(1))
                return

    # Everything else.

    def disturb(self) -> None:
        """Let one thing go wrong at the broker, in the network, or at the ensemble."""
        match self._chance.randrange(8):
            case 0 | 1:
                session = self._chance.choice(self._pools).sessions()
                self._server.faults.drop(session[0].id if session else None)
            case 2 | 3 | 4:
                self._server.faults.cut_reply(self._chance.choice(["multi", "setData", "getChildren"]))
            case 5:
                session = self._chance.choice(self._pools).sessions()
                self._server.faults.expire(session[0].id if session else None)
            case 6:
                if (message := self.take()) is not None:
                    self.lost.add(message.mark.id)
            case _:
                with self._guard:
                    self.revoked.update(message.mark.id for message in self.broker[:1])

    def run(self, step: str) -> None:
        """Be a thread of senders, or of workers; a process that dies is followed by the next one."""
        try:
            if step == "send":
                for _ in range(CALLS):
                    with contextlib.suppress(Killed):
                        self.call(self._chance.choice(self.functions))
                return
            while not self.is_over:
                time.sleep(0.001 if self.is_calm else self._chance.choice([0.001, 0.01, 0.03]))
                if (message := self.take()) is not None:
                    self.serve(message)
        except Exception as error:  # noqa: BLE001 - for the test
            self.errors.append(error)

    def storm(self) -> None:
        """Let everything happen at once, and then nothing any more."""
        senders = [threading.Thread(target=self.run, args=("send",)) for _ in range(SENDERS)]
        workers = [threading.Thread(target=self.run, args=("work",)) for _ in range(WORKERS)]
        for thread in senders + workers:
            thread.start()
        while any(thread.is_alive() for thread in senders):
            time.sleep(self._chance.choice([0.005, 0.02, 0.05]))
            self.disturb()
        self.is_calm = True
        self._server.faults.heal()
        wait_until(lambda: not self.broker, 60, "every message is served")
        # A mark whose message has begun would keep these from being sent.
        for function in self.functions:
            self.call(function)
        wait_until(lambda: not self.broker, 60, "every message is served")
        self.is_over = True
        for thread in workers:
            thread.join(scaled(60))

    def swallowed(self) -> list[Call]:
        """Return the calls without a run after them whose senders are not told, and which no document names."""
        return [
            call
            for call in self.calls
            if call.message not in self.told | self.lost
            and not any(began > call.came for began in self.runs[call.function])
        ]


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Return a server of the test's own."""
    with ZooKeeperServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.shows(
    "guarantees#a-call-that-is-not-sent-is-followed-by-a-run",
    "faults#a-sender-or-a-worker-dies-between-two-steps-of-a-call-that-is-not-sent-twice",
)
@pytest.mark.parametrize("seed", range(8))
def test_every_call_is_followed_by_a_run(
    server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After each call that was not sent a run begins, or its result says that none does."""
    monkeypatch.setattr(sent, "MAX_UNCONFIRMED", MAX_UNCONFIRMED)
    chance = random.Random(seed)
    # Sessions end only where the model lets them end.
    pools = [make_pool(session_timeout=LONG_SESSION) for _ in range(3)]
    saved = 0
    for number in range(ROUNDS):
        model = Model(number, pools, server, chance)
        model.storm()
        assert model.errors == []
        assert model.swallowed() == [], f"{model.runs}"
        saved += sum(not call.was_sent for call in model.calls)
    assert saved > 0
