"""Every public call as users write it: type-checked, and never run.

A name that changes its meaning, or a decorator that loses a signature, fails the type check here.
"""

from __future__ import annotations

import datetime as dt
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from django.db import models
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from opentelemetry.metrics import MeterProvider

from django_zklock import (
    AsyncUnsafe,
    Busy,
    Cancellation,
    Conflict,
    FencedModel,
    Held,
    Identity,
    Lock,
    LockCancelled,
    LockConflict,
    LockLost,
    LockTimeout,
    NotHeld,
    Skipped,
    ZkLockError,
    ZooKeeperUnavailable,
    afenced_update,
    current_lock,
    fenced_update,
    operations,
    signals,
    testing,
    zk_lock,
    zk_locked,
)
from django_zklock.contrib.celery import RetryLater
from django_zklock.contrib.opentelemetry import instrument, uninstrument
from django_zklock.testing import (
    BlackHole,
    Cut,
    Fault,
    Faults,
    LoggedRequest,
    Opcode,
    RequestLog,
    Sandbox,
    SessionInfo,
    ZooKeeperServer,
)

# The decorator keeps signatures.


@zk_locked("invoice:{invoice_id}")
def bill(invoice_id: int, *, force: bool = False) -> str:
    return f"{invoice_id}{force}"


assert_type(bill(1, force=True), str)
bill("1")  # type: ignore[arg-type]
bill(1, True)  # type: ignore[call-arg]
plain: Callable[[int], str] = bill
# The body without its lock, for tests.
inspect.unwrap(bill)(42)


@zk_locked(lambda invoice_id: invoice_id)
async def abill(invoice_id: int) -> str:
    return str(invoice_id)


later: Callable[[int], Coroutine[Any, Any, str]] = abill
wrong: Callable[[str], Coroutine[Any, Any, str]] = abill  # type: ignore[assignment]


class Service:
    @zk_locked("service:{number}")
    def method(self, number: int) -> int:
        return number

    @classmethod
    @zk_locked("service:{number}")
    def inner_classmethod(cls, number: int) -> int:
        return number

    @zk_locked("service:{number}")
    @classmethod
    def outer_classmethod(cls, number: int) -> int:
        return number

    @staticmethod
    @zk_locked("service:{number}")
    def inner_staticmethod(number: int) -> int:
        return number

    @zk_locked("service:{number}")
    @staticmethod
    def outer_staticmethod(number: int) -> int:
        return number


assert_type(Service().method(1), int)
assert_type(Service.inner_classmethod(1), int)
assert_type(Service.outer_classmethod(1), int)
assert_type(Service.inner_staticmethod(1), int)
assert_type(Service.outer_staticmethod(1), int)
Service().method("1")  # type: ignore[arg-type]


@zk_locked("nightly", on_conflict="skip")
class Command(BaseCommand):
    @zk_locked("nightly", on_conflict="skip")
    def handle(self, *args: Any, **options: Any) -> str | None:
        return None


assert_type(Command(), Command)


# Every option, and what is none.


def decide(conflict: Conflict) -> str:
    assert_type(conflict.key, str)
    assert_type(conflict.function, str)
    assert_type(conflict.holder, Identity | None)
    assert_type(conflict.waited, float | None)
    assert_type(conflict.args, tuple[Any, ...])
    assert_type(conflict.kwargs, dict[str, Any])
    raise conflict.error()


def make_key(*args: Any) -> str:
    return str(args)


def make_keys(x: int, y: int) -> list[str]:
    return [str(x), str(y)]


