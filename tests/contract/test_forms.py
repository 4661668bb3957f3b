"""What people write, in every form: two threads that meet under one key are inside one after the other, or are refused.

A protected form is a function that makes of a body, the work that must be alone, what a thread calls; a refused one
makes of it what a locked function returns.
"""

from __future__ import annotations

import asyncio
import csv
import enum
import functools
import inspect
import io
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.http import FileResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import RequestFactory
from kombu.utils.json import dumps, loads

from django_zklock import zk_locked
from django_zklock.key_value import key_text
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

LONG = scaled(60)

Body = Callable[[], Any]
Form = Callable[[Body], Callable[[], Any]]

REQUEST = RequestFactory().get("/")


class Meeting:
    """A body in which the first thread waits until the second one is inside too, or in the queue of the lock."""

    def __init__(self) -> None:
        self.calls = self.peak = self._inside = 0
        self._mutex = threading.Lock()
        self._first = threading.Event()
        self._go_on = threading.Event()

    def body(self) -> None:
        with self._mutex:
            self.calls += 1
            self._inside += 1
            self.peak = max(self.peak, self._inside)
        self._first.set()
        assert self._go_on.wait(LONG)
        with self._mutex:
            self._inside -= 1

    def hold(self, ensemble: Ensemble, key: str, *calls: Callable[[], Any]) -> None:
        """Let two threads make the calls."""
        first = Runner(calls[0])
        wait_until(lambda: self._first.is_set() or not first.running, LONG)
        second = Runner(calls[-1])
        wait_until(lambda: self.peak > 1 or len(ensemble.nodes(key)) > 1 or not second.running, LONG)
        self._go_on.set()
        first.result(LONG)
        second.result(LONG)


def other_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as most packages do: with `functools.wraps`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


# Forms that are protected.


