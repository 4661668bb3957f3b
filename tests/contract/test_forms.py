"""What people write, in every form: two threads that meet under one key are inside one after the other, or are refused.

A form is a function ``make(body)`` that returns what a thread calls; ``body`` is the work that must be alone.
"""

from __future__ import annotations

import asyncio
import csv
import enum
import functools
import io
import itertools
import threading
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.dispatch import Signal, receiver
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
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


def plain(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def work() -> None:
        body()

    return work


def coroutine(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def work() -> None:
        await asyncio.to_thread(body)

    return lambda: asyncio.run(work())


def streaming(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> StreamingHttpResponse:
        def content() -> Iterator[str]:
            yield "begin"
            body()
            yield "end"

        return StreamingHttpResponse(content())

    return lambda: list(view(REQUEST))


def streaming_below_a_decorator(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    @other_decorator
    def view(request: object) -> StreamingHttpResponse:
        return StreamingHttpResponse(body() for _ in range(1))

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


def iterator_in_a_response(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def view(request: object) -> HttpResponse:
        return HttpResponse(str(body()) for _ in range(1))

    return lambda: view(REQUEST)


def below_receiver(body: Body) -> Callable[[], Any]:
    signal = Signal()

    @receiver(signal)
    @zk_locked("k", template="k")
    def on_signal(sender: object, **facts: object) -> None:
        body()

    return lambda: (signal.send(None), on_signal)


PROTECTED: list[Form] = [
    plain,
    coroutine,
    streaming,
    streaming_below_a_decorator,
    async_streaming,
    plain_streaming_in_a_loop,
    file_response,
    file_that_the_server_reads,
    template_response,
    template_response_of_a_coroutine,
    iterator_in_a_response,
    below_receiver,
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


# Forms that are refused: their body would run after the release.


def generator_below_a_decorator(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    @other_decorator
    def rows() -> Iterator[None]:
        yield body()

    return lambda: list(rows())


def generator_expression(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[None]:
        return (body() for _ in range(1))

    return lambda: list(rows())


def generator_of_a_coroutine(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def rows() -> Iterator[None]:
        return (body() for _ in range(1))

    return lambda: list(asyncio.run(rows()))


def generator_that_has_begun(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[None]:
        made = (body() if number else None for number in range(2))
        next(made)
        return made

    return lambda: list(rows())


class Rows(Generator[None, None, None]):
    """A generator of another language than Python's, such as one of Cython."""

    def __init__(self, body: Body) -> None:
        self._parts = iter([body])

    def send(self, _value: None, /) -> None:
        for part in self._parts:
            part()
            return
        raise StopIteration

    def throw(self, *error: Any) -> None:
        raise StopIteration


def other_generator(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Rows:
        return Rows(body)

    return lambda: list(rows())


def mapped(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[None]:
        return map(lambda _: body(), [1])  # noqa: C417 - this very form

    return lambda: list(rows())


def filtered(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[int]:
        return filter(lambda _: body(), [1])

    return lambda: list(rows())


def zipped(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[Any]:
        return zip((body() for _ in range(1)), strict=False)

    return lambda: list(rows())


def numbered(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[Any]:
        return enumerate(body() for _ in range(1))

    return lambda: list(rows())


def chained(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[Any]:
        return itertools.chain(body() for _ in range(1))

    return lambda: list(rows())


def called_until(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[Any]:
        parts = iter([body])
        return iter(lambda: [part() for part in parts], [])

    return lambda: list(rows())


def read_as_csv(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> Iterator[Any]:
        return csv.reader(str(body()) for _ in range(1))

    return lambda: list(rows())


def generator_in_a_tuple(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> tuple[int, Iterator[None]]:
        return 201, (body() for _ in range(1))

    return lambda: list(rows()[1])


def generator_in_a_dict(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> dict[str, Iterator[None]]:
        return {"rows": (body() for _ in range(1))}

    return lambda: list(rows()["rows"])


def copied(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def rows() -> tuple[Iterator[None], ...]:
        return itertools.tee(body() for _ in range(1))

    return lambda: list(rows()[0])


def asyncio_tasks(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def work() -> list[asyncio.Task[None]]:
        return [asyncio.create_task(asyncio.to_thread(body)) for _ in range(2)]

    async def run() -> None:
        await asyncio.gather(*await work())

    return lambda: asyncio.run(run())


def as_completed(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def work() -> Any:
        return asyncio.as_completed([])

    return lambda: asyncio.run(work())


def async_generator_below_a_decorator(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    @other_decorator
    async def rows() -> AsyncIterator[None]:
        await asyncio.to_thread(body)
        yield

    async def consume() -> list[None]:
        return [row async for row in await asyncio.to_thread(rows)]

    return lambda: asyncio.run(consume())


def coroutine_below_a_decorator(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    @other_decorator
    async def work() -> None:
        await asyncio.to_thread(body)

    return lambda: asyncio.run(work())


def coroutine_of_a_coroutine(body: Body) -> Callable[[], Any]:
    async def inner() -> None:
        await asyncio.to_thread(body)

    @zk_locked("k")
    async def work() -> Any:
        return inner()

    async def run() -> None:
        await (await work())

    return lambda: asyncio.run(run())


class Awaitable:
    """What is awaited, and no coroutine."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.to_thread(self._body).__await__()


def awaitable(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    def work() -> Awaitable:
        return Awaitable(body)

    async def run() -> None:
        await (await asyncio.to_thread(work))

    return lambda: asyncio.run(run())


def asyncio_task(body: Body) -> Callable[[], Any]:
    @zk_locked("k")
    async def work() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.to_thread(body))

    async def run() -> None:
        await (await work())

    return lambda: asyncio.run(run())


def context_manager_below_a_decorator(body: Body) -> Callable[[], Any]:
    @contextmanager
    def block() -> Iterator[None]:
        body()
        yield

    @zk_locked("k")
    def work() -> AbstractContextManager[None]:
        return block()

    def run() -> None:
        with work():
            pass

    return run


REFUSED: list[Form] = [
    generator_below_a_decorator,
    generator_expression,
    generator_of_a_coroutine,
    generator_that_has_begun,
    other_generator,
    mapped,
    filtered,
    zipped,
    numbered,
    chained,
    called_until,
    read_as_csv,
    generator_in_a_tuple,
    generator_in_a_dict,
    copied,
    asyncio_tasks,
    as_completed,
    async_generator_below_a_decorator,
    coroutine_below_a_decorator,
    coroutine_of_a_coroutine,
    awaitable,
    asyncio_task,
    context_manager_below_a_decorator,
]


@pytest.mark.shows("guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "api#zk_locked")
@pytest.mark.parametrize("form", REFUSED, ids=lambda form: form.__name__)
def test_refused(ensemble: Ensemble, form: Form) -> None:
    """A call whose work would run after the release raises ``TypeError``, nothing runs, and the lock is free."""
    ran: list[None] = []
    with pytest.raises(TypeError, match=r"returned an? .*, which would run after the release of the lock: "):
        form(lambda: ran.append(None))()
    assert ran == []
    ensemble.wait_empty("k")


# One value, one key: called directly, and as Celery's JSON gives the value.


class TextEnum(str, enum.Enum):  # noqa: UP042 - its text is not its value
    PAID = "paid"


class NumberEnum(int, enum.Enum):
    ONE = 1


class BytesEnum(bytes, enum.Enum):
    PAID = b"paid"


class Account:
    """A class that says what JSON makes of it."""

    def __repr__(self) -> str:
        return "<Account>"

    def __json__(self) -> Any:
        return {"account": (TextEnum.PAID,)}


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - without types


@pytest.mark.shows("guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused")
@pytest.mark.parametrize(
    "value",
    [
        TextEnum.PAID,
        [TextEnum.PAID],
        BytesEnum.PAID,
        Account(),
        [Account()],
        NumberEnum.ONE,
        (1, 2),
        [(1, 2)],
        Pair(1, 2),
        {1: 2},
        {TextEnum.PAID: (1,)},
    ],
    ids=repr,
)
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
