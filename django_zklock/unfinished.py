"""Results of a locked call whose work has not ended when the call returns: refused, or the lock is kept for them.

What runs only when the caller uses it, such as a generator, would run after the release, and is refused. A response is
expected to go on: its lock is kept

- for an unrendered template response until Django has rendered it, behind the middlewares;
- for a streaming response until its content has ended, or until the response is closed at the end of the request, also
  of one whose client disconnects.

The end of the request ends both in any case: a response may fail to be rendered, or be replaced by a middleware. It may
not be destroyed then: responses are in reference cycles, and a view of Django REST framework refers to its own.

Of what a response does not show, this module uses ``_iterator`` and ``_resource_closers`` (Django 5.2 to 6.1). It keeps
the tasks that close generators.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import itertools
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any
from weakref import WeakSet

from django.http import HttpRequest

from django_zklock.zk import jobs, owners
from django_zklock.zk.held import Held

logger = logging.getLogger("django_zklock.unfinished")

# Iterators that run something else when they are asked for the next value, whatever that is.
_LAZY_ITERATORS = (
    *(map, filter, zip, enumerate, type(iter(int, 1)), type(csv.reader(()))),
    *(each for each in vars(itertools).values() if isinstance(each, type)),
    # What `asyncio.as_completed` returns; before Python 3.13 a generator.
    getattr(asyncio.tasks, "_AsCompletedIterator", map),
)
# How many parts of a list, a tuple or a dict are looked at: those of a result that has a few of them.
MAX_PARTS = 20
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


def check(result: Any, function: Callable[..., Any]) -> None:
    """Raise ``TypeError`` if ``result``, which ``function`` has returned, runs after the call; it is ended.

    The same counts for what is in a list, a tuple or a dict, such as a status and the rows that go with it.
    """
    holder: Any = type(result)
    found = {id(result): result}
    if holder in {list, tuple, dict} and len(result) <= MAX_PARTS:
        found = {id(each): each for each in (result.values() if holder is dict else result)}
    kinds = [(kind, each) for each in found.values() if (kind := kind_of(each))]
    for _kind, each in kinds:
        if isinstance(each, (CoroutineType, GeneratorType)):
            with contextlib.suppress(Exception):
                each.close()
        elif asyncio.isfuture(each):
            each.cancel()
    for kind, each in kinds:
        what = _NAMES.get(type(each), f"an object of {type(each).__name__}")
        within = "" if each is result else f"a {holder.__name__} with "
        raise TypeError(
            f"{function.__module__}.{function.__qualname__} returned {within}{what}, which would run after the release "
            f"of the lock: {_ADVICE[kind]}"
        )


# Responses.


def goes_on(response: Any) -> bool:
    """Return whether the content of ``response``, one of Django's, is made later."""
    if response.closed:
        return False
    return getattr(response, "streaming", False) or not getattr(response, "is_rendered", True)


def keep(held: Held, response: Any, on_lost: str, request: HttpRequest | None) -> None:
    """Keep the lock of a call, instead of the release at its end, as long as the content of its response is made.

    That is until the end of ``request`` at most, if there is one.
    """
    kept = _keeper(held, response, on_lost, request)
    if isinstance(kept, _Rendering):
        return
    try:
        held._finish(raising=on_lost != "ignore")
        if kept is not None:
            _put_into(response, kept, on_lost, request)
    except BaseException:
        if kept is not None:
            kept.close()
        raise


async def akeep(held: Held, response: Any, on_lost: str, request: HttpRequest | None) -> None:
    """Do the same as :func:`keep` for the call of a coroutine function."""
    kept = _keeper(held, response, on_lost, request)
    if isinstance(kept, _Rendering):
        return
    try:
        await held._afinish(raising=on_lost != "ignore")
        if kept is not None:
            _put_into(response, kept, on_lost, request)
    except BaseException:
        if kept is not None:
            kept.close()
        raise


def _keeper(held: Held, response: Any, on_lost: str, request: HttpRequest | None) -> _Kept | _Rendering | None:
    """Return what keeps the lock of ``held`` for ``response``; ``None`` if the hold is released or lost already."""
    if held.released or (on_lost != "ignore" and held.lost):
        return None
    if response.streaming:
        kept = _Kept(on_lost)
        return kept if kept.take(held, is_async=getattr(response, "is_async", False)) else None
    rendering = _Rendering(held, on_lost)
    response.add_post_render_callback(rendering)
    _close_with(request, rendering)
    return rendering


class _EndOfRequest:
    """The ``close`` of one request: it closes what is still kept for the request's responses too.

    Django calls it when it closes the response that it has sent, whichever that is. What is destroyed before is not
    kept any more.
    """

    __slots__ = ("_close", "_request", "kept")

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._close = request.close
        self.kept: WeakSet[_Rendering | _Kept | _Content] = WeakSet()

    def __call__(self) -> None:
        # They refer to each other.
        if vars(self._request).get("close") is self:
            del self._request.close
        try:
            self._close()
        finally:
            for each in list(self.kept):
                # As Django does for all that a response closes.
                with contextlib.suppress(Exception):
                    each.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A request may be copied or pickled while it lasts; only its own end counts.
        return partial, (_closes_nothing,)


def _closes_nothing() -> None:
    pass


def _close_with(request: HttpRequest | None, kept: _Rendering | _Kept | _Content) -> None:
    """Close ``kept`` at the end of ``request``, if there is one."""
    if request is None:
        return
    end = vars(request).get("close")
    if not isinstance(end, _EndOfRequest):
        request.close = end = _EndOfRequest(request)  # type: ignore[method-assign]
    end.kept.add(kept)


