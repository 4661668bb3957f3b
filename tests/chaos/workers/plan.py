"""The tasks that are sent, and when, all drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kombu import Exchange, Queue

REDIS, RABBITMQ = BROKERS = ("redis", "rabbitmq")
POLICIES = ("none", "wait", "timeout", "raise", "skip", "retry", "coalesce")
KINDS = ("exclusive", "read", "write", "semaphore", "several")
# The limit of the semaphores here.
LIMIT = 2
# Seconds for which a task waits under "timeout", and is retried under "retry".
TIMEOUT, RETRY_TIMEOUT = 3.0, 30.0

_WEIGHTS = {"none": 4, "wait": 6, "timeout": 2, "raise": 2, "skip": 2, "retry": 2, "coalesce": 2}
# "several" and "exclusive" meet on the same keys.
_KEYS = {
    "exclusive": ("job-x", 4),
    "several": ("job-x", 4),
    "read": ("job-rw", 2),
    "write": ("job-rw", 2),
    "semaphore": ("job-s", 2),
}
# Only tasks of this policy wait for these keys, so that the model knows for which task another was skipped.
_COALESCED_KEYS = ("job-c", 2)

# Seconds that a body takes. The longest outlast a lease; with fewer of them hardly a killed child has a lock.
_LENGTHS, _LENGTH_WEIGHTS = ((0.005, 0.05), (0.1, 1.5), (3.0, 6.0)), (75, 20, 5)

# Seconds from one burst to the next, and the number of tasks in a burst.
_BETWEEN_BURSTS = 9.0
_BURST = (10, 35)


@dataclass(frozen=True, kw_only=True)
class Send:
    """One task; times are seconds, ``at`` and ``revoked`` from the start and from the sending."""

    at: float
    number: int
    broker: str
    policy: str
    kind: str
    late: bool
    failures: int
    keys: tuple[str, ...]
    lasts: float
    countdown: float | None
    expires: float | None
    revoked: float | None
    terminate: bool
    priority: int | None

    @property
    def task(self) -> str:
        """The name under which workers know it."""
        return task_name(self.policy, self.kind, late=self.late, retrying=self.failures > 0)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Send:
        """Return the object for the result of :func:`dataclasses.asdict` that JSON has stored."""
        return cls(**{**facts, "keys": tuple(facts["keys"])})


def make_queue(name: str, exchange: str, arguments: dict[str, Any]) -> Queue:
    """Return a queue with an exchange of its own, of the type ``exchange``, as workers and senders declare it."""
    return Queue(name, Exchange(name, type=exchange), routing_key=name, queue_arguments=arguments)


def task_name(policy: str, kind: str, *, late: bool, retrying: bool) -> str:
    """Return the name of the task of these properties."""
    return f"chaos.{policy}.{kind}.{'late' if late else 'early'}{'.retrying' if retrying else ''}"


def kinds_of(policy: str) -> tuple[str, ...]:
    """Return the kinds of locks that tasks of ``policy`` take."""
    if policy == "none":
        return ("exclusive",)
    return ("exclusive", "write") if policy == "coalesce" else KINDS


def draw(seed: str, seconds: float, *, rate: float) -> tuple[Send, ...]:
    """Draw the tasks of ``seconds``, ``rate`` of them a second."""
    return tuple(_draw_sends(random.Random(f"{seed} sends"), seconds, rate))


def _draw_sends(chance: random.Random, seconds: float, rate: float) -> Iterator[Send]:
    at, number = 0.0, 0
    while (at := at + chance.expovariate(rate)) < seconds:
        first = _draw_send(chance, at, number)
        yield first
        number += 1
        if chance.random() < 1 / (rate * _BETWEEN_BURSTS):
            # Tasks of the same kind, which contend for one key, or of all kinds.
            alike = chance.random() < 0.5
            for _ in range(chance.randrange(*_BURST)):
                another = _draw_send(chance, at, number)
                shared: dict[str, Any] = {"broker": first.broker}
                if alike:
                    shared |= {name: getattr(first, name) for name in ("policy", "kind", "late", "keys", "lasts")}
                yield replace(another, **shared)
                number += 1


def _draw_send(chance: random.Random, at: float, number: int) -> Send:
    policy = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    kind = chance.choice(kinds_of(policy))
    return Send(
        at=at,
        number=number,
        broker=chance.choice(BROKERS),
        policy=policy,
        kind=kind,
        late=chance.random() < 0.75,
        failures=chance.choice((1, 1, 2)) if chance.random() < 0.12 else 0,
        keys=_draw_keys(chance, policy, kind),
        lasts=chance.uniform(*chance.choices(_LENGTHS, _LENGTH_WEIGHTS)[0]),
        # Where RabbitMQ delays messages, Celery refuses less than a second.
        countdown=chance.uniform(1.0, 6.0) if chance.random() < 0.1 else None,
        expires=chance.uniform(0.3, 8.0) if chance.random() < 0.08 else None,
        revoked=chance.uniform(0.0, 2.0) if chance.random() < 0.08 else None,
        terminate=chance.random() < 0.3,
        priority=chance.randrange(10) if chance.random() < 0.3 else None,
    )


def _draw_keys(chance: random.Random, policy: str, kind: str) -> tuple[str, ...]:
    name, count = _COALESCED_KEYS if policy == "coalesce" else _KEYS[kind]
    wanted = chance.choice((2, 2, 3)) if kind == "several" else 1
    return tuple(f"{name}{number}" for number in chance.sample(range(count), wanted))
