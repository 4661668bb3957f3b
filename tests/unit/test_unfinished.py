"""The locks of responses: how long they are kept, whose they are, and what ends them."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import itertools
import logging
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template import engines
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.datastructures import MultiValueDict
from django.utils.functional import SimpleLazyObject

from django_zklock import LockLost, LockTimeout, current_lock, unfinished, zk_lock, zk_locked
from tests.toolbox.django.layer import Ensemble, Recorder
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

LONG = scaled(60)
REQUEST = RequestFactory().get("/")


@pytest.fixture(autouse=True)
def _connections_of_others() -> Iterator[None]:
    """Leave the databases of other tests alone at both ends of a request, as Django's test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def streaming(content: Any, **options: Any) -> StreamingHttpResponse:
    """Call a locked view that streams ``content``."""

    @zk_locked("k", **options)  # type: ignore[untyped-decorator]
    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(content)

    response: StreamingHttpResponse = view(REQUEST)
    return response


async def astreaming(content: Any, **options: Any) -> StreamingHttpResponse:
    """Call a locked coroutine function that streams ``content``."""

    @zk_locked("k", **options)  # type: ignore[untyped-decorator]
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(content)

    response: StreamingHttpResponse = await view(REQUEST)
    return response


def rendering(work: Callable[[], object], **options: Any) -> Any:
    """Call a locked view whose template does ``work``."""

    @zk_locked("k", **options)  # type: ignore[untyped-decorator]
    def view(request: HttpRequest) -> TemplateResponse:
        return TemplateResponse(request, engines["django"].from_string("{{ rows }}"), {"rows": work})

    return view(REQUEST)


def two_parts() -> Iterator[str]:
    yield "one"
    yield "two"


def is_held() -> bool:
    """Ask as another owner, behind all that was requested before."""
    held = Runner(lambda: zk_lock("k").try_acquire()).result()
    if held is not None:
        held.release()
    return held is None


# Until when the lock is kept.


def test_streaming__is_consumed(ensemble: Ensemble) -> None:
    """The lock is free when the content has come to its end."""
    response = streaming(two_parts())
    parts = iter(response)
    assert [next(parts), next(parts), is_held()] == [b"one", b"two", True]
    assert next(parts, None) is None
    ensemble.wait_empty("k")
    response.close()


def test_streaming__is_closed(ensemble: Ensemble) -> None:
    """Closing the response ends its generator under the lock, and releases the lock; nothing is made after that."""
    seen: list[object] = []

    def content() -> Iterator[str]:
        try:
            yield "one"
            yield "two"
        finally:
            with zk_lock("k", timeout=0) as held:
                seen.append(held.token)

    response = streaming(content())
    parts = iter(response)
    next(parts)
    assert is_held()
    response.close()
    assert len(seen) == 1
    ensemble.wait_empty("k")
    assert list(parts) == []


def test_streaming__is_closed_before_it_begins(ensemble: Ensemble) -> None:
    """As for a HEAD request."""
    response = streaming(two_parts())
    assert is_held()
    response.close()
    ensemble.wait_empty("k")


def test_streaming__fails(ensemble: Ensemble) -> None:
    """An error of the content releases the lock."""

    def content() -> Iterator[str]:
        yield "one"
        raise ValueError("broken")

    response = streaming(content())
    with pytest.raises(ValueError, match="broken"):
        list(response)
    ensemble.wait_empty("k")


@pytest.mark.shows("ownership#holds-of-responses")
def test_streaming__is_replaced(ensemble: Ensemble) -> None:
    """A response that something replaces, as a middleware does, gives the lock back when it is destroyed, and warns."""
    response = streaming(two_parts())
    assert is_held()
    with pytest.warns(ResourceWarning, match="was never closed"):
        del response
    ensemble.wait_empty("k")


