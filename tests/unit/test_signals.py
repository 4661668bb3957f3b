"""The signals of locks: when, with which arguments and in which thread they are sent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.dispatch import Signal

from django_zklock import LockConflict, LockTimeout, signals, zk_lock, zk_locked
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from tests.toolbox.django.layer import SIGNALS, Ensemble, OtherClient, Recorder
from tests.toolbox.threads import Runner

pytestmark = pytest.mark.nocelery

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.slow_deadlines"]


@contextmanager
def connected(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def test_free_lock__acquired_and_released(ensemble: Ensemble, recorder: Recorder) -> None:
    """A free lock sends `acquired` before the body and `released` after it, in the caller's thread."""
    with zk_lock("k") as held:
        assert recorder.names == ["acquired"]
    assert recorder.names == ["acquired", "released"]
    acquired, released = recorder.facts("acquired"), recorder.facts("released")
    assert acquired == {
        "sender": Lock, "key": "k", "alias": "default", "template": None, "kind": "exclusive", "held": held,
    }  # fmt: skip
    assert {**released, "duration": None} == {**acquired, "duration": None}
    assert 0 <= released["duration"] < 60
    assert recorder.thread("acquired") is recorder.thread("released") is threading.current_thread()


def test_nested_hold__sends_nothing(ensemble: Ensemble, recorder: Recorder) -> None:
    """A nested hold is no acquisition, and its end no release."""
    with zk_lock("k"):
        with zk_lock("k"):
            pass
        assert recorder.names == ["acquired"]
    assert recorder.names == ["acquired", "released"]


def test_nested_hold__released_last(ensemble: Ensemble, recorder: Recorder) -> None:
    """`released` has the same hold as `acquired`, whichever nested hold is released last."""
    outer = zk_lock("k", template="outer").acquire()
    inner = zk_lock("k", template="inner").acquire()
    outer.release()
    inner.release()
    acquired, released = recorder.facts("acquired"), recorder.facts("released")
    assert acquired["held"] is released["held"] is outer
    assert acquired["template"] == released["template"] == "outer"


@pytest.mark.parametrize(
    ("decorate", "template", "kind"),
    [
        (zk_locked("name:{name}"), "name:{name}", "exclusive"),
        (zk_locked(["a:{name}", "b"], mode="read"), "a:{name}, b", "read"),
        (zk_locked(lambda name: name, limit=2), f"{__name__}._named", "lease"),
        (zk_locked(lambda name: name, mode="write", template="names"), "names", "write"),
    ],
)
def test_template(ensemble: Ensemble, recorder: Recorder, decorate: Any, template: str, kind: str) -> None:
    """Every signal has the kind of the lock and the template of its key."""
    decorate(_named)("k")
    for name in ("acquired", "released"):
        facts = recorder.facts(name)
        assert (facts["template"], facts["kind"]) == (template, kind)


@pytest.mark.parametrize("make", [zk_lock, zk_locked])
def test_template__no_text(ensemble: Ensemble, make: Callable[..., object]) -> None:
    """A template that is not a text is refused at once."""
    with pytest.raises(TypeError, match="the template of a lock must be a str, got list"):
        make("k", template=["k"])


def test_taken_lock__contended(ensemble: Ensemble, other_client: OtherClient, recorder: Recorder) -> None:
    """A waiter sends `contended` with the holder, once, and then `acquired` with the time that it waited."""
    other_client.take("k")
    waiting = Runner(lambda: zk_lock("k").acquire(120).release())
    facts = recorder.facts("contended")
    assert (facts["key"], facts["alias"], facts["sender"]) == ("k", "default", Lock)
    assert str(facts["holder"]).startswith("label the other client (pid ")
    assert recorder.names == ["contended"]
    other_client.release("k")
    waiting.result()
    assert recorder.names == ["contended", "acquired", "released"]
    held = recorder.facts("acquired")["held"]
    assert held.waited > 0
    assert recorder.thread("contended") is recorder.thread("acquired")
    assert recorder.thread("contended") is not threading.current_thread()


