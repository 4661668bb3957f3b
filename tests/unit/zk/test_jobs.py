"""Which jobs of executors were started in a scope, and how long scopes live."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import operator
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from asgiref.sync import SyncToAsync
from django.utils.functional import SimpleLazyObject

from django_zklock.zk import jobs
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.timing import wait_until

pytestmark = pytest.mark.oldest

LONG = 60.0


async def nothing() -> None:
    """Acquire nothing."""


def enter() -> tuple[ref[jobs.Scope], Any]:
    """Begin a scope; return it with its coroutine."""
    scopes: list[ref[jobs.Scope]] = []

    def begin(scope: ref[jobs.Scope]) -> Any:
        scopes.append(scope)
        return nothing()

    coroutine = jobs.enter(begin)
    return scopes[0], coroutine


@pytest.fixture(autouse=True)
def own_context() -> None:
    """Leave nothing of other tests in the context."""
    jobs._scopes.set(())


def test_leave() -> None:
    """A scope ends with its hold, unless there is a copy of its context."""
    scope, coroutine = enter()
    coroutine.close()
    assert not jobs.leave(scope)
    scope, coroutine = enter()
    coroutine.close()
    copy = contextvars.copy_context()
    assert jobs.leave(scope)
    del copy
    assert scope() is None


def test_leave__not_the_innermost() -> None:
    """The scopes of holds end in any order."""
    (first, one), (second, two) = enter(), enter()
    assert not jobs.leave(first)
    assert second() is not None
    assert not jobs.leave(second)
    one.close()
    two.close()


def test_enter__others_have_ended() -> None:
    """A scope that was left in another context, or whose coroutine was never awaited, goes when the next one begins."""
    left, coroutine = enter()
    contextvars.copy_context().run(jobs.leave, left)
    coroutine.close()
    forgotten, coroutine = enter()
    assert left() is None
    coroutine.close()
    del coroutine
    gc.collect()
    _last, coroutine = enter()
    assert forgotten() is None
    coroutine.close()


def test_enter__attempts_that_never_begin(pool: Pool) -> None:
    """A task that tries for ever, with waits that are cancelled before they begin, gathers no scopes."""
    lock = Lock("k", pool)

    async def main() -> int:
        for _ in range(100):
            task = asyncio.create_task(lock.aacquire())
            task.cancel()
            await asyncio.wait([task])
            del task
        return len(jobs._scopes.get())

    assert asyncio.run(main()) <= 1


def test_started_in__not_by_the_caller_itself() -> None:
    """A job that asks is not one that goes on behind its back."""
    scope, coroutine = enter()
    coroutine.close()
    found: list[Any] = []
    with ThreadPoolExecutor(1) as executor:
        executor.submit(contextvars.copy_context().run, lambda: found.extend(jobs.started_in(scope))).result(LONG)
    assert found == []


def test_started_in__running_and_queued() -> None:
    """Of the jobs of a pool those that have a copy of the context are found, in their order in the queue or not."""
    scope, coroutine = enter()
    coroutine.close()
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(LONG)

    copy = contextvars.copy_context()
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(copy.run, work)
        futures = [executor.submit(copy.copy().run, operator.add, 1, 1), executor.submit(operator.add, 1, 1)]
        assert begun.wait(LONG)
        found = jobs.started_in(scope)
        may_end.set()
    assert {job.future for job in found} == {running, futures[0]}
    assert jobs.started_in(scope) == []


def test_started_in__handed_to_a_thread_that_waits() -> None:
    """A job counts although its thread, which was idle, has had no time yet to take it."""
    scope, coroutine = enter()
    coroutine.close()
    may_end = threading.Event()
    copy = contextvars.copy_context()
    interval = sys.getswitchinterval()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(operator.add, 1, 1).result(LONG)
        wait_until(lambda: executor._idle_semaphore._value == 1)
        # No other thread runs until this one waits.
        sys.setswitchinterval(LONG)
        try:
            future = executor.submit(copy.run, may_end.wait, LONG)
            found = jobs.started_in(scope)
        finally:
            sys.setswitchinterval(interval)
            may_end.set()
    assert [job.future for job in found] == [future]


def load() -> Any:
    """Return what a lazy object stands for."""
    pytest.fail("it was loaded")


class Callable_:  # noqa: N801
    """What can be called and is no function."""

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("call", "arguments", "name"),
    [
        (load, (), f"{__name__}.load"),
        (partial(partial(load), 1), (), f"{__name__}.load"),
        (Callable_(), (), "Callable_"),
        (SimpleLazyObject(load), (), "SimpleLazyObject"),
        (contextvars.copy_context().run, (load, SimpleLazyObject(load)), f"{__name__}.load"),
        (contextvars.copy_context().run, (), "Context.run"),
        (partial(contextvars.copy_context().run, operator.add, 1, SimpleLazyObject(load)), (), "_operator.add"),
        (partial(SyncToAsync(load).thread_handler, SimpleLazyObject(load)), (), f"{__name__}.load"),
    ],
    # Made by hand: pytest would load what is lazy.
    ids=["function", "partial", "object", "lazy", "in a context", "nothing in a context", "to_thread", "sync_to_async"],
)
def test_name(call: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> None:
    """A job is named by its function, and no argument of it is touched."""
    assert jobs.name_of(SimpleNamespace(fn=call, args=arguments, kwargs={})) == name


def test_contexts__around_a_call() -> None:
    """What is around a call is looked into, whatever else it refers to, and what it lacks."""
    context, lazy = contextvars.copy_context(), SimpleLazyObject(load)

    def inside() -> Any:
        return lazy, context.run(load)

    def unset() -> Any:
        return later

    def contexts(call: Any, /, *args: Any, **kwargs: Any) -> list[contextvars.Context]:
        return list(jobs._contexts(SimpleNamespace(fn=call, args=args, kwargs=kwargs)))

    assert contexts(inside) == [context]
    assert contexts(load, lazy, [{"call": (partial(inside), lazy)}]) == [context]
    assert contexts(load, call=inside) == [context]
    assert contexts(unset) == []
    later = 0
    assert contexts(unset) == []
    assert later == 0


def test_contexts__large_arguments() -> None:
    """Arguments of a job that are large, or contain themselves, do not delay the end of a block."""
    endless: list[Any] = [[number] for number in range(jobs.MAX_PARTS)]
    endless[0].append(endless)
    job = SimpleNamespace(fn=load, args=(list(range(100 * jobs.MAX_PARTS)), endless), kwargs={})
    assert list(jobs._contexts(job)) == []
    assert len(list(jobs._parts(job))) <= jobs.MAX_PARTS