zk_locked(
    make_key,
    reentrant=False,
    using="reports",
    timeout=dt.timedelta(seconds=5),
    on_conflict=decide,
    on_lost="ignore",
    on_unavailable="run",
)
zk_locked("k", on_conflict=RetryLater(max_wait=60, delay=0.5, max_delay=5), on_unavailable=RetryLater())
zk_locked("k", timeout=None, on_conflict="wait", on_lost="raise", on_unavailable="raise")
zk_locked("k", timeout=0, on_conflict="skip", on_unavailable="skip")
zk_locked("k", timeout=0.5, on_conflict="raise")
zk_locked("k", on_conflict="retry", on_unavailable="retry")
zk_locked("k", on_unavailable=decide)
zk_locked("k", on_conflict="coalesce", on_lost="terminate")
zk_locked("k", unique_until="start")
zk_locked("k", mode="read", on_lost="interrupt")
zk_locked("k", limit=4)
zk_locked(["a:{x}", "b:{y}"], mode="write")
zk_locked(("a:{x}", "b:{y}"))
zk_locked(make_keys, template="cells")
zk_locked("k", mode="shared")  # type: ignore[call-overload]
zk_locked("k", limit="4")  # type: ignore[call-overload]
zk_locked([1, 2])  # type: ignore[list-item]
zk_locked("k", on_conflict="explode")  # type: ignore[call-overload]
zk_locked("k", on_lost="explode")  # type: ignore[call-overload]
zk_locked("k", on_unavailable="explode")  # type: ignore[call-overload]
zk_locked("k", timeout="5")  # type: ignore[call-overload]
zk_locked("k", template=["k"])  # type: ignore[call-overload]
zk_locked("k", 5)  # type: ignore[call-overload]
zk_locked()  # type: ignore[call-overload]
zk_locked(42)  # type: ignore[call-overload]
zk_locked("k", atomic=True)
zk_locked("k", atomic="reports")
zk_locked("k", atomic=None)  # type: ignore[call-overload]
zk_lock("k", release="commit")
zk_lock("k", release="rollback")  # type: ignore[arg-type]


class Account(FencedModel):
    balance = models.BigIntegerField(default=0)

    class Meta:
        app_label = "billing"


def write(account: Account, held: Held) -> None:
    assert_type(account.fence, int)
    account.save()
    account.save(held=held, update_fields=["balance"])
    assert_type(fenced_update(Account._default_manager.all(), balance=F("balance") + 1), int)
    assert_type(fenced_update(Account._default_manager.all(), held, balance=1), int)
    fenced_update(User._default_manager.all(), email="")  # type: ignore[type-var]


async def awrite(account: Account, held: Held) -> None:
    await account.asave(held=held)
    assert_type(await afenced_update(Account._default_manager.all(), held, balance=1), int)
    await afenced_update(User._default_manager.all(), email="")  # type: ignore[type-var]


# The lock.


def block() -> None:
    lock = zk_lock("invoice:42", reentrant=False, using="reports")
    assert_type(lock, Lock)
    assert_type(lock.key, str)
    assert_type(lock.keys, tuple[str, ...])
    assert_type(zk_lock("invoice:42", template="invoice:{invoice_id}").template, str | None)
    assert_type(lock.paths, tuple[str, ...])
    assert_type(lock.holders(), tuple[Identity | None, ...])
    with lock as held:
        assert_type(held, Held)
        assert_type(held.key, str)
        assert_type(held.token, int)
        assert_type(held.node, str)
        assert_type(held.since, float)
        assert_type(held.waited, float)
        assert_type(held.lost, bool)
        assert_type(held.keys, tuple[str, ...])
        assert_type(held.tokens, dict[str, int])
        assert_type(held.revoked, str | None)
        held.check()
    assert_type(lock.acquire(), Held)
    assert_type(lock.acquire(timeout=5), Held)
    assert_type(lock.acquire(dt.timedelta(seconds=5)), Held)
    assert_type(lock.try_acquire(), Held | None)
    cancellation = Cancellation()
    assert_type(lock.acquire(cancellation=cancellation), Held)
    assert_type(lock.acquire(5, cancellation=None), Held)
    assert_type(cancellation.cancelled, bool)
    cancellation.cancel()
    lock.acquire(cancellation=threading.Event())  # type: ignore[arg-type]
    lock.cancel()  # type: ignore[attr-defined]
    with lock.acquire(5) as held:
        held.release()
        held.release(wait=True)
    assert_type(current_lock(), Held | None)
    assert_type(current_lock("k"), Held | None)
    assert_type(current_lock("k", using="reports"), Held | None)
    assert_type(current_lock(using="reports"), Held | None)
    zk_lock(42)  # type: ignore[arg-type]
    assert_type(zk_lock(["a", "b"], mode="write"), Lock)
    zk_lock(("a", "b"), mode="read")
    zk_lock("k", limit=4)
    zk_lock("k", label="month end")
    zk_lock("k", label=7)  # type: ignore[arg-type]
    zk_lock("k", timeout=5)
    zk_lock("k", timeout=dt.timedelta(seconds=5))
    zk_lock("k", timeout=None)
    zk_lock("k", timeout="5")  # type: ignore[arg-type]
    zk_lock("k", work=lambda: None)  # type: ignore[arg-type]
    zk_lock("k", expire=60)  # type: ignore[arg-type]
    lock.acquire(blocking=False)  # type: ignore[arg-type]
    lock.release()  # type: ignore[attr-defined]
    held.extend()  # type: ignore[attr-defined]
    lock.acquire("5")  # type: ignore[arg-type]
    zk_lock([1])  # type: ignore[list-item]
    zk_lock("k", mode="shared")  # type: ignore[arg-type]
    zk_lock("k", limit="4")  # type: ignore[arg-type]