@pytest.mark.usefixtures("unhurried")
def test_failed_attempt__neither_acquired_nor_released(other_client: OtherClient, recorder: Recorder) -> None:
    """An attempt that does not get the lock sends no `acquired` and no `released`."""
    other_client.take("k")
    with pytest.raises(LockTimeout):
        zk_lock("k").acquire(0.2)
    with pytest.raises(LockConflict):
        zk_locked("k", on_conflict="raise")(lambda: None)()
    assert zk_lock("k").try_acquire() is None
    assert set(recorder.names) <= {"contended", "refused"}


def test_lost__from_a_thread_of_its_own(ensemble: Ensemble, recorder: Recorder) -> None:
    """`lost` is sent as soon as the loss is known, from another thread, with the reason."""
    held = zk_lock("k").acquire()
    ensemble.delete(held)
    facts = recorder.facts("lost")
    assert facts["held"] is held
    assert (facts["key"], facts["alias"], facts["sender"]) == ("k", "default", Lock)
    assert "deleted" in facts["reason"]
    assert recorder.thread("lost") is not threading.current_thread()
    held.release()
    assert recorder.names == ["acquired", "lost", "released"]


@pytest.mark.parametrize("signal", ["refused", "skipped"])
def test_skipped__documented_facts(other_client: OtherClient, recorder: Recorder, signal: str) -> None:
    """`refused` and `skipped` name holder, function and reason, and the common arguments."""
    other_client.take("k")
    zk_locked("{name}", on_conflict="skip")(_named)("k")
    facts = recorder.facts(signal)
    names = ["alias", "function", "holder", "key", "kind", "reason", "sender", "template", "waited"]
    assert sorted(facts) == names
    assert facts["waited"] >= 0
    assert (facts["template"], facts["kind"]) == ("{name}", "exclusive")
    assert facts["function"] == f"{__name__}._named"
    assert recorder.thread(signal) is threading.current_thread()


async def _anamed(name: str) -> None: ...


@pytest.mark.parametrize("is_async", [False, True])
def test_refused__error(other_client: OtherClient, recorder: Recorder, is_async: bool) -> None:
    """An error is sent as `refused` too, and not as `skipped`; a coroutine function sends the same."""
    other_client.take("k")
    locked = zk_locked("{name}", on_conflict="raise")
    with pytest.raises(LockConflict):
        asyncio.run(locked(_anamed)("k")) if is_async else locked(_named)("k")
    assert recorder.facts("refused")["reason"] == "conflict"
    assert "skipped" not in recorder.names


@pytest.mark.parametrize("receiver_is", ["sync", "async"])
@pytest.mark.parametrize("caller_is", ["sync", "async"])
def test_receiver__error_is_logged(
    ensemble: Ensemble, other_client: OtherClient, caplog: pytest.LogCaptureFixture, receiver_is: str, caller_is: str
) -> None:
    """An error of a receiver, plain or async, is logged and does not reach a body, plain or async."""
    called = []

    def fail(key: str, **_: Any) -> None:
        called.append(key)
        raise RuntimeError("the receiver's own")

    async def afail(key: str, **_: Any) -> None:
        fail(key)

    receiver: Any = afail if receiver_is == "async" else fail
    other_client.take("taken")
    with caplog.at_level(logging.ERROR, "django.dispatch"):
        for signal in (signals.acquired, signals.released, signals.skipped):
            signal.connect(receiver)
        if caller_is == "async":
            asyncio.run(_awork())
        else:
            _work()
        for signal in (signals.acquired, signals.released, signals.skipped):
            signal.disconnect(receiver)
    assert called == ["k", "k", "taken"]
    assert caplog.text.count("the receiver's own") >= 3


def _named(name: str) -> None: ...


def _work() -> None:
    assert zk_locked("k")(lambda: "done")() == "done"
    zk_locked("taken", on_conflict="skip")(lambda: None)()


async def _awork() -> None:
    @zk_locked("k")
    async def work() -> str:
        return "done"

    @zk_locked("taken", on_conflict="skip")
    async def skipped() -> None: ...

    assert await work() == "done"
    await skipped()


def test_async_receiver__of_an_async_call_that_fails(ensemble: Ensemble) -> None:
    """An async receiver gets the release after an error, and does not replace the error."""
    seen: list[str] = []

    async def receive(key: str, **_: Any) -> None:
        seen.append(key)

    @zk_locked("k")
    async def work() -> None:
        raise KeyError("own")

    with connected(signals.released, receive), pytest.raises(KeyError, match="own"):
        asyncio.run(work())
    assert seen == ["k"]


