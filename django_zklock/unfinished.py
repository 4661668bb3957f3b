"""Results of a locked call whose work has not ended when the call returns: refused, or the lock is kept for them.

What runs only when the caller uses it, such as a generator, would run after the release, and is refused. A response is
expected to go on: its lock is kept

- for an unrendered template response until Django has rendered it, behind the middlewares;
- for a streaming response until its content has ended, or until the response is closed at the end of the request, also
  of one whose client disconnects.

Django closes the response that a request ends with. A response that something replaces before is destroyed, which
releases the lock too: no other object refers to what keeps it.

Of what a response does not show, this module uses ``_iterator`` and ``_resource_closers`` (Django 5.2 to 6.1). It keeps
the tasks that close generators.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NoReturn

from django_zklock.zk import jobs, owners
from django_zklock.zk.held import Held

logger = logging.getLogger("django_zklock.unfinished")

# Iterators that run something else when they are asked for the next value, whatever that is.
_LAZY_ITERATORS = (map, filter, zip, enumerate, *(each for each in vars(itertools).values() if isinstance(each, type)))
# What a function under `contextlib.contextmanager` returns, which runs in a `with`.
_LAZY_CONTEXTS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)

_NAMES: dict[type, str] = {
    CoroutineType: "a coroutine",
    GeneratorType: "a generator",
    AsyncGeneratorType: "an asynchronous generator",
}
_ADVICE = {
    "coroutine": "put @zk_locked directly above its `async def`, or await it inside",
    "iterator": "take the lock inside of it, with zk_lock(key), or return a list",
    "context": "take the lock inside of it, with zk_lock(key)",
    "awaitable": "await it inside of an `async def` under @zk_locked",
}


def kind_of(result: Any) -> str | None:
    """Return what a result is that runs after the call, ``None`` for any other. The result itself is not touched.

    A class that is written in another language, such as Cython's generators, counts by its methods. A future is one
    that has not ended. An object of Django's lazy types is not evaluated.
    """
    kind = type(result)
    if hasattr(kind, "__await__"):
        if issubclass(kind, CoroutineType):
            return "coroutine"
        return None if asyncio.isfuture(result) and result.done() else "awaitable"
    if hasattr(kind, "__next__"):
        is_generator = hasattr(kind, "send") and hasattr(kind, "throw")
        return "iterator" if is_generator or issubclass(kind, _LAZY_ITERATORS) else None
    if hasattr(kind, "__anext__"):
        return "iterator" if hasattr(kind, "asend") and hasattr(kind, "athrow") else None
    return "context" if issubclass(kind, _LAZY_CONTEXTS) else None


def refuse(result: Any, kind: str, function: Callable[..., Any]) -> NoReturn:
    """End ``result``, which is of this ``kind`` and was returned by ``function``, and raise ``TypeError``."""
    if isinstance(result, (CoroutineType, GeneratorType)):
        with contextlib.suppress(Exception):
            result.close()
    elif asyncio.isfuture(result):
        result.cancel()
    what = _NAMES.get(type(result), f"an object of {type(result).__name__}")
    raise TypeError(
        f"{function.__module__}.{function.__qualname__} returned {what}, which would run after the release of the "
        f"lock: {_ADVICE[kind]}"
    )


# Responses.


def goes_on(response: Any) -> bool:
    """Return whether the content of ``response``, one of Django's, is made later."""
    if response.closed:
        return False
    return getattr(response, "streaming", False) or not getattr(response, "is_rendered", True)


def keep(held: Held, response: Any, on_lost: str) -> None:
    """Keep the lock of a call, instead of the release at its end, as long as the content of its response is made."""
    kept = _keeper(held, response, on_lost)
    if isinstance(kept, _Rendering):
        return
    try:
        held._finish(raising=on_lost != "ignore")
        if kept is not None:
            _put_into(response, kept, on_lost)
    except BaseException:
        if kept is not None:
            kept.release()
        raise