def test_streaming__its_content_is_replaced(ensemble: Ensemble) -> None:
    """A middleware may put its own iterator around the content, as Django's for gzip does."""
    response: Any = streaming(two_parts())
    response.streaming_content = (part.upper() for part in response.streaming_content)
    assert list(response) == [b"ONE", b"TWO"]
    ensemble.wait_empty("k")
    response.close()


def test_file(ensemble: Ensemble) -> None:
    """A file that the server reads by itself is under the lock until it closes the file, which closes the response."""

    @zk_locked("k")
    def view(request: HttpRequest) -> FileResponse:
        return FileResponse(io.BytesIO(b"content"))

    response: Any = view(REQUEST)
    file = response.file_to_stream
    file.close = response.close  # as Django does for `wsgi.file_wrapper`
    assert (file.read(), is_held()) == (b"content", True)
    file.close()
    ensemble.wait_empty("k")


class OtherStreaming(HttpResponseBase):
    """A response of a package, which has its own way to stream."""

    streaming = True

    def __iter__(self) -> Iterator[bytes]:
        yield b"part"


def test_other_streaming(ensemble: Ensemble) -> None:
    """A response that is not of Django's class keeps the lock until it is closed."""

    @zk_locked("k")
    def view(request: HttpRequest) -> OtherStreaming:
        return OtherStreaming()

    response = view(REQUEST)
    assert (list(response), is_held()) == ([b"part"], True)
    response.close()
    ensemble.wait_empty("k")


def test_template__is_rendered(ensemble: Ensemble) -> None:
    """The lock is free when the response is rendered, and the response can be cached then."""
    response = rendering(lambda: current_lock("k") is not None)
    assert is_held()
    assert response.render().content == b"True"
    ensemble.wait_empty("k")
    assert pickle.loads(pickle.dumps(response)).content == b"True"


def test_template__is_rendered_already(ensemble: Ensemble) -> None:
    """A response that the view has rendered is like any other."""

    @zk_locked("k")
    def view(request: HttpRequest) -> SimpleTemplateResponse:
        return SimpleTemplateResponse(engines["django"].from_string("x")).render()

    assert view(REQUEST).content == b"x"
    ensemble.wait_empty("k")