def test_async_receiver__of_a_plain_release_in_a_coroutine(ensemble: Ensemble) -> None:
    """A plain `release()` in a coroutine raises nothing, and the async receiver gets it."""
    notified = asyncio.Event()

    async def receive(**_: Any) -> None:
        notified.set()

    async def main() -> None:
        held = await zk_lock("k").aacquire()
        held.release()
        await notified.wait()

    with connected(signals.released, receive):
        asyncio.run(asyncio.wait_for(main(), 30))


def test_async_with__signals(ensemble: Ensemble, other_client: OtherClient) -> None:
    """An async wait and hold send the same signals, to async receivers in the event loop."""
    seen: list[tuple[str, bool]] = []
    contended = asyncio.Event()

    def receiver(name: str) -> Callable[..., Any]:
        async def receive(**_: Any) -> None:
            seen.append((name, asyncio.get_running_loop() is loops[0]))
            if name == "contended":
                contended.set()

        return receive

    loops: list[asyncio.AbstractEventLoop] = []
    receivers = {name: receiver(name) for name in SIGNALS}

    async def main() -> None:
        loops.append(asyncio.get_running_loop())

        async def wait_and_hold() -> Held:
            async with zk_lock("k") as held:
                return held

        task = asyncio.create_task(wait_and_hold())
        await contended.wait()
        await asyncio.to_thread(other_client.release, "k")
        await task

    other_client.take("k")
    for name, receive in receivers.items():
        getattr(signals, name).connect(receive)
    try:
        asyncio.run(asyncio.wait_for(main(), 30))
    finally:
        for name, receive in receivers.items():
            getattr(signals, name).disconnect(receive)
    assert [entry for entry in seen if entry[1]] == [("contended", True), ("acquired", True), ("released", True)]


@pytest.mark.shows("faults#a-task-is-cancelled-while-receivers-of-signals-run")
@pytest.mark.parametrize("name", ["acquired", "released"])
@pytest.mark.parametrize("form", ["block", "call", "acquisition"])
def test_cancelled__while_receivers_are_told(ensemble: Ensemble, name: str, form: str) -> None:
    """A task that is cancelled while receivers are told ends when all of them are, and each grant has its release."""
    notified = asyncio.Event()
    go_on = asyncio.Event()
    seen: list[str] = []

    async def receive(signal: Signal, **_: Any) -> None:
        if signal is getattr(signals, name) and not go_on.is_set():
            notified.set()
            await go_on.wait()
        seen.append("acquired" if signal is signals.acquired else "released")

    async def work() -> None:
        if form == "call":
            await zk_locked("{name}")(_anamed)("k")
        elif form == "block":
            async with zk_lock("k"):
                pass
        else:
            held = await zk_lock("k").aacquire()
            await held.arelease()

    async def main() -> None:
        task = asyncio.create_task(work())
        await notified.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["acquired", "released"]

    with connected(signals.acquired, receive), connected(signals.released, receive):
        asyncio.run(asyncio.wait_for(main(), 60))
    ensemble.wait_empty("k")


@pytest.mark.shows("faults#a-task-is-cancelled-while-receivers-of-signals-run")
def test_cancelled__twice_while_receivers_are_told(ensemble: Ensemble) -> None:
    """A second cancellation does not wait; the receivers are told all the same, of the grant before the release."""
    notified = asyncio.Event()
    go_on = asyncio.Event()
    released = asyncio.Event()
    seen: list[str] = []

    async def acquired(**_: Any) -> None:
        notified.set()
        await go_on.wait()
        seen.append("acquired")

    async def receive_released(**_: Any) -> None:
        seen.append("released")
        released.set()

    async def main() -> None:
        task = asyncio.create_task(zk_lock("k").aacquire())
        await notified.wait()
        task.cancel()
        await asyncio.sleep(0)
        # The release waits for the receivers of the acquisition, and it can be cancelled as well.
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        assert seen == []
        go_on.set()
        await released.wait()
        assert seen == ["acquired", "released"]

    with connected(signals.acquired, acquired), connected(signals.released, receive_released):
        asyncio.run(asyncio.wait_for(main(), 60))
    ensemble.wait_empty("k")
