"""What a locked call does: on a conflict, on a loss, without ZooKeeper, within itself."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_zklock import (
    LockConflict,
    LockLost,
    LockTimeout,
    NotHeld,
    ZkLockError,
    ZooKeeperUnavailable,
    current_lock,
    zk_locked,
)
from django_zklock.calls import Conflict
from django_zklock.zk import attempt as attempts
from django_zklock.zk import identity
from django_zklock.zk.identity import Identity, Work
from django_zklock.zk.lock import Lock
from tests.bystanders import Ensemble, Recorder, Stranger
from tests.zk.onlooker import wait_until
from tests.zk.runner import Runner

pytest_plugins = ["tests.configured", "tests.unhurried"]

HOLDER = r"held by label the stranger \(pid \d+ on .+\)"

Make = Callable[..., Callable[..., Any]]


def _sync(key: str = "k", body: Callable[..., Any] = lambda *args, **kwargs: (args, kwargs), **options: Any) -> Any:
    @zk_locked(key, **options)
    def work(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return work


def _async(key: str = "k", body: Callable[..., Any] = lambda *args, **kwargs: (args, kwargs), **options: Any) -> Any:
    @zk_locked(key, **options)
    async def work(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return lambda *args, **kwargs: asyncio.run(work(*args, **kwargs))


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def make(request: pytest.FixtureRequest, ensemble: Ensemble) -> Make:
    """Give a function that makes a locked function, plain or async, which is called as a plain one."""
    made: Make = request.param
    return made


@pytest.fixture
def stranger(stranger: Stranger, unhurried: None) -> Stranger:
    """Give somebody else at the same locks; to find that out may take its time."""
    return stranger


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the body has run")


# Conflicts: wait.


def test_wait__times_out(make: Make, stranger: Stranger) -> None:
    """A call that waits gives up after its timeout, and says for which lock, how long, and who holds it."""
    held = stranger.take("k")
    with pytest.raises(LockTimeout, match=rf"lock 'k' was not granted within 0\.3 s; {HOLDER}; .*timeout=") as caught:
        make(body=never, timeout=timedelta(seconds=0.3))()
    assert (caught.value.key, caught.value.timeout) == ("k", 0.3)
    assert caught.value.holder is not None
    assert caught.value.holder.work == Work(kind="label", name="the stranger")
    assert isinstance(caught.value, TimeoutError)
    held.check()


def test_wait__tries_once(make: Make, stranger: Stranger) -> None:
    """With a timeout of 0 a call does not wait."""
    stranger.take("k")
    with pytest.raises(LockTimeout, match=rf"lock 'k' is taken; {HOLDER}"):
        make(body=never, timeout=0)()


def test_wait__is_granted(make: Make, stranger: Stranger, ensemble: Ensemble) -> None:
    """A call that waits runs when the lock is given back."""
    stranger.take("k")
    waiting = Runner(lambda: make()(1, a=2))
    ensemble.wait_count("k", 2)
    stranger.release("k")
    assert waiting.result() == ((1,), {"a": 2})
    ensemble.wait_empty("k")


# Conflicts: skip.


def test_skip__says_so(
    make: Make, stranger: Stranger, recorder: Recorder, caplog: pytest.LogCaptureFixture, ensemble: Ensemble
) -> None:
    """A skipped call gives a result, a signal and a log line, each with the holder, and leaves no node."""
    held = stranger.take("k")
    with caplog.at_level(logging.WARNING, "django_zklock.calls"):
        result = make(body=never, on_conflict="skip")()
    holder = result.pop("holder")
    assert holder.startswith("label the stranger (pid ")
    assert result == {"zklock": "skipped", "key": "k", "reason": "conflict"}
    facts = recorder.facts("skipped")
    assert (facts["key"], facts["alias"], facts["reason"]) == ("k", "default", "conflict")
    assert str(facts["holder"]) == holder
    assert facts["function"].endswith("work")
    (message,) = [record.getMessage() for record in caplog.records if "event=skipped" in record.getMessage()]
    assert "key='k'" in message
    assert holder in message
    assert ensemble.nodes("k") == [held.node.rpartition("/")[2]]


def test_skip__waits_first(make: Make, stranger: Stranger, ensemble: Ensemble) -> None:
    """With a timeout, a call waits that long before it skips, and runs if it is granted meanwhile."""
    stranger.take("k")
    assert make(body=never, on_conflict="skip", timeout=0.5)()["zklock"] == "skipped"
    waiting = Runner(lambda: make(on_conflict="skip", timeout=30)(1))
    ensemble.wait_count("k", 2)
    stranger.release("k")
    assert waiting.result() == ((1,), {})


def test_skip__free(make: Make) -> None:
    """A call that would skip runs if the lock is free."""
    assert make(on_conflict="skip")(1) == ((1,), {})


# Conflicts: raise.


@pytest.mark.parametrize(("timeout", "waited"), [(None, ""), (0.2, r" after 0\.2 s of waiting")])
def test_raise__names_holder(make: Make, stranger: Stranger, timeout: float | None, waited: str) -> None:
    """A conflict is raised at once, or after the timeout, and says who, how long, what did not run, what to do."""
    stranger.take("k")
    with pytest.raises(
        LockConflict, match=rf"lock 'k' is {HOLDER}{waited}; .*work did not run; on_conflict="
    ) as caught:
        make(body=never, on_conflict="raise", timeout=timeout)()
    assert (caught.value.key, caught.value.timeout) == ("k", timeout or 0)
    assert caught.value.holder is not None
    assert isinstance(caught.value.__cause__, LockTimeout)


# Conflicts: a callable.


def test_callable__decides(make: Make, stranger: Stranger) -> None:
    """A callable is given the facts and its result is the call's; it does not run inside of an `except`."""
    stranger.take("k:1")
    seen: list[Conflict] = []

    def decide(conflict: Conflict) -> str:
        assert sys.exc_info() == (None, None, None)
        seen.append(conflict)
        return "another day"

    assert make("k:{args[0]}", never, on_conflict=decide, timeout=0.5)(1, a=2) == "another day"
    (conflict,) = seen
    assert (conflict.key, conflict.waited, conflict.args, conflict.kwargs) == ("k:1", 0.5, (1,), {"a": 2})
    assert conflict.holder is not None
    assert isinstance(conflict.error(), LockConflict)