async def akeep(held: Held, response: Any, on_lost: str) -> None:
    """Do the same as :func:`keep` for the call of a coroutine function."""
    kept = _keeper(held, response, on_lost)
    if isinstance(kept, _Rendering):
        return
    try:
        await held._afinish(raising=on_lost != "ignore")
        if kept is not None:
            _put_into(response, kept, on_lost)
    except BaseException:
        if kept is not None:
            kept.release()
        raise


def _keeper(held: Held, response: Any, on_lost: str) -> _Kept | _Rendering | None:
    """Return what keeps the lock of ``held`` for ``response``; ``None`` if the hold is released or lost already."""
    if held.released or (on_lost != "ignore" and held.lost):
        return None
    if response.streaming:
        kept = _Kept(on_lost)
        return kept if kept.take(held, is_async=getattr(response, "is_async", False)) else None
    rendering = _Rendering(held, on_lost)
    response.add_post_render_callback(rendering)
    return rendering


class _Rendering:
    """The hold of a call, which its owner has until the response is rendered: Django does that for the same request.

    The response alone refers to it. A response that is never rendered releases the lock when it is destroyed.
    """

    __slots__ = ("_held", "_raises")

    def __init__(self, held: Held, on_lost: str) -> None:
        self._held = held
        self._raises = on_lost != "ignore"

    def __call__(self, _response: object) -> None:
        """Release the lock; raise ``LockLost`` if it was lost."""
        self._held._finish(raising=self._raises)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._held.released and not _is_finalizing():
            self._held.release()


class _Kept:
    """The hold of a streaming response, and its owner.

    Not the thread that has returned the response: its next request may come while another thread sends the response.
    Code that makes the content has the hold lent, so that it can check it and take the lock again. Asynchronous code is
    in the ``scope`` of the hold too: what it starts in threads may go on, and keeps the lock as long.
    """

    __slots__ = ("__weakref__", "_owner", "_raises", "scope")

    def __init__(self, on_lost: str) -> None:
        self._raises = on_lost != "ignore"
        self._owner = owners.owner_of(self)
        self.scope: jobs.Scope | None = None

    def take(self, held: Held, *, is_async: bool) -> bool:
        """Share the possession of ``held``; return ``False`` if it is released already."""
        caller = owners.caller()
        thread = None if caller.thread is caller.owner else caller.thread
        kept = held._nest(held.lock, self._owner, thread=thread)
        if kept is not None and is_async:
            self.scope = jobs.begin(kept)
        return kept is not None

    def lend(self) -> list[Held]:
        """Lend the hold to the calling owner; return what :meth:`take_back` wants."""
        borrower: list[Held] = owners.caller().owner.holds
        borrower += self._owner.holds
        return borrower

    def take_back(self, borrower: list[Held]) -> None:
        for held in [held for held in borrower if held._owner() is self._owner]:
            borrower.remove(held)

    def check(self) -> None:
        """Raise ``LockLost`` if the lock is lost."""
        for held in self._owner.holds[:]:
            held.check()

    def finish(self) -> None:
        """Release the lock at the end of the content; raise ``LockLost`` if it was lost."""
        for held in self._owner.holds[:]:
            held._finish(raising=self._raises)

    async def afinish(self) -> None:
        self.scope = None
        for held in self._owner.holds[:]:
            await held._afinish(raising=self._raises)

    def release(self) -> None:
        """Release the lock where a loss cannot be raised any more, and is logged."""
        self.scope = None
        for held in self._owner.holds[:]:
            if self._raises and held.lost:
                logger.error("event=response_without_lock key=%r token=%s", held.key, held.token)
            held.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():
            self.release()


def _put_into(response: Any, kept: _Kept, on_lost: str) -> None:
    """Let the end of the content, or of the response, release the lock."""
    inner = getattr(response, "_iterator", None)
    if inner is None:
        response._resource_closers.append(kept.release)
        return
    checks = on_lost in {"interrupt", "terminate"}
    content: Any = (_AsyncContent if hasattr(inner, "__anext__") else _Content)(inner, kept, checks=checks)
    # First of all the generator is ended, with the hold. Then the response closes what it was made of, and then it
    # releases the lock.
    response._resource_closers.insert(0, content.stop)
    response._resource_closers.append(content.close)
    response._iterator = content


_END = object()