async def ablock() -> None:
    lock = zk_lock("invoice:42")
    async with lock as held:
        assert_type(held, Held)
    assert_type(await lock.aacquire(), Held)
    assert_type(await lock.aacquire(timeout=5), Held)
    assert_type(await lock.aacquire(cancellation=Cancellation()), Held)
    assert_type(await lock.atry_acquire(), Held | None)
    assert_type(await lock.aholders(), tuple[Identity | None, ...])
    held = await lock.aacquire()
    await held.arelease()
    async with await lock.aacquire() as held:
        assert_type(held, Held)


# Errors and signals.


def errors() -> None:
    try:
        block()
    except (AsyncUnsafe, LockCancelled, LockTimeout, LockConflict, LockLost, NotHeld, ZooKeeperUnavailable) as error:
        base: ZkLockError = error
        assert_type(base.key, str | None)
        assert_type(base.timeout, float | None)
        assert_type(base.holder, Identity | None)
    builtin: tuple[type[TimeoutError], type[RuntimeError], type[ConnectionError]] = (
        LockTimeout,
        NotHeld,
        ZooKeeperUnavailable,
    )
    del builtin


def receive(key: str, alias: str, template: str | None, kind: str, held: Held, **_: Any) -> None: ...


for signal in (signals.acquired, signals.contended, signals.released, signals.lost, signals.revoked, signals.skipped):
    signal.connect(receive)


# Metrics.


def measure(provider: MeterProvider) -> None:
    instrument()
    instrument(provider)
    instrument(meter_provider=provider)
    uninstrument()
    instrument("console")  # type: ignore[arg-type]


# The server for tests.


def sandbox() -> None:
    with Sandbox() as place, place.held_elsewhere("invoice:42", using="reports") as held:
        assert_type(place, Sandbox)
        assert_type(place.server, ZooKeeperServer)
        assert_type(place.hosts, str)
        assert_type(place.root, str)
        assert_type(place.faults, Faults)
        assert_type(place.requests, RequestLog)
        assert_type(place.sessions(), list[SessionInfo])
        assert_type(place.paths(), list[str])
        assert_type(held, Held)
        assert_type(place.owner(held.node), int)
        place.lose(held)
        place.lose(held, timeout=5)
    Sandbox(ZooKeeperServer())
    Sandbox("127.0.0.1:2181")  # type: ignore[arg-type]
    testing.Sandboxx()  # type: ignore[attr-defined]


def serve() -> None:
    with ZooKeeperServer(
        host="127.0.0.1", port=0, min_session_timeout=1, max_session_timeout=5, sessionless_timeout=1, reap_interval=0.5
    ) as server:
        assert_type(server, ZooKeeperServer)
        assert_type(server.address, tuple[str, int])
        assert_type(server.hosts, str)
        assert_type(server.running, bool)
        assert_type(server.paths("/shop"), list[str])
        for session in server.sessions():
            assert_type(session.id, int)
            assert_type(session.timeout, float)
            assert_type(session.connected, bool)
            assert_type(session.ephemerals, tuple[str, ...])
        server.wait_for_end(server.owner("/node"), timeout=1)
        server.stop()
        server.start()
        server.close()
    ZooKeeperServer("127.0.0.1")  # type: ignore[call-arg]