def test_callable__raises(make: Make, stranger: Stranger) -> None:
    """What the callable raises is what the call raises."""
    stranger.take("k")

    def decide(conflict: Conflict) -> None:
        raise conflict.error()

    with pytest.raises(LockConflict):
        make(body=never, on_conflict=decide)()


def test_callable__async(stranger: Stranger) -> None:
    """A coroutine function's callable may be async."""
    stranger.take("k")

    async def decide(conflict: Conflict) -> str:
        await asyncio.sleep(0)
        return conflict.key

    assert _async(body=never, on_conflict=decide)() == "k"


# on_lost


@pytest.fixture(params=["delete the node", "end the session"])
def lose(request: pytest.FixtureRequest, ensemble: Ensemble) -> Callable[[], None]:
    """Give a function that takes away the lock of its caller, and returns when that is known."""

    def take_away() -> None:
        held = current_lock()
        assert held is not None
        if request.param == "delete the node":
            ensemble.delete(held)
        else:
            ensemble.end_session()
        wait_until(lambda: held.lost, 20)

    return take_away


def test_lost__raises(make: Make, lose: Callable[[], None], ensemble: Ensemble) -> None:
    """A call whose lock was lost while it ran ends with LockLost, which names key, reason and token."""
    with pytest.raises(LockLost, match=r"lock 'k' was lost after \d+\.\d s: .*; .*so stop, or fence with token \d+"):
        make(body=lose)()
    assert current_lock() is None
    ensemble.wait_empty("k")


def test_lost__ignored(make: Make, lose: Callable[[], None]) -> None:
    """With `on_lost="ignore"` such a call gives its result."""

    def body() -> str:
        lose()
        return "done"

    assert make(body=body, on_lost="ignore")() == "done"


@pytest.mark.parametrize("on_lost", ["raise", "ignore"])
def test_lost__another_error_propagates(make: Make, lose: Callable[[], None], on_lost: str) -> None:
    """An error of the body is not masked by the loss."""

    def fail() -> None:
        lose()
        raise KeyError("the body's own")

    with pytest.raises(KeyError, match="the body's own"):
        make(body=fail, on_lost=on_lost)()


def test_lost__check_raises_within(make: Make, lose: Callable[[], None]) -> None:
    """The body hears of the loss from `check()`, whatever the policy."""

    def checks() -> str:
        lose()
        held = current_lock()
        assert held is not None
        with pytest.raises(LockLost):
            held.check()
        return "stopped"

    assert make(body=checks, on_lost="ignore")() == "stopped"