class _Content:
    """The iterator of a streaming response: what makes a part has the hold.

    T1 makes a part while T2 closes the response: when a request is cancelled, its ``sync_to_async`` goes on. T1 says
    that it is at work before it looks whether the response is closed, and T2 does it the other way round. So one of
    them sees the other, and the lock is released when the part is made; there is no next one.
    """

    __slots__ = ("__weakref__", "_checks", "_inner", "_is_at_work", "_is_over", "_kept")

    def __init__(self, inner: Any, kept: _Kept, *, checks: bool) -> None:
        self._inner = inner
        self._kept = kept
        self._checks = checks
        self._is_at_work = False
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        borrower = self._begin()
        if borrower is None:
            raise StopIteration
        try:
            if self._checks:
                self._kept.check()
            part = next(self._inner, _END)
            if part is _END:
                self._is_over = True
                self._kept.finish()
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._leave(borrower)
        if part is _END:
            raise StopIteration
        return part

    def _begin(self) -> list[Held] | None:
        self._is_at_work = True
        if not self._is_over:
            return self._kept.lend()
        self._is_at_work = False
        return None

    def _leave(self, borrower: list[Held]) -> None:
        self._kept.take_back(borrower)
        self._is_at_work = False
        if self._is_over:
            self.close()

    def stop(self) -> None:
        """End the generator, if the content comes from one, unless it is at work."""
        self._is_over = True
        if self._is_at_work or not isinstance(self._inner, GeneratorType):
            return
        borrower = self._kept.lend()
        try:
            self._inner.close()
        finally:
            self._kept.take_back(borrower)

    def close(self) -> None:
        """End the generator and release the lock, unless it is at work, which then does this at its end."""
        try:
            self.stop()
        finally:
            if not self._is_at_work:
                self._kept.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._is_over or _is_finalizing():
            return
        warnings.warn(
            "a streaming response was never closed, and kept a lock until it was destroyed: close what you replace, "
            "and in tests what you do not consume",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
        self.close()


class _AsyncContent(_Content):
    """The same for an asynchronous iterator."""

    __slots__ = ("_loop",)

    def __init__(self, inner: Any, kept: _Kept, *, checks: bool) -> None:
        super().__init__(inner, kept, checks=checks)
        self._loop: asyncio.AbstractEventLoop | None = None

    # `iter()` has to fail, as Django finds out by it what kind an iterator is.
    __iter__ = None  # type: ignore[assignment]
    __next__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        borrower = self._begin()
        if borrower is None:
            raise StopAsyncIteration
        self._loop = asyncio.get_running_loop()
        try:
            if self._checks:
                self._kept.check()
            try:
                with jobs.within(self._kept.scope):
                    # Without a default, whose awaitable hides from `sync_to_async` in there which task waits for it.
                    part = await anext(self._inner)
            except StopAsyncIteration:
                part = _END
            if part is _END:
                self._is_over = True
                await self._kept.afinish()
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._leave(borrower)
        if part is _END:
            raise StopAsyncIteration
        return part

    def stop(self) -> None:
        self._is_over = True

    def close(self) -> None:
        """End the generator in its loop and release the lock after that, unless it is at work."""
        self._is_over = True
        if self._is_at_work:
            return
        inner, loop = self._inner, self._loop
        is_suspended = isinstance(inner, AsyncGeneratorType) and inner.ag_frame is not None
        if is_suspended and loop is not None and loop.is_running():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                # If the loop ends before it does this, it drops `_kept`, which releases the lock.
                loop.call_soon_threadsafe(_start_to_close, inner, self._kept)
                return
        self._kept.release()


# The tasks that close generators. Event loops have only weak references to tasks.
_closing: set[asyncio.Task[None]] = set()


def _start_to_close(inner: AsyncGenerator[Any, Any], kept: _Kept) -> None:
    task = asyncio.get_running_loop().create_task(_aclose(inner, kept))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _aclose(inner: AsyncGenerator[Any, Any], kept: _Kept) -> None:
    borrower = kept.lend()
    try:
        with jobs.within(kept.scope):
            await inner.aclose()
    finally:
        kept.take_back(borrower)
        kept.release()