def test_template__is_never_rendered(ensemble: Ensemble) -> None:
    """A response that something replaces before it is rendered gives the lock back, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rendering(str)
    ensemble.wait_empty("k")


@pytest.mark.shows("api#zk_locked")
def test_other_results(ensemble: Ensemble) -> None:
    """What is no response is not touched: a lazy object is not evaluated, and a mock is returned as it is."""
    evaluated: list[None] = []
    for result in (SimpleLazyObject(lambda: evaluated.append(None)), MagicMock(), io.StringIO("a line"), iter([1])):
        assert zk_locked("k")(lambda result=result: result)() is result
        ensemble.wait_empty("k")
    assert evaluated == []


def test_released_in_the_view(ensemble: Ensemble) -> None:
    """A view that has released its lock itself keeps none for its response."""
    for make in (lambda: StreamingHttpResponse(two_parts()), lambda: SimpleTemplateResponse("x.html")):

        def view(request: HttpRequest, make: Callable[[], Any] = make) -> Any:
            held = current_lock()
            assert held is not None
            held.release()
            return make()

        @zk_locked("k")
        async def aview(request: HttpRequest, view: Callable[..., Any] = view) -> Any:
            return view(request)

        for response in (zk_locked("k")(view)(REQUEST), asyncio.run(aview(REQUEST))):
            ensemble.wait_empty("k")
            response.close()


def test_closed_in_the_view(ensemble: Ensemble) -> None:
    """A response that is closed already keeps nothing: it would not be closed again."""

    @zk_locked("k")
    def view(request: HttpRequest) -> StreamingHttpResponse:
        response = StreamingHttpResponse(two_parts())
        response.close()
        return response

    response = view(REQUEST)
    ensemble.wait_empty("k")
    assert response.closed


def test_time_limit(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that strikes when the lock is handed over to the response, such as a time limit, releases it."""

    def strike(*_arguments: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(unfinished, "_put_into", strike)

    calls: list[Callable[[], object]] = [lambda: streaming(two_parts()), lambda: asyncio.run(astreaming(two_parts()))]
    for call in calls:
        with pytest.raises(TimeoutError):
            call()
        ensemble.wait_empty("k")


def test_end_of_the_interpreter(ensemble: Ensemble) -> None:
    """What is destroyed when the interpreter ends releases nothing, as no thread may be left to do so."""

    def parts_of(response: Any) -> list[Any]:
        if not response.streaming:
            return list(response._post_render_callbacks)
        return [response._iterator, response._iterator._kept]

    makers: list[Callable[[], Any]] = [lambda: streaming(two_parts()), lambda: rendering(str)]
    for make in makers:
        response = make()
        for each in parts_of(response):
            each.__del__(lambda: True)
        assert is_held()
        if response.streaming:
            response.close()
        else:
            response.render()
        ensemble.wait_empty("k")


# Whose it is.


def test_owner__content(ensemble: Ensemble) -> None:
    """Code that makes the content has the hold: it can check it, and take the lock again."""

    @zk_locked("k", timeout=0)
    def nested() -> str:
        return "nested"

    def content() -> Iterator[str]:
        held = current_lock("k")
        assert held is not None
        held.check()
        with zk_lock("k", timeout=0) as inner:
            assert inner.token == held.token
            yield nested()

    assert list(streaming(content())) == [b"nested"]
    assert current_lock() is None
    ensemble.wait_empty("k")


def test_owner__next_request_of_the_thread(ensemble: Ensemble) -> None:
    """Between the parts the hold is not that of the thread, whose next request does not take it for its own."""
    response = streaming(two_parts())
    parts = iter(response)
    next(parts)
    assert current_lock() is None
    with pytest.raises(LockTimeout):
        streaming(two_parts(), timeout=0)
    response.close()
    list(streaming(two_parts(), timeout=LONG))
    ensemble.wait_empty("k")


def test_owner__outer_block(ensemble: Ensemble) -> None:
    """A block around the view, as of a middleware, ends before the response does; the node stays."""
    with zk_lock("k") as outer:
        response = streaming(two_parts())
    assert outer.released
    assert is_held()
    assert list(response) == [b"one", b"two"]
    ensemble.wait_empty("k")


@pytest.mark.shows(
    "guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "ownership#holds-of-responses"
)
def test_streaming__closed_at_work(ensemble: Ensemble) -> None:
    """If a thread makes a part when the response is closed, the lock is kept until that part is made; it is the last.

    So it is when a client disconnects while `sync_to_async` consumes the content.
    """
    inside, go_on, made = threading.Event(), threading.Event(), []

    def content() -> Iterator[str]:
        for number in range(3):
            made.append(number)
            inside.set()
            assert go_on.wait(LONG)
            yield str(number)

    response = streaming(content())
    consuming = Runner(lambda: list(response))
    assert inside.wait(LONG)
    response.close()
    assert is_held()
    go_on.set()
    assert consuming.result() == [b"0"]
    ensemble.wait_empty("k")
    assert made == [0]


@pytest.mark.shows("ownership#holds-of-responses")
def test_streaming__closed_twice(ensemble: Ensemble) -> None:
    """If two threads close a response, the lock is kept until the generator has ended in one of them."""
    inside, go_on = threading.Event(), threading.Event()

    def content() -> Iterator[str]:
        try:
            yield "one"
        finally:
            inside.set()
            assert go_on.wait(LONG)

    response: Any = streaming(content())
    parts = response._iterator
    next(parts)
    closing = Runner(parts.close)
    assert inside.wait(LONG)
    parts.close()
    assert (is_held(), list(parts)) == (True, [])
    go_on.set()
    closing.result()
    ensemble.wait_empty("k")


def test_streaming__two_threads(ensemble: Ensemble) -> None:
    """Two threads that make a part at the same time are an error, as for a generator."""
    inside, go_on = threading.Event(), threading.Event()

    def content() -> Iterator[str]:
        inside.set()
        assert go_on.wait(LONG)
        yield "one"

    response: Any = streaming(content())
    consuming = Runner(lambda: list(response))
    assert inside.wait(LONG)
    with pytest.raises(RuntimeError, match="is being made already"):
        next(response._iterator)
    go_on.set()
    assert consuming.result() == [b"one"]
    ensemble.wait_empty("k")


@pytest.mark.parametrize("wrap", [itertools.chain, lambda rows: map(str.upper, rows), lambda rows: (r for r in rows)])
def test_streaming__generator_in_an_iterator(ensemble: Ensemble, wrap: Callable[[Any], Any]) -> None:
    """What ends with the content has the hold, also in an iterator that knows nothing of an end."""
    seen: list[object] = []

    def content() -> Iterator[str]:
        try:
            yield "one"
            yield "two"
        finally:
            seen.append(current_lock("k") is not None and is_held())

    @zk_locked("k")
    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(wrap(content()))

    response = view(REQUEST)
    next(iter(response))
    response.close()
    assert seen == [True]
    ensemble.wait_empty("k")


def test_streaming__cleanup_fails(ensemble: Ensemble) -> None:
    """An error at the end of the generator releases the lock."""

    def content() -> Iterator[str]:
        try:
            yield "one"
        finally:
            raise ValueError("broken")

    response: Any = streaming(content())
    next(iter(response))
    with pytest.raises(ValueError, match="broken"):
        response._iterator.close()
    ensemble.wait_empty("k")
    response.close()


def test_signals(ensemble: Ensemble, recorder: Recorder) -> None:
    """The lock is acquired and released once, and the hold that is reported is the one of the view."""
    list(streaming(two_parts()))
    recorder.facts("released")
    assert recorder.names == ["acquired", "released"]
    assert recorder.facts("acquired")["held"] is recorder.facts("released")["held"]


# Losses.


def lose(ensemble: Ensemble) -> None:
    held = current_lock("k")
    assert held is not None
    ensemble.delete(held)
    wait_until(lambda: held.lost, LONG)


def losing(ensemble: Ensemble) -> Iterator[str]:
    """Lose the lock before the only part."""
    lose(ensemble)
    yield "one"


def test_lost__streaming(ensemble: Ensemble) -> None:
    """A lock that is lost is an error at the end of the content: the client sees that it is not complete."""
    parts = iter(streaming(losing(ensemble)))
    assert next(parts) == b"one"
    with pytest.raises(LockLost):
        next(parts)
    assert list(streaming(two_parts(), timeout=LONG)) == [b"one", b"two"]


def test_lost__streaming_is_interrupted(ensemble: Ensemble) -> None:
    """With `on_lost="interrupt"` no part is made after the loss."""

    def content() -> Iterator[str]:
        yield from losing(ensemble)
        raise AssertionError("a part was made")

    parts = iter(streaming(content(), on_lost="interrupt"))
    assert next(parts) == b"one"
    with pytest.raises(LockLost):
        next(parts)


def test_lost__ignored(ensemble: Ensemble) -> None:
    """With `on_lost="ignore"` the content is sent, and the template rendered."""
    assert list(streaming(losing(ensemble), on_lost="ignore")) == [b"one"]
    assert rendering(lambda: lose(ensemble), on_lost="ignore").render().content == b"None"


def test_lost__closed(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    """Where no caller can be told, as Django ignores the errors of closing, the loss is logged."""
    response = streaming(losing(ensemble))
    next(iter(response))
    with caplog.at_level(logging.ERROR, "django_zklock.unfinished"):
        response.close()
    (record,) = [record for record in caplog.records if record.name == "django_zklock.unfinished"]
    assert record.getMessage().startswith("event=response_without_lock key='k' token=")


def test_lost__template(ensemble: Ensemble) -> None:
    """A lock that is lost while a template is rendered is an error of the rendering."""
    response = rendering(lambda: lose(ensemble))
    with pytest.raises(LockLost):
        response.render()


@pytest.mark.parametrize("make", [lambda: StreamingHttpResponse(two_parts()), lambda: SimpleTemplateResponse("x")])
def test_lost__in_the_view(ensemble: Ensemble, make: Callable[[], Any]) -> None:
    """A lock that is lost in the view is an error of the call, and nothing is kept."""

    @zk_locked("k", timeout=LONG)
    def view(request: HttpRequest, *, lost: bool = False) -> Any:
        if lost:
            lose(ensemble)
        return make()

    @zk_locked("k", timeout=LONG)
    async def aview(request: HttpRequest) -> Any:
        await sync_to_async(lose)(ensemble)
        return make()

    with pytest.raises(LockLost):
        view(REQUEST, lost=True)
    with pytest.raises(LockLost):
        asyncio.run(aview(REQUEST))
    view(REQUEST).close()


# Coroutine functions.


def test_async__is_consumed(ensemble: Ensemble) -> None:
    """The content of an asynchronous generator has the hold, and the lock is free at its end."""

    async def content() -> AsyncIterator[str]:
        async with zk_lock("k", timeout=0) as held:
            assert (current_lock("k"), held.token) == (held, held.token)
            yield str(held.token)

    async def main() -> int:
        response = await astreaming(content())
        assert await asyncio.to_thread(is_held)
        return len([part async for part in response])

    assert asyncio.run(main()) == 1
    ensemble.wait_empty("k")


@pytest.mark.shows("ownership#holds-of-responses")
def test_async__is_closed(ensemble: Ensemble) -> None:
    """Closing the response ends the generator in its loop, with the hold; the lock is kept until then."""
    seen: list[object] = []

    async def content() -> AsyncIterator[str]:
        try:
            yield "one"
            yield "two"
        finally:
            async with zk_lock("k", timeout=0):
                await asyncio.sleep(0)
                seen.append(await asyncio.to_thread(is_held))

    async def main() -> None:
        response = await astreaming(content())
        parts = aiter(response)
        assert await anext(parts) == b"one"
        await sync_to_async(response.close)()
        await asyncio.to_thread(ensemble.wait_empty, "k")
        assert [part async for part in parts] == []

    asyncio.run(main())
    assert seen == [True]


@pytest.mark.shows("ownership#holds-of-responses")
def test_async__loop_has_ended(ensemble: Ensemble) -> None:
    """A response that outlives its loop releases the lock when it is closed."""

    async def content() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    async def main() -> StreamingHttpResponse:
        response = await astreaming(content())
        await anext(aiter(response))
        return response

    response = asyncio.run(main())
    response.close()
    ensemble.wait_empty("k")


def test_async__closes_itself(ensemble: Ensemble) -> None:
    """If a part is being made when the response is closed, the lock is kept until it is made."""
    responses: list[StreamingHttpResponse] = []

    async def content() -> AsyncIterator[str]:
        await sync_to_async(responses[0].close)()
        assert await asyncio.to_thread(is_held)
        yield "one"

    async def main() -> list[bytes]:
        responses.append(await astreaming(content()))
        parts = [part async for part in responses[0]]
        await asyncio.to_thread(ensemble.wait_empty, "k")
        return parts

    assert asyncio.run(main()) == [b"one"]


def test_async__is_interrupted(ensemble: Ensemble) -> None:
    """With `on_lost="interrupt"` no part is made after the loss."""

    async def content() -> AsyncIterator[str]:
        await sync_to_async(lose)(ensemble)
        yield "one"
        raise AssertionError("a part was made")

    async def main() -> None:
        parts = aiter(await astreaming(content(), on_lost="interrupt"))
        assert await anext(parts) == b"one"
        with pytest.raises(LockLost):
            await anext(parts)

    asyncio.run(main())


async def cancel_next(parts: Any, inside: threading.Event) -> None:
    """Cancel the next of the parts while it is made."""
    consuming: asyncio.Task[bytes] = asyncio.create_task(anext(parts))
    await asyncio.to_thread(inside.wait, LONG)
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming


@pytest.mark.shows("ownership#holds-of-responses")
def test_async__its_thread_goes_on(ensemble: Ensemble) -> None:
    """If a cancellation ends the content while a thread of it works, the lock is kept until the thread has ended."""
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        inside.set()
        assert go_on.wait(LONG)

    async def content() -> AsyncIterator[str]:
        yield "one"
        await asyncio.to_thread(work)
        yield "two"

    async def main() -> None:
        response = await astreaming(content())
        parts = aiter(response)
        await anext(parts)
        await cancel_next(parts, inside)
        await sync_to_async(response.close)()
        held = await asyncio.to_thread(is_held)
        go_on.set()
        assert held
        await asyncio.to_thread(ensemble.wait_empty, "k")

    asyncio.run(main())


# Django's handlers.


@zk_locked("k")
def export(request: HttpRequest) -> StreamingHttpResponse:
    """Stream for ever."""

    def content() -> Iterator[str]:
        while True:
            yield "part"

    return StreamingHttpResponse(content())


@zk_locked("k")
async def aexport(request: HttpRequest) -> StreamingHttpResponse:
    """Stream for ever."""

    async def content() -> AsyncIterator[str]:
        while True:
            await asyncio.sleep(0)
            yield "part"

    return StreamingHttpResponse(content())


@zk_locked("k")
def page(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("{{ held }}"), {"held": _is_held})


@zk_locked("k")
async def apage(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("{{ held }}"), {"held": _is_held})


def _is_held() -> bool:
    with zk_lock("k", timeout=0) as held:
        return current_lock("k") is held


# Responses to which something refers for ever, so that they are never destroyed.
alive: list[Any] = []


def _broken() -> None:
    raise ValueError("broken")


@zk_locked("k")
def file(request: HttpRequest) -> FileResponse:
    """Answer with what the client has already; the response is in a reference cycle of its own."""
    return FileResponse(io.BytesIO(b"content"), headers={"ETag": '"1"'})


@zk_locked("k")
def fails(request: HttpRequest) -> TemplateResponse:
    response = TemplateResponse(request, engines["django"].from_string("{{ broken }}"), {"broken": _broken})
    alive.append(response)
    return response


@zk_locked("k")
def other(request: HttpRequest) -> OtherStreaming:
    return OtherStreaming()


class Method:
    """As of a view of an API, which refers to its response, and is referred to."""

    @zk_locked("k")
    def get(self, request: HttpRequest) -> TemplateResponse:
        self.response = fails(request)
        return self.response


def method(request: HttpRequest) -> TemplateResponse:
    view = Method()
    alive.append(view)
    response: TemplateResponse = view.get(request)
    return response


class Replaced:
    """A middleware that answers something else than the view does, and keeps the view's response."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self.answer(request) if self.is_async else self.other(self.get_response(request))

    async def answer(self, request: HttpRequest) -> Any:
        return self.other(await self.get_response(request))

    def other(self, response: Any) -> HttpResponse:
        alive.append(response)
        return HttpResponse("other")


urlpatterns = [
    path("export", export),
    path("aexport", aexport),
    path("page", page),
    path("apage", apage),
    path("file", file),
    path("fails", fails),
    path("other", other),
    path("method", method),
]


@pytest.fixture
def site(ensemble: Ensemble, settings: Any) -> Any:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    return settings


@pytest.mark.parametrize("url", ["/page", "/apage"])
def test_template__of_a_request(ensemble: Ensemble, site: Any, url: str) -> None:
    """Templates are rendered under the lock, which they can take again, by both of Django's handlers."""
    assert Client().get(url).content == b"True"
    assert asyncio.run(AsyncClient().get(url)).content == b"True"
    ensemble.wait_empty("k")


@pytest.fixture
def _never_destroyed() -> Iterator[None]:
    gc.disable()
    yield
    alive.clear()
    gc.enable()


REPLACED = f"{__name__}.Replaced"
NOT_MODIFIED = "django.middleware.http.ConditionalGetMiddleware"


@pytest.mark.shows("ownership#holds-of-responses")
@pytest.mark.usefixtures("_never_destroyed")
@pytest.mark.parametrize("is_async", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize(
    ("url", "middleware", "status"),
    [
        ("/fails", [], 500),
        ("/method", [], 500),
        ("/file", [NOT_MODIFIED], 304),
        ("/file", [REPLACED], 200),
        ("/page", [REPLACED], 200),
        ("/export", [REPLACED], 200),
        ("/aexport", [REPLACED], 200),
        ("/other", [REPLACED], 200),
    ],
)
def test_end_of_request(
    ensemble: Ensemble, site: Any, url: str, middleware: list[str], status: int, is_async: bool
) -> None:
    """The end of the request releases what its responses keep, also one that is not rendered, sent or destroyed."""
    site.MIDDLEWARE = middleware
    headers = {"If-None-Match": '"1"'}
    if is_async:
        response: Any = asyncio.run(AsyncClient(raise_request_exception=False).get(url, headers=headers))
    else:
        response = Client(raise_request_exception=False).get(url, headers=headers)
    assert response.status_code == status
    ensemble.wait_empty("k")
    assert "close" not in vars(response.wsgi_request if not is_async else response.asgi_request)


def test_end_of_request__several_calls(ensemble: Ensemble, site: Any) -> None:
    """Two views for one request end with it, in any order; what the request closes itself is closed."""
    request: Any = RequestFactory().get("/")
    closed: list[bool] = []
    request._files = MultiValueDict({"file": [MagicMock(close=lambda: closed.append(True))]})
    responses = [view(request) for view in (fails, export)]
    assert is_held()
    request.close()
    ensemble.wait_empty("k")
    assert closed == [True]
    assert list(responses[1]) == []
    request.close()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda request: pickle.loads(pickle.dumps(request))])
def test_end_of_request__of_a_copy(ensemble: Ensemble, duplicate: Callable[[Any], Any]) -> None:
    """A request can be copied and pickled while its response keeps the lock; the end of the copy is not its end."""
    request = HttpRequest()
    response = export(request)
    duplicate(request).close()
    assert (is_held(), response.closed) == (True, False)
    request.close()
    ensemble.wait_empty("k")


_Communicator: Any = ApplicationCommunicator


@pytest.mark.shows(
    "guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "ownership#holds-of-responses"
)
def test_asgi__client_disconnects(ensemble: Ensemble, site: Any) -> None:
    """If the client disconnects in the middle of a stream, the lock is free, and the next request has it."""
    headers = [(b"host", b"testserver")]
    scope = {"type": "http", "method": "GET", "path": "/aexport", "headers": headers, "query_string": b""}

    async def disconnect() -> None:
        client: Any = _Communicator(ASGIHandler(), {**scope, "http_version": "1.1"})
        await client.send_input({"type": "http.request", "body": b"", "more_body": False})
        assert (await client.receive_output(LONG))["status"] == 200
        assert (await client.receive_output(LONG))["body"] == b"part"
        assert await asyncio.to_thread(is_held)
        await client.send_input({"type": "http.disconnect"})
        await client.wait(LONG)
        await asyncio.to_thread(ensemble.wait_empty, "k")

    async def main() -> None:
        for _ in range(2):
            await disconnect()

    asyncio.run(main())
    gc.collect()
