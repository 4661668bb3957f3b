"""Locked calls: conflicts, losses, calls without ZooKeeper, and nested calls."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import ref

import pytest
from asgiref.sync import sync_to_async
from django.core.management.base import BaseCommand

from django_zklock import (
    Cancellation,
    LockCancelled,
    LockConflict,
    LockLost,
    LockTimeout,
    NotHeld,
    ZkLockError,
    ZooKeeperUnavailable,
    current_lock,
    locked_call,
    zk_lock,
    zk_locked,
)
from django_zklock.conflict import Conflict
from django_zklock.locked_call import key_through, locked_call_of
from django_zklock.zk import acquire as attempts
from django_zklock.zk import node_data
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.waiting import UNSET, Unset
from tests.toolbox.django.layer import Ensemble, OtherClient, Recorder
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.nocelery, pytest.mark.oldest]

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.slow_deadlines"]

HOLDER = r"held by label the other client \(pid \d+ on .+\)"

Make = Callable[..., Callable[..., Any]]


def _sync(key: str = "k", body: Callable[..., Any] = lambda *args, **kwargs: (args, kwargs), **options: Any) -> Any:
    @zk_locked(key, **options)  # type: ignore[untyped-decorator]
    def work(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return work


def _async(key: str = "k", body: Callable[..., Any] = lambda *args, **kwargs: (args, kwargs), **options: Any) -> Any:
    @zk_locked(key, **options)  # type: ignore[untyped-decorator]
    async def work(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return lambda *args, **kwargs: asyncio.run(work(*args, **kwargs))


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def make(request: pytest.FixtureRequest, ensemble: Ensemble) -> Make:
    """Return a function that makes a locked function, plain or async, which is called like a plain one."""
    made: Make = request.param
    return made


@pytest.fixture
def other_client(other_client: OtherClient, unhurried: None) -> OtherClient:
    """Return another owner of the same locks, which may be found slowly."""
    return other_client


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the body has run")


# Conflicts: wait.


@pytest.mark.shows("guarantees#timeouts-are-kept")
def test_wait__times_out(make: Make, other_client: OtherClient) -> None:
    """A call that waits fails after its timeout, and the error names the lock, the time and the holder."""
    held = other_client.take("k")
    message = rf"lock 'k' was not granted within 0\.3 s; {HOLDER}; .* wait longer with a larger timeout"
    with pytest.raises(LockTimeout, match=message) as caught:
        make(body=never, timeout=timedelta(seconds=0.3))()
    assert (caught.value.key, caught.value.timeout) == ("k", 0.3)
    assert caught.value.holder is not None
    assert caught.value.holder.work == Work(kind="label", name="the other client")
    assert isinstance(caught.value, TimeoutError)
    held.check()


# Conflicts: skip.


def test_skip__says_so(
    make: Make, other_client: OtherClient, recorder: Recorder, caplog: pytest.LogCaptureFixture, ensemble: Ensemble
) -> None:
    """A skipped call has a result, a signal and a log line, each with the holder, and leaves no node."""
    held = other_client.take("k")
    with caplog.at_level(logging.WARNING, "django_zklock.locked_call"):
        result = make(body=never, on_conflict="skip")()
    holder = result.pop("holder")
    assert holder.startswith("label the other client (pid ")
    assert result == {"zklock": "skipped", "key": "k", "reason": "conflict"}
    facts = recorder.facts("skipped")
    assert (facts["key"], facts["alias"], facts["reason"]) == ("k", "default", "conflict")
    assert str(facts["holder"]) == holder
    assert facts["function"].endswith("work")
    (message,) = [record.getMessage() for record in caplog.records if "event=skipped" in record.getMessage()]
    assert "key='k'" in message
    assert holder in message
    assert ensemble.nodes("k") == [held.node.rpartition("/")[2]]


def test_skip__waits_first(make: Make, other_client: OtherClient) -> None:
    """A call runs if the lock is free; with a timeout, it waits that long before it skips."""
    assert make(on_conflict="skip")(1) == ((1,), {})
    other_client.take("k")
    assert make(body=never, on_conflict="skip", timeout=0.5)()["zklock"] == "skipped"


# Conflicts: raise.


@pytest.mark.parametrize(("timeout", "waited"), [(UNSET, ""), (0, ""), (0.2, r" after 0\.2 s of waiting")])
def test_raise__names_holder(make: Make, other_client: OtherClient, timeout: float | Unset, waited: str) -> None:
    """A conflict is raised at once or after the timeout, and names holder, time, function and options."""
    other_client.take("k")
    with pytest.raises(
        LockConflict, match=rf"lock 'k' is {HOLDER}{waited}; .*work did not run; on_conflict="
    ) as caught:
        make(body=never, on_conflict="raise", timeout=timeout)()
    assert (caught.value.key, caught.value.timeout) == ("k", 0 if timeout is UNSET else timeout)
    assert caught.value.holder is not None
    assert isinstance(caught.value.__cause__, LockTimeout)


# Conflicts: the timeout under every policy.


@pytest.mark.parametrize(
    ("on_conflict", "timeout"),
    [
        ("wait", UNSET),
        ("coalesce", UNSET),
        *((policy, None) for policy in ("wait", "skip", "raise", "coalesce", lambda conflict: "decided")),
    ],
)
def test_timeout__waits(
    make: Make, other_client: OtherClient, ensemble: Ensemble, on_conflict: Any, timeout: Unset | None
) -> None:
    """Without a timeout, the policies that wait do so without a limit; with a timeout of None every policy does."""
    other_client.take("k")
    waiting = Runner(lambda: make(on_conflict=on_conflict, timeout=timeout)(1, a=2))
    ensemble.wait_count("k", 2)
    other_client.release("k")
    assert waiting.result() == ((1,), {"a": 2})
    ensemble.wait_empty("k")


@pytest.mark.parametrize(
    ("on_conflict", "error"), [("wait", LockTimeout), ("coalesce", LockTimeout), ("raise", LockConflict)]
)
def test_timeout__zero_tries_once(
    make: Make, other_client: OtherClient, on_conflict: Any, error: type[Exception]
) -> None:
    """With a timeout of 0, a call does not wait under any policy."""
    other_client.take("k")
    with pytest.raises(error, match=HOLDER):
        make(body=never, on_conflict=on_conflict, timeout=0)()


# Conflicts: a callable.


def test_callable__decides(make: Make, other_client: OtherClient) -> None:
    """A callable gets the conflict, and its result is that of the call; it does not run inside of an `except`."""
    other_client.take("k:1")
    seen: list[Conflict] = []
    # A test that interrupts at an exact instruction may leave its exception in the state of this thread.
    outside = sys.exc_info()

    def decide(conflict: Conflict) -> str:
        assert sys.exc_info() == outside
        seen.append(conflict)
        return "another day"

    assert make("k:{args[0]}", never, on_conflict=decide, timeout=0.5)(1, a=2) == "another day"
    (conflict,) = seen
    assert (conflict.key, conflict.waited, conflict.args, conflict.kwargs) == ("k:1", 0.5, (1,), {"a": 2})
    assert conflict.holder is not None
    assert isinstance(conflict.error(), LockConflict)


def test_callable__raises(make: Make, other_client: OtherClient) -> None:
    """An error of the callable is the error of the call."""
    other_client.take("k")

    def decide(conflict: Conflict) -> None:
        raise conflict.error()

    with pytest.raises(LockConflict):
        make(body=never, on_conflict=decide)()


def test_callable__without_a_hash(make: Make, other_client: OtherClient) -> None:
    """A callable may be an object that cannot be hashed, such as a dataclass."""

    @dataclass
    class Decide:
        answer: str

        def __call__(self, conflict: Conflict) -> str:
            return self.answer

    other_client.take("k")
    assert make(body=never, on_conflict=Decide("another day"))() == "another day"


def test_callable__async(ensemble: Ensemble, request: pytest.FixtureRequest) -> None:
    """A coroutine function's callable may be async, for conflicts and without ZooKeeper."""

    async def decide(conflict: Conflict) -> str:
        await asyncio.sleep(0)
        return conflict.key

    # First, as with another client calls wait half a minute for each answer.
    assert _async(body=never, using="absent", on_unavailable=decide)() == "k"
    request.getfixturevalue("other_client").take("k")
    assert _async(body=never, on_conflict=decide)() == "k"