def test_lost__usable_afterwards(make: Make, lose: Callable[[], None]) -> None:
    """After a loss the lock can be taken again, with a higher token."""
    tokens = []

    def body(first: bool) -> None:
        held = current_lock()
        assert held is not None
        tokens.append(held.token)
        if first:
            lose()

    work = make(body=body, on_lost="ignore")
    work(True)
    work(False)
    assert tokens[0] < tokens[1]


# on_unavailable


def test_unavailable__raises(make: Make) -> None:
    """Without ZooKeeper a call fails within the connect timeout, with the key, the server and what to look at."""
    with pytest.raises(
        ZooKeeperUnavailable, match=r"lock 'k': .*ZooKeeper at 127\.0\.0\.1:\d+.* is it running"
    ) as caught:
        make(body=never, using="absent")()
    assert caught.value.key == "k"
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("on_conflict", ["wait", "skip", "raise"])
def test_unavailable__is_no_conflict(make: Make, on_conflict: str) -> None:
    """What to do on a conflict does not say what to do without ZooKeeper."""
    with pytest.raises(ZooKeeperUnavailable):
        make(body=never, using="absent", on_conflict=on_conflict, timeout=0.2)()


def test_unavailable__skips(make: Make, recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """A call that skips without ZooKeeper says that this is why."""
    result = make(body=never, using="absent", on_unavailable="skip")()
    assert result == {"zklock": "skipped", "key": "k", "reason": "unavailable", "holder": None}
    assert recorder.facts("skipped")["reason"] == "unavailable"
    assert recorder.facts("skipped")["alias"] == "absent"
    assert "reason=unavailable" in caplog.text


def test_unavailable__runs(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A call that runs without ZooKeeper is loud about it, holds nothing, and does not run inside of an `except`."""

    def body() -> Any:
        assert sys.exc_info() == (None, None, None)
        return current_lock()

    assert make(body=body, using="absent", on_unavailable="run")() is None
    (record,) = [record for record in caplog.records if "event=unprotected" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "key='k'" in record.getMessage()


def test_unavailable__error_of_an_unprotected_body(make: Make) -> None:
    """What an unprotected body raises propagates, and has nothing to do with ZooKeeper."""

    def fail() -> None:
        raise KeyError("own")

    with pytest.raises(KeyError) as caught:
        make(body=fail, using="absent", on_unavailable="run")()
    assert caught.value.__context__ is None


# Ends of a call.


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_error__releases(ensemble: Ensemble, error: type[BaseException]) -> None:
    """Whatever the body raises propagates as it is, and the lock is free."""

    def fail() -> None:
        raise error("own")

    with pytest.raises(error, match="own"):
        _sync(body=fail)()
    assert current_lock() is None
    ensemble.wait_empty("k")


def test_error__thrown_into_a_waiting_call(stranger: Stranger, ensemble: Ensemble) -> None:
    """An exception thrown into a call that waits leaves no node."""
    held = stranger.take("k")
    waiting = Runner(_sync(body=never, timeout=2))
    ensemble.wait_count("k", 2)
    waiting.throw(KeyboardInterrupt)
    assert isinstance(waiting.outcome(), KeyboardInterrupt)
    ensemble.wait_count("k", 1)
    held.check()


def test_cancellation__of_a_waiting_call(stranger: Stranger, ensemble: Ensemble) -> None:
    """Cancelling an async call that waits leaves no node."""
    stranger.take("k")

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


def test_cancellation__of_a_running_call(ensemble: Ensemble) -> None:
    """Cancelling an async call that holds gives the lock back."""
    began = asyncio.Event()

    @zk_locked("k")
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))
    ensemble.wait_empty("k")


def test_release_inside__is_no_loss(make: Make, ensemble: Ensemble) -> None:
    """A body that gives its lock back early ends well."""

    def body() -> str:
        held = current_lock()
        assert held is not None
        held.release(wait=True)
        return "done"

    assert make(body=body)() == "done"
    ensemble.wait_empty("k")


def test_body__sees_no_exception(make: Make, stranger: Stranger, ensemble: Ensemble) -> None:
    """The body of a call that had to wait does not run inside of an `except`."""
    stranger.take("k")
    waiting = Runner(make(body=sys.exc_info))
    ensemble.wait_count("k", 2)
    stranger.release("k")
    assert waiting.result() == (None, None, None)


# Calls within calls.


def test_nested__same_key(make: Make) -> None:
    """A decorated function can call another one, and itself, under the same key: one node, one token."""

    def outer(depth: int) -> list[int]:
        held = current_lock("k")
        assert held is not None
        return [held.token] + (inner(depth - 1) if depth else [])

    inner = _sync(body=outer)
    tokens = make(body=outer)(3)
    assert len(tokens) == 4
    assert len(set(tokens)) == 1
    assert current_lock() is None


@pytest.mark.usefixtures("unhurried")
def test_nested__async(ensemble: Ensemble) -> None:
    """An async function can call another one under the same key; a task of its own waits for it."""

    @zk_locked("k", timeout=0.5)
    async def inner() -> str:
        return "inner"

    @zk_locked("k")
    async def outer() -> str:
        with pytest.raises(LockTimeout):
            await asyncio.create_task(inner())
        return await inner()

    assert asyncio.run(outer()) == "inner"
    ensemble.wait_empty("k")


def test_nested__error_keeps_the_outer_hold(make: Make, ensemble: Ensemble) -> None:
    """An error of a nested call gives back the nested hold only."""

    def fail() -> None:
        raise KeyError

    def outer() -> None:
        with pytest.raises(KeyError):
            _sync(body=fail)()
        held = current_lock()
        assert held is not None
        held.check()
        assert len(ensemble.nodes("k")) == 1

    make(body=outer)()
    ensemble.wait_empty("k")


@pytest.mark.parametrize(("on_conflict", "error"), [("wait", LockConflict), ("raise", LockConflict)])
def test_not_reentrant__raises(make: Make, on_conflict: str, error: type[Exception]) -> None:
    """Without reentrancy a nested call fails at once, instead of waiting for itself for ever."""
    inner = _sync(body=never, reentrant=False, on_conflict=on_conflict)
    with pytest.raises(error, match="lock 'k' is"):
        make(body=inner)()


def test_not_reentrant__skips(make: Make) -> None:
    """Without reentrancy a nested call that skips is skipped."""
    inner = _sync(body=never, reentrant=False, on_conflict="skip")
    assert make(body=inner)()["zklock"] == "skipped"


def test_concurrent__one_at_a_time(make: Make) -> None:
    """Of many threads that call one function one runs at a time, each with a token above the one before."""
    tokens: list[int] = []
    inside = threading.Lock()

    def body() -> None:
        assert inside.acquire(blocking=False), "two bodies at once"
        held = current_lock()
        assert held is not None
        tokens.append(held.token)
        inside.release()

    runners = [Runner(make(body=body)) for _ in range(12)]
    for runner in runners:
        runner.result(60)
    assert len(tokens) == 12
    assert tokens == sorted(set(tokens))


# Meeting one's own dead node.


class Worker:
    """Surroundings in which a task runs, as in a worker."""

    def __init__(self, task: Work) -> None:
        self.task = task

    def work(self) -> Work:
        return self.task


@pytest.fixture
def redelivered(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run this test as a task that somebody else has begun before."""
    task = Work(kind="task", name="bill", id="4711")
    monkeypatch.setattr("django_zklock.surroundings.known", [Worker(task)])
    return task


def _take_as(stranger: Stranger, work: Work) -> Any:
    lock = Lock("k", stranger.pool, work=lambda: work)
    return Runner(lambda: lock.acquire(10)).result(15)


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_met_itself__waits(
    make: Make,
    stranger: Stranger,
    redelivered: Work,
    ensemble: Ensemble,
    on_conflict: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task that meets its own earlier delivery's node waits for its end, under every policy."""
    held = _take_as(stranger, redelivered)
    timeout = 1.0 if on_conflict == "wait" else None
    waiting = Runner(lambda: make(on_conflict=on_conflict, timeout=timeout)(1))
    wait_until(lambda: "event=met_itself" in caplog.text, 10)
    ensemble.wait_count("k", 2)
    held.release()
    assert waiting.result(20) == ((1,), {})


def test_met_itself__somebody_else_came_between(
    make: Make, stranger: Stranger, redelivered: Work, ensemble: Ensemble, settings: Any
) -> None:
    """If its own node is gone and somebody else has the lock, the policy holds again: the call skips."""
    settings.ZKLOCK = {"default": {**settings.ZKLOCK["default"], "SESSION_TIMEOUT": 3, "CONNECT_TIMEOUT": 1}}
    own = _take_as(stranger, redelivered)
    other = Runner(lambda: stranger.take("k"))
    ensemble.wait_count("k", 2)
    waiting = Runner(make(body=never, on_conflict="skip"))
    ensemble.wait_count("k", 3)
    own.release()
    other.result()
    result = waiting.result(60)
    assert result["zklock"] == "skipped"
    assert result["holder"].startswith("label the stranger")


def test_met_itself__still_running(
    make: Make, stranger: Stranger, redelivered: Work, ensemble: Ensemble, settings: Any
) -> None:
    """If the earlier delivery outlives any session that has died, it is alive, and the policy holds."""
    settings.ZKLOCK = {"default": {**settings.ZKLOCK["default"], "SESSION_TIMEOUT": 3, "CONNECT_TIMEOUT": 1}}
    held = _take_as(stranger, redelivered)
    result = make(body=never, on_conflict="skip")()
    assert result["holder"].startswith("task bill [4711]")
    held.check()


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_unknown_holder__tries_again(make: Make, monkeypatch: pytest.MonkeyPatch, on_conflict: str) -> None:
    """If the holder was gone when we asked for its name, the call tries once more instead of giving up."""
    failed: list[float | None] = []

    def fail_first(real: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(lock: Lock, timeout: float | None) -> Any:
            if not failed:
                failed.append(timeout)
                raise LockTimeout("held by nobody knows whom", key=lock.key, timeout=timeout)
            return real(lock, timeout)

        return attempt

    monkeypatch.setattr("django_zklock.zk.attempt.acquire", fail_first(attempts.acquire))
    monkeypatch.setattr("django_zklock.zk.attempt.aacquire", fail_first(attempts.aacquire))
    assert make(on_conflict=on_conflict, timeout=0)(1) == ((1,), {})
    assert failed == [0]


def test_unknown_holder__stays_unknown(make: Make, ensemble: Ensemble) -> None:
    """A holder that leaves no identity, such as another library's client, is a conflict like any other."""
    make()()
    client = ensemble.onlooker.client
    path = f"{ensemble.pool.path('k')}/{'0' * 32}__lock__"
    node = client.create(path, b"kazoo", ephemeral=True, sequence=True, makepath=True)
    assert make(body=never, on_conflict="skip")()["holder"] is None
    with pytest.raises(LockConflict, match="lock 'k' is taken; "):
        make(body=never, on_conflict="raise")()
    client.delete(node)


# Errors as values.


def _errors() -> list[ZkLockError]:
    holder = identity.own(Work(kind="task", name="bill", id="1"))
    return [
        kind("what, how long, who", key="k", timeout=1.5, holder=holder)
        for kind in (ZkLockError, LockTimeout, LockConflict, LockLost, NotHeld, ZooKeeperUnavailable)
    ]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_error__survives(error: ZkLockError, travel: Callable[[ZkLockError], ZkLockError]) -> None:
    """An error that is pickled or copied keeps its type, its message and its facts."""
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert str(arrived) == "what, how long, who"
    assert (arrived.key, arrived.timeout, arrived.holder) == ("k", 1.5, error.holder)


def test_error__real_one_survives(stranger: Stranger) -> None:
    """An error from the network keeps its facts too."""
    stranger.take("k")
    with pytest.raises(LockTimeout) as caught:
        _sync(timeout=0.5)()
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert str(arrived) == str(caught.value)
    assert isinstance(arrived.holder, Identity)
    assert arrived.holder == caught.value.holder


# A table of odd keys: each is a correct lock or a clear error.


@pytest.mark.parametrize(
    "value",
    [
        "a/b",
        "a%2Fb",
        "a\nb",
        "😀",
        "..",
        ".",
        "/",
        "nul\0",
        "é" * 500,
        " ",
        "zookeeper",
        "x" * 1024,
        "\uffff",
        "a" * 300,
    ],
)
def test_odd_key__is_a_lock(make: Make, stranger: Stranger, value: str) -> None:
    """A key of any characters excludes others with the same key, and nobody else."""
    key = value.replace("{", "{{")
    stranger.take(key)
    assert make("{args[0]}", never, on_conflict="skip")(value)["key"] == value
    assert make("{args[0]}")("other" + value[:10])[0] == ("other" + value[:10],)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("", ValueError, "must not be empty"),
        ("x" * 1025, ValueError, "must not be longer than 1024 bytes"),
        ("é" * 513, ValueError, "must not be longer than 1024 bytes"),
        ("\ud800", ValueError, "valid Unicode"),
        (object(), ValueError, "must read the same in every process"),
    ],
)
def test_odd_key__is_refused(make: Make, value: object, error: type[Exception], message: str) -> None:
    """A key that can name no lock fails the call before anything is sent."""
    with pytest.raises(error, match=message):
        make("{args[0]}", never)(value)