class _Rendering:
    """The hold of a call, which its owner has until the response is rendered: Django does that for the same request.

    One that is never rendered, and belongs to no request, releases the lock when it is destroyed.
    """

    __slots__ = ("__weakref__", "_held", "_raises")

    def __init__(self, held: Held, on_lost: str) -> None:
        self._held = held
        self._raises = on_lost != "ignore"

    def __call__(self, _response: object) -> None:
        """Release the lock; raise ``LockLost`` if it was lost."""
        self._held._finish(raising=self._raises)

    def close(self) -> None:
        """Release the lock of a response that is not rendered."""
        self._held.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._held.released and not _is_finalizing():
            self.close()


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

    def close(self) -> None:
        """Release the lock where a loss cannot be raised any more, and is logged."""
        self.scope = None
        for held in self._owner.holds[:]:
            if self._raises and held.lost:
                logger.error("event=response_without_lock key=%r token=%s", held.key, held.token)
            held.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():
            self.close()


def _put_into(response: Any, kept: _Kept, on_lost: str, request: HttpRequest | None) -> None:
    """Let the end of the content, of the response, or of the request release the lock."""
    inner = getattr(response, "_iterator", None)
    if inner is None:
        response._resource_closers.append(kept.close)
        _close_with(request, kept)
        return
    checks = on_lost in {"interrupt", "terminate"}
    content: Any = (_AsyncContent if hasattr(inner, "__anext__") else _Content)(inner, kept, checks=checks)
    # First of all the iterator is ended, with the hold. Then the response closes what it was made of, and then it
    # releases the lock.
    response._resource_closers.insert(0, content.stop)
    response._resource_closers.append(content.close)
    response._iterator = content
    _close_with(request, content)


_END = object()


class _Content:
    """The iterator of a streaming response: what makes a part has the hold.

    T1 makes a part while T2 closes the response: when a request is cancelled, its ``sync_to_async`` goes on. The
    iterator is in a list, and only the thread that has taken it out uses it; taking it out is atomic. T1 looks whether
    the content is over after it has put the iterator back, and T2 says so before it takes it. So one of them takes and
    ends it, and puts the mark of its end into the list. The thread that takes that out releases the lock.
    """

    __slots__ = ("__weakref__", "_checks", "_is_over", "_kept", "_rest")

    def __init__(self, inner: Any, kept: _Kept, *, checks: bool) -> None:
        self._rest = [inner]
        self._kept = kept
        self._checks = checks
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        inner = self._take()
        if inner is None:
            raise StopIteration
        borrower = self._kept.lend()
        try:
            if self._checks:
                self._kept.check()
            part = next(inner, _END)
            if part is _END:
                self._is_over = True
                self._kept.finish()
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._kept.take_back(borrower)
            self._rest.append(inner)
            inner = None
            if self._is_over:
                self.close()
        if part is _END:
            raise StopIteration
        return part

    def _take(self) -> Any:
        """Take the iterator out, for a part; return ``None`` after the end of the content."""
        try:
            inner = None if self._is_over else self._rest.pop()
        except IndexError:
            if self._is_over:
                return None
            raise RuntimeError("a part of this response is being made already") from None
        if inner is _END:
            self._rest.append(inner)
            self.close()
            return None
        return inner

    def _end(self) -> bool:
        """End the iterator and take out its end; return ``False`` if it is in use, whose end does this, or released.

        What it iterates over ends with it, with the hold. An error of that releases the lock.
        """
        self._is_over = True
        try:
            inner = self._rest.pop()
        except IndexError:
            return False
        borrower = self._kept.lend()
        try:
            if isinstance(inner, GeneratorType):
                inner.close()
        except BaseException:
            self._kept.close()
            raise
        finally:
            # A generator in another iterator, as in one of `itertools`, is closed when it is destroyed.
            inner = None
            self._kept.take_back(borrower)
        return True

    def stop(self) -> None:
        """End the iterator, unless it is in use."""
        if self._end():
            self._rest.append(_END)

    def close(self) -> None:
        """End the iterator and release the lock, unless it is in use: its user does this at the end."""
        if self._end():
            self._kept.close()

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
        inner = self._take()
        if inner is None:
            raise StopAsyncIteration
        borrower = self._kept.lend()
        self._loop = asyncio.get_running_loop()
        try:
            if self._checks:
                self._kept.check()
            try:
                with jobs.within(self._kept.scope):
                    # Without a default, whose awaitable hides from `sync_to_async` in there which task waits for it.
                    part = await anext(inner)
            except StopAsyncIteration:
                part = _END
            if part is _END:
                self._is_over = True
                await self._kept.afinish()
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._kept.take_back(borrower)
            self._rest.append(inner)
            inner = None
            if self._is_over:
                self.close()
        if part is _END:
            raise StopAsyncIteration
        return part

    def stop(self) -> None:
        self._is_over = True

    def close(self) -> None:
        """End the generator in its loop and release the lock after that, unless it is in use."""
        self._is_over = True
        try:
            inner = self._rest.pop()
        except IndexError:
            return
        loop = self._loop
        is_suspended = isinstance(inner, AsyncGeneratorType) and inner.ag_frame is not None
        if is_suspended and loop is not None and loop.is_running():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                # If the loop ends before it does this, it drops `_kept`, which releases the lock.
                loop.call_soon_threadsafe(_start_to_close, inner, self._kept)
                return
        self._kept.close()


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
        kept.close()