def hurt(faults: Faults, session: int) -> None:
    assert_type(faults.expire(session), int)
    assert_type(faults.drop(), int)
    assert_type(faults.refuse(), Fault)
    assert_type(faults.lag_reads(zxids=2), Fault)
    assert_type(faults.reap("/node"), bool)
    faults.set_sequence("/node", 2**31 - 1)
    with faults.delay(0.1, direction="replies") as fault:
        assert_type(fault, Fault)
        fault.end()
    with faults.black_hole("requests", session=session) as hole:
        assert_type(hole, BlackHole)
        assert_type(hole.requests, RequestLog)
    faults.black_hole("sideways")  # type: ignore[arg-type]
    cut = faults.cut_reply(Opcode.CREATE2, after_bytes=17, session=session)
    assert_type(cut, Cut)
    cut.wait(timeout=1)
    faults.heal()


def count(requests: RequestLog) -> None:
    for request in requests.all():
        assert_type(request, LoggedRequest)
        assert_type(request.opcode, Opcode)
        assert_type(request.opcode.label, str)
        assert_type(request.path, str | None)
        assert_type((request.session, request.xid), tuple[int, int])
    assert_type(requests.count("getData"), int)
    assert_type(requests.counts(), dict[str, int])
    requests.wait_for(Opcode.named("create2"), 2, path="/node", timeout=1)
    requests.clear()


# A call that may be skipped returns what a skipped call returns.


@zk_locked("invoice:{invoice_id}", on_conflict="skip")
def skipping(invoice_id: int) -> float:
    return float(invoice_id)


assert_type(skipping(1), float | Skipped)
skipping("1")  # type: ignore[arg-type]


@zk_locked("invoice:{invoice_id}", on_unavailable="skip")
async def askipping(invoice_id: int) -> float:
    return float(invoice_id)


async def await_it() -> None:
    assert_type(await askipping(1), float | Skipped)


@zk_locked("invoice:{invoice_id}", on_conflict="coalesce")
def coalescing(invoice_id: int) -> float:
    return float(invoice_id)


assert_type(coalescing(1), float | Skipped)


class SkippingService:
    @zk_locked("service:{number}", on_conflict="skip")
    def method(self, number: int) -> int:
        return number

    @zk_locked("service:{number}", on_conflict="skip")
    @classmethod
    def outer_classmethod(cls, number: int) -> int:
        return number


assert_type(SkippingService().method(1), int | Skipped)
assert_type(SkippingService.outer_classmethod(1), int | Skipped)


@zk_locked("pay:{invoice_id}", on_conflict="skip")
def view(request: HttpRequest, invoice_id: int) -> JsonResponse:
    return JsonResponse({})


def respond(request: HttpRequest) -> None:
    assert_type(view(request, 1), JsonResponse | HttpResponse)


@zk_locked("pay:{invoice_id}", on_conflict=Busy(status=423, retry_after=10))
def locked_view(request: HttpRequest, invoice_id: int) -> HttpResponse:
    return HttpResponse()


result: Skipped = {"zklock": "skipped", "key": "k", "reason": "conflict", "holder": None}


def operate() -> None:
    found = operations.find_locks("import:*", state="held", older_than=dt.timedelta(hours=2), sort="urgency", limit=5)
    assert_type(found, operations.Search)
    for lock in found:
        assert_type(lock, operations.LockSnapshot)
        for holder in lock.holders:
            assert_type(holder, operations.QueueEntry)
            operations.revoke_lock(holder, "deploy", by="ada", using="reports", timeout=5)
            operations.break_lock(holder, "it hangs", timeout=dt.timedelta(seconds=5))
    assert_type(operations.show_lock("k", timeout=None).state, str)
    assert_type(operations.lock_history(), list[operations.Action])
    assert_type(operations.sent_calls("k"), list[operations.SentCall])
    assert_type(operations.prune_sent(everything=True, dry_run=True), list[operations.SentCall])
    for key in operations.prune_queues(dry_run=True):
        assert_type(key, str)
    operations.find_locks(7)  # type: ignore[arg-type]
    operations.break_lock("k", "it hangs")  # type: ignore[arg-type]