# on_lost


@pytest.fixture(params=["delete the node", "end the session"])
def lose(request: pytest.FixtureRequest, ensemble: Ensemble) -> Callable[[], None]:
    """Return a function that deletes the lock of its caller, and waits until the caller knows."""

    def take_away() -> None:
        held = current_lock()
        assert held is not None
        if request.param == "delete the node":
            ensemble.delete(held)
        else:
            ensemble.end_session()
        wait_until(lambda: held.lost, 20)

    return take_away


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
def test_lost__raises(make: Make, lose: Callable[[], None], ensemble: Ensemble) -> None:
    """A call whose lock was lost while it ran ends with LockLost, which names key, reason and token."""
    with pytest.raises(LockLost, match=r"lock 'k' was lost after \d+\.\d s: .*; .*so stop, or fence with token \d+"):
        make(body=lose)()
    assert current_lock() is None
    ensemble.wait_empty("k")


def test_lost__ignored(make: Make, lose: Callable[[], None]) -> None:
    """With `on_lost="ignore"` such a call returns its result."""

    def body() -> str:
        lose()
        return "done"

    assert make(body=body, on_lost="ignore")() == "done"


def test_lost__process_is_being_ended(lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `on_lost="terminate"` a call has no outcome if its body ends while its process is being ended."""

    class TerminatedError(BaseException):
        pass

    begun = threading.Event()

    def terminate() -> None:
        if threading.current_thread() is threading.main_thread():
            raise TerminatedError
        begun.set()

    def body() -> str:
        lose()
        assert begun.wait(scaled(20))
        return "done"

    monkeypatch.setattr(locked_call, "terminate_hooks", [lambda: terminate])
    with pytest.raises(TerminatedError):
        _sync(body=body, on_lost="terminate")()


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
@pytest.mark.parametrize("on_lost", ["raise", "ignore"])
def test_lost__another_error_propagates(make: Make, lose: Callable[[], None], on_lost: str) -> None:
    """An error of the body is not masked by the loss."""

    def fail() -> None:
        lose()
        raise KeyError("the body's own")

    with pytest.raises(KeyError, match="the body's own"):
        make(body=fail, on_lost=on_lost)()


# on_unavailable


def test_unavailable__raises(make: Make) -> None:
    """Without ZooKeeper a call fails within the connect timeout, with the key, the server and the settings to check."""
    with pytest.raises(
        ZooKeeperUnavailable, match=r"lock 'k': .*ZooKeeper at 127\.0\.0\.1:\d+.* is it running"
    ) as caught:
        make(body=never, using="absent")()
    assert caught.value.key == "k"
    assert isinstance(caught.value, ConnectionError)


def test_unavailable__is_no_conflict(make: Make) -> None:
    """The policy for conflicts does not apply without ZooKeeper."""
    with pytest.raises(ZooKeeperUnavailable):
        make(body=never, using="absent", on_conflict="skip", timeout=0.2)()


def test_unavailable__skips(make: Make, recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """The result of a call that is skipped without ZooKeeper names that reason."""
    result = make(body=never, using="absent", on_unavailable="skip")()
    assert result == {"zklock": "skipped", "key": "k", "reason": "unavailable", "holder": None}
    assert recorder.facts("skipped")["reason"] == "unavailable"
    assert recorder.facts("skipped")["alias"] == "absent"
    assert "reason=unavailable" in caplog.text


def test_unavailable__callable(make: Make, recorder: Recorder) -> None:
    """A callable gets the conflict, and its result is that of the call."""

    outside = sys.exc_info()

    def decide(conflict: Conflict) -> Any:
        assert sys.exc_info() == outside
        assert conflict.error() is conflict.unavailable
        return conflict.key, type(conflict.unavailable), conflict.holder, conflict.args

    result = make(body=never, using="absent", on_conflict=never, on_unavailable=decide)(1)
    assert result == ("k", ZooKeeperUnavailable, None, (1,))
    assert recorder.facts("refused")["reason"] == "unavailable"


@pytest.mark.shows("guarantees#on_unavailablerun-no-lock-at-all")
def test_unavailable__runs(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A call that runs without ZooKeeper logs an error, holds nothing, and does not run inside of an `except`."""

    outside = sys.exc_info()

    def body() -> Any:
        assert sys.exc_info() == outside
        return current_lock()

    assert make(body=body, using="absent", on_unavailable="run")() is None
    (record,) = [record for record in caplog.records if "event=unprotected" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "key='k'" in record.getMessage()


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_unavailable__runs_not_in_a_conflict(make: Make, other_client: OtherClient, on_conflict: str) -> None:
    """A call that may run without ZooKeeper does not run while another process holds the lock."""
    other_client.take("k")
    call = make(body=never, on_conflict=on_conflict, on_unavailable="run")
    if on_conflict == "skip":
        assert call()["reason"] == "conflict"
    else:
        with pytest.raises(LockConflict):
            call()


@pytest.mark.shows("guarantees#on_unavailablerun-no-lock-at-all")
def test_unavailable__runs_after_its_timeout(make: Make) -> None:
    """A call with a timeout runs unprotected after that time and not before, also as the first call of the process."""
    began = time.monotonic()
    assert make(body=lambda: "ran", using="absent", on_unavailable="run", timeout=1.5)() == "ran"
    assert time.monotonic() - began >= 1.5


def test_unavailable__error_of_an_unprotected_body(make: Make) -> None:
    """An error of an unprotected body propagates, without an error of ZooKeeper as its context."""

    def fail() -> None:
        raise KeyError("own")

    with pytest.raises(KeyError) as caught:
        make(body=fail, using="absent", on_unavailable="run")()
    assert caught.value.__context__ is None


# Ends of a call.


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_error__releases(ensemble: Ensemble, error: type[BaseException]) -> None:
    """An error of the body propagates unchanged, and the lock is free."""

    def fail() -> None:
        raise error("own")

    with pytest.raises(error, match="own"):
        _sync(body=fail)()
    assert current_lock() is None
    ensemble.wait_empty("k")


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
def test_cancellation__of_a_waiting_call(other_client: OtherClient, ensemble: Ensemble) -> None:
    """Cancelling an async call that waits leaves no node."""
    other_client.take("k")

    @zk_locked("k")
    async def work() -> None:
        never()

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(ensemble.wait_count, "k", 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))
    ensemble.wait_count("k", 1)


def test_release_inside__is_no_loss(make: Make, ensemble: Ensemble) -> None:
    """A body that releases its lock early causes no error."""

    def body() -> str:
        held = current_lock()
        assert held is not None
        held.release()
        return "done"

    assert make(body=body)() == "done"
    ensemble.wait_empty("k")


def test_body__sees_no_exception(make: Make, other_client: OtherClient, ensemble: Ensemble) -> None:
    """The body of a call that had to wait does not run inside of an `except`."""
    other_client.take("k")
    waiting = Runner(make(body=sys.exc_info))
    ensemble.wait_count("k", 2)
    other_client.release("k")
    assert waiting.result() == (None, None, None)


# Calls within calls.


def test_not_reentrant(make: Make) -> None:
    """Without reentrancy a nested call fails or skips at once, instead of waiting for itself without end."""
    for on_conflict in ("wait", "raise"):
        inner = _sync(body=never, reentrant=False, on_conflict=on_conflict)
        with pytest.raises(LockConflict, match="lock 'k' is"):
            make(body=inner)()
    inner = _sync(body=never, reentrant=False, on_conflict="skip")
    assert make(body=inner)()["zklock"] == "skipped"


@pytest.mark.parametrize(("argv", "outer"), [("test_locked_call", ""), ("nightly", "nightly")])
def test_holder__command(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, argv: str, outer: str) -> None:
    """A command has its own name, and that of the command that has called it."""
    monkeypatch.setattr("sys.argv", ["manage.py", argv])
    found: list[Identity | None] = []

    class Command(BaseCommand):
        @zk_locked("k")
        def handle(self, *_args: Any, **_options: Any) -> None:
            found.extend(zk_lock("k").holders())

    Command().handle()
    assert found[0] is not None
    assert found[0].work == Work(kind="command", name="test_locked_call", command=outer)


def test_holder__arguments_of_a_task(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is shown with those of its arguments that are in the key, and with no others; a function is its name."""

    @zk_locked("invoice:{invoice_id}")
    def bill(invoice_id: int, card: str) -> Any:
        (holder,) = zk_lock("invoice:42").holders()
        return holder.work if holder is not None else None

    assert bill(42, "secret").arguments == ""
    task = Work(kind="task", name="bill", id="4711")
    monkeypatch.setattr("django_zklock.api.resolvers", [lambda: task])
    assert bill(42, "secret") == dataclasses.replace(task, arguments="invoice_id=42")


@pytest.mark.parametrize("on_conflict", ["wait", "raise"])
@pytest.mark.parametrize("timeout", [3, UNSET])
def test_holder_needs_this_thread__says_so(ensemble: Ensemble, on_conflict: str, timeout: int | Unset) -> None:
    """A call that would wait for a task whose code runs in the same thread is told that, and not to wait longer."""
    if timeout is UNSET and on_conflict == "raise":
        timeout = 3
    inner = _sync(body=never, on_conflict=on_conflict, timeout=timeout)
    refusals: list[LockConflict] = []

    def call() -> None:
        with pytest.raises(LockConflict, match="was taken in this very thread by another task or greenlet") as caught:
            inner()
        refusals.append(caught.value)

    async def main() -> None:
        taken, over = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            held = await sync_to_async(Lock("k", ensemble.pool).acquire)(10)
            taken.set()
            await over.wait()
            held.release()

        async def ask() -> None:
            await taken.wait()
            try:
                await sync_to_async(call)()
            finally:
                over.set()

        await asyncio.gather(hold(), ask())

    asyncio.run(main())
    assert len(refusals) == 1


# Meeting one's own dead node.


@pytest.fixture
def redelivered(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run this test as a task that was delivered before."""
    task = Work(kind="task", name="bill", id="4711")
    monkeypatch.setattr("django_zklock.api.resolvers", [lambda: task])
    return task


def _take_as(other_client: OtherClient, work: Work) -> Any:
    lock = Lock("k", other_client.pool, work=lambda: work)
    held = other_client.held["k"] = Runner(lambda: lock.acquire(120)).result(15)
    return held


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_met_itself__waits(
    make: Make,
    other_client: OtherClient,
    redelivered: Work,
    ensemble: Ensemble,
    on_conflict: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task that meets its own earlier delivery's node waits for its end, under every policy."""
    held = _take_as(other_client, redelivered)
    timeout = 1.0 if on_conflict == "wait" else UNSET
    waiting = Runner(lambda: make(on_conflict=on_conflict, timeout=timeout)(1))
    wait_until(lambda: "event=met_itself" in caplog.text, 10)
    ensemble.wait_count("k", 2)
    held.release()
    assert waiting.result(20) == ((1,), {})


@pytest.fixture
def short_sessions(ensemble: Ensemble, settings: Any) -> None:
    times = {"SESSION_TIMEOUT": scaled(3), "CONNECT_TIMEOUT": scaled(1)}
    settings.ZKLOCK = {"default": {**settings.ZKLOCK["default"], **times}}


def test_met_itself__another_owner_came_between(
    make: Make, other_client: OtherClient, redelivered: Work, ensemble: Ensemble, short_sessions: None
) -> None:
    """If its own node is gone and another owner has the lock, the policy applies again: the call skips."""
    own = _take_as(other_client, redelivered)
    other = Runner(lambda: other_client.take("k"))
    ensemble.wait_count("k", 2)
    waiting = Runner(make(body=never, on_conflict="skip"))
    ensemble.wait_count("k", 3)
    own.release()
    other.result()
    result = waiting.result(60)
    assert result["zklock"] == "skipped"
    assert result["holder"].startswith("label the other client")


def test_met_itself__still_running(
    make: Make, other_client: OtherClient, redelivered: Work, short_sessions: None
) -> None:
    """If the earlier delivery outlives any session that has died, it is alive, and the policy applies."""
    held = _take_as(other_client, redelivered)
    result = make(body=never, on_conflict="skip")()
    assert result["holder"].startswith("task bill [4711]")
    held.check()


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_unknown_holder__tries_again(make: Make, monkeypatch: pytest.MonkeyPatch, on_conflict: str) -> None:
    """If the holder left before its data was read, the call tries once more."""
    failed: list[float | None] = []

    def fail_first(real: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(lock: Lock, timeout: float | None, caller: Any, **options: Any) -> Any:
            if not failed:
                failed.append(timeout)
                raise LockTimeout("held by an unknown owner", key=lock.key, timeout=timeout)
            return real(lock, timeout, caller, **options)

        return attempt

    monkeypatch.setattr("django_zklock.zk.acquire.acquire", fail_first(attempts.acquire))
    monkeypatch.setattr("django_zklock.zk.acquire.aacquire", fail_first(attempts.aacquire))
    assert make(on_conflict=on_conflict, timeout=0)(1) == ((1,), {})
    assert failed == [0]


def test_unknown_holder__stays_unknown(make: Make, ensemble: Ensemble) -> None:
    """A holder without an identity, such as the client of another library, is a conflict like any other."""
    make()()
    client = ensemble.observer.client
    path = f"{ensemble.pool.path('k')}/{'0' * 32}__lock__"
    node = client.create(path, b"kazoo", ephemeral=True, sequence=True, makepath=True)
    assert make(body=never, on_conflict="skip")()["holder"] is None
    with pytest.raises(LockConflict, match="lock 'k' is taken; "):
        make(body=never, on_conflict="raise")()
    client.delete(node)


# Errors as values.


def _errors() -> list[ZkLockError]:
    holder = node_data.current_identity(Work(kind="task", name="bill", id="1"))
    return [
        kind("a message", key="k", timeout=1.5, holder=holder)
        for kind in (ZkLockError, LockTimeout, LockCancelled, LockConflict, LockLost, NotHeld, ZooKeeperUnavailable)
    ]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_error__survives(error: ZkLockError, travel: Callable[[ZkLockError], ZkLockError]) -> None:
    """An error that is pickled or copied keeps its type, its message and its facts."""
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert str(arrived) == "a message"
    assert (arrived.key, arrived.timeout, arrived.holder) == ("k", 1.5, error.holder)


@pytest.mark.parametrize(("value", "message"), [("x" * 1025, "longer than 1024 bytes"), ("\ud800", "valid Unicode")])
def test_key__is_refused(make: Make, value: str, message: str) -> None:
    """A key that can name no lock fails the call before anything is sent."""
    with pytest.raises(ValueError, match=message):
        make("{args[0]}", never)(value)


# The key of a call that another function makes.


def test_key_through__converted_arguments() -> None:
    """The key is made from the arguments that the outer function passes, and the body does not run."""
    locked = zk_locked("{number}:{flag}")(_numbered)
    call = locked_call_of(locked)
    assert call is not None
    make = key_through(lambda number, **kwargs: locked(int(number), **kwargs), call)
    assert make(("07",), {"flag": True}) == "7:True"
    with pytest.raises(ValueError, match="invalid literal"):
        make(("x",), {})


def test_key_through__not_called() -> None:
    """If the outer function does not call the locked one, the key is not known, and that is an error."""
    call = locked_call_of(zk_locked("{number}")(_numbered))
    assert call is not None
    with pytest.raises(ValueError, match=r"_numbered is not known: the function around it did not call it"):
        key_through(lambda number: number, call)((7,), {})


def _numbered(number: int, *, flag: bool = False) -> None:
    raise AssertionError("the body has run")


# What a call leaves behind.


class Large:
    """An argument that takes much memory."""


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Let nothing free objects that refer to each other."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("options", [{}, {"on_lost": "interrupt"}, {"on_conflict": "skip"}], ids=str)
def test_arguments__of_a_call(make: Make, options: dict[str, Any]) -> None:
    """The arguments of a call are gone when it has ended, without the garbage collector."""
    call, large = make(**options), Large()
    gone = ref(large)
    assert call(large) == ((large,), {})
    del large
    wait_until(lambda: gone() is None)


@pytest.mark.usefixtures("_no_collection")
def test_arguments__of_a_call_that_is_refused(make: Make, other_client: OtherClient) -> None:
    """So it is after a conflict."""
    other_client.take("k")
    call, large = make(body=never, on_conflict="skip"), Large()
    gone = ref(large)
    assert call(large)["zklock"] == "skipped"
    del large
    wait_until(lambda: gone() is None)


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("is_async", [False, True])
def test_arguments__around_a_block(ensemble: Ensemble, is_async: bool) -> None:
    """So is what the callers of a block have in their variables."""

    def block(_large: Large) -> None:
        with zk_lock("k"):
            pass

    async def ablock(_large: Large) -> None:
        async with zk_lock("k"):
            pass

    async def main() -> ref[Large]:
        large = Large()
        await ablock(large) if is_async else await sync_to_async(block)(large)
        return ref(large)

    gone = asyncio.run(main())
    wait_until(lambda: gone() is None)


@pytest.mark.usefixtures("_no_collection")
def test_lock__is_gone(ensemble: Ensemble, other_client: OtherClient) -> None:
    """So is the lock itself, after the server has confirmed the release, or after a wait that was ended."""
    lock = zk_lock("k")
    with lock:
        pass
    other_client.take("k")
    with pytest.raises(LockTimeout):
        lock.acquire(timeout=0.01)
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(LockCancelled):
        lock.acquire(cancellation=cancellation)
    gone = ref(lock)
    del lock
    wait_until(lambda: gone() is None)