def streaming(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> StreamingHttpResponse:
        def content() -> Iterator[str]:
            yield "begin"
            body()
            yield "end"

        return StreamingHttpResponse(content())

    return lambda: list(view(REQUEST))


def async_streaming(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def view(request: object) -> StreamingHttpResponse:
        async def content() -> AsyncIterator[str]:
            yield "begin"
            await asyncio.to_thread(body)
            yield "end"

        return StreamingHttpResponse(content())

    async def serve() -> list[bytes]:
        return [part async for part in await view(REQUEST)]

    return lambda: asyncio.run(serve())


def plain_streaming_in_a_loop(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> StreamingHttpResponse:
        return StreamingHttpResponse(str(body()) for _ in range(1))

    async def serve() -> list[bytes]:
        async with ThreadSensitiveContext():  # as Django's handler does
            response = await sync_to_async(view)(REQUEST)
            return await sync_to_async(lambda: list(response))()

    return lambda: asyncio.run(serve())


class File(io.BytesIO):
    """A file whose reader works."""

    def __init__(self, body: Body) -> None:
        super().__init__(b"content")
        self._body: Body | None = body

    def read(self, size: int | None = -1, /) -> bytes:
        if self._body is not None:
            self._body()
            self._body = None
        return super().read(size)


def file_response(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> FileResponse:
        return FileResponse(File(body))

    return lambda: list(view(REQUEST))


def file_that_the_server_reads(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> FileResponse:
        return FileResponse(File(body))

    def serve() -> None:
        response: Any = view(REQUEST)
        response.file_to_stream.read()  # `wsgi.file_wrapper`
        response.close()

    return serve


def template_response(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: Any) -> TemplateResponse:
        return TemplateResponse(request, engines["django"].from_string("{{ rows }}"), {"rows": body})

    return lambda: view(REQUEST).render()


def template_response_of_a_coroutine(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def view(request: Any) -> TemplateResponse:
        return TemplateResponse(request, engines["django"].from_string("{{ rows }}"), {"rows": body})

    async def serve() -> None:
        await sync_to_async((await view(REQUEST)).render)()

    return lambda: asyncio.run(serve())


PROTECTED: list[Form] = [
    streaming,
    async_streaming,
    plain_streaming_in_a_loop,
    file_response,
    file_that_the_server_reads,
    template_response,
    template_response_of_a_coroutine,
]


@pytest.mark.shows("guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "api#zk_locked")
@pytest.mark.parametrize("form", PROTECTED, ids=lambda form: form.__name__)
def test_protected(ensemble: Ensemble, form: Form) -> None:
    """Two threads that call what is written in this form are inside one after the other."""
    meeting = Meeting()
    call = form(meeting.body)
    meeting.hold(ensemble, "k", call, call)
    assert (meeting.peak, meeting.calls) == (1, 2)
    ensemble.wait_empty("k")


# Results that are refused: what they are made of would run after the release.


def generator(body: Body) -> Generator[Any, None, None]:
    return (body() for _ in range(1))


def generator_that_has_begun(body: Body) -> Generator[Any, None, None]:
    made = (body() if number else None for number in range(2))
    next(made)
    return made


class OtherGenerator(Generator[None, None, None]):
    """A generator of another language than Python's, such as one of Cython."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def send(self, _value: None, /) -> None:
        self._body()
        raise StopIteration

    def throw(self, *error: Any) -> None:
        raise StopIteration


class Awaitable:
    """What is awaited, and no coroutine."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.to_thread(self._body).__await__()


async def task(body: Body) -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.to_thread(body))


async def tasks(body: Body) -> list[asyncio.Task[None]]:
    return [await task(body), await task(body)]


async def as_completed(_body: Body) -> Any:
    return asyncio.as_completed([])


async def generator_of_a_coroutine(body: Body) -> Any:
    return generator(body)


async def coroutine_of_a_coroutine(body: Body) -> Any:
    return asyncio.to_thread(body)


@contextmanager
def context(body: Body) -> Iterator[None]:
    body()
    yield


REFUSED: dict[str, Callable[[Body], Any]] = {
    "generator": generator,
    "generator that has begun": generator_that_has_begun,
    "other generator": OtherGenerator,
    "map": lambda body: map(lambda _: body(), [1]),  # noqa: C417 - this very form
    "filter": lambda body: filter(lambda _: body(), [1]),
    "zip": lambda body: zip(generator(body), strict=False),
    "enumerate": lambda body: enumerate(generator(body)),
    "chain": lambda body: itertools.chain(generator(body)),
    "iter": lambda body: iter(body, 1),
    "csv": lambda body: csv.reader(generator(body)),
    "in a tuple": lambda body: (201, generator(body)),
    "in a dict": lambda body: {"rows": generator(body)},
    "tee": lambda body: itertools.tee(generator(body)),
    "awaitable": Awaitable,
    "context": context,
    "task": task,
    "tasks": tasks,
    "as_completed": as_completed,
    "generator of a coroutine": generator_of_a_coroutine,
    "coroutine of a coroutine": coroutine_of_a_coroutine,
}
MESSAGE = r"returned an? .*, which would run after the release of the lock: "


@pytest.mark.shows("guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "api#zk_locked")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_refused(ensemble: Ensemble, make: Callable[[Body], Any]) -> None:
    """A call whose work would run after the release raises ``TypeError``, nothing runs, and the lock is free."""
    ran: list[None] = []

    @zk_locked("k")
    def work() -> Any:
        return make(lambda: ran.append(None))

    @zk_locked("k")
    async def awork() -> Any:
        return await make(lambda: ran.append(None))

    def call() -> Any:
        return asyncio.run(awork()) if inspect.iscoroutinefunction(make) else work()

    with pytest.raises(TypeError, match=MESSAGE):
        call()
    assert ran == []
    ensemble.wait_empty("k")


async def asynchronous_generator(body: Body) -> AsyncIterator[None]:
    await asyncio.to_thread(body)
    yield


def generator_function(body: Body) -> Iterator[None]:
    yield body()


@pytest.mark.parametrize("function", [generator_function, asynchronous_generator, coroutine_of_a_coroutine])
def test_refused__below_a_decorator(ensemble: Ensemble, function: Callable[[Body], Any]) -> None:
    """The same where another decorator hides what the function is."""
    with pytest.raises(TypeError, match=MESSAGE):
        zk_locked("k", template="k")(other_decorator(function))(pytest.fail)
    ensemble.wait_empty("k")


# One value, one key: called directly, and as Celery's JSON gives the value.


class TextEnum(str, enum.Enum):  # noqa: UP042 - its text is not its value
    PAID = "paid"


class BytesEnum(bytes, enum.Enum):
    PAID = b"paid"


class Account:
    """A class that says what JSON makes of it."""

    def __repr__(self) -> str:
        return "<Account>"

    def __json__(self) -> Any:
        return {"account": (TextEnum.PAID,)}


@pytest.mark.shows("guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused")
@pytest.mark.parametrize("value", [BytesEnum.PAID, [Account()], (1, 2)], ids=repr)
def test_one_value(ensemble: Ensemble, value: object) -> None:
    """A direct call and one whose argument came through JSON are inside one after the other."""
    meeting = Meeting()

    @zk_locked("k:{value}")
    def work(value: object) -> None:
        meeting.body()

    meeting.hold(ensemble, f"k:{key_text(value)}", lambda: work(value), lambda: work(loads(dumps(value))))
    assert (meeting.peak, meeting.calls) == (1, 2)


# What a function has started and returns a handle of is not its result: it goes on without the lock.


def test_handle(ensemble: Ensemble) -> None:
    """A future of an executor may be returned, and a future of asyncio that has ended."""
    with ThreadPoolExecutor(1) as executor:

        @zk_locked("k")
        def start() -> Any:
            return executor.submit(int)

        assert start().result(LONG) == 0

    @zk_locked("k")
    async def ended() -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return future

    async def main() -> int:
        return await (await ended())

    assert asyncio.run(main()) == 1
