"""Requests of real web servers: each owns its locks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_zklock import current_lock, zk_lock, zk_locked
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.network.port import free_port
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

REPOSITORY = Path(__file__).resolve().parents[2]
LONG = scaled(60)
# As many as tests/integration/web_applications/greedy.py waits for.
REQUESTS = 4


class WebServer:
    """A server with one worker, which says by a line with ``ready`` that it answers."""

    def __init__(self, server: Server, root: str, *command: str, ready: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=REPOSITORY,
            env={**os.environ, "HOSTS": server.hosts, "ROOT": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._ready = ready
        self._log: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._log.append(line)
            if self._ready in line:
                self._listening.set()
        self._listening.set()

    @property
    def log(self) -> str:
        return "".join(self._log)

    def open(self) -> Any:
        """Ask, and return the answer, of which the head has come."""
        assert self._listening.wait(LONG)
        found = re.search(r"Listening at: (http://[\d.:]+)", self.log)
        assert found, self.log
        # The main process of Granian says that its worker has been started before that listens.
        wait_until(lambda: _accepts(found[1]), timeout=LONG)
        return urllib.request.urlopen(found[1], timeout=LONG)

    def get(self) -> str:
        """Ask, and return the answer."""
        with self.open() as response:
            answer: str = response.read().decode()
        return answer

    def get_together(self, count: int) -> list[list[str]]:
        """Ask ``count`` times at once, and return the words of the answers."""
        return [asking.result(LONG).split() for asking in [Runner(self.get) for _ in range(count)]]

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            # With its workers, if it has left any.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
            self._reader.join(5)
            assert self.process.stdout is not None
            self.process.stdout.close()


def _accepts(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LONG).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.shows("faults#threads-are-patched-after-the-import")
@pytest.mark.once
@pytest.mark.parametrize("preload", [["--preload"], []], ids=["preload", "no preload"])
@pytest.mark.parametrize("worker", ["gevent", "gthread"])
def test_gunicorn(server: Server, root: str, worker: str, preload: list[str]) -> None:
    """Of the requests that a worker of gunicorn has at once one holds the lock, even if it is patched after imports."""
    options = ["--bind", "127.0.0.1:0", "--worker-class", worker, "--threads", str(REQUESTS), *preload]
    application = "tests.integration.web_applications.greedy:application"
    gunicorn = WebServer(server, root, "gunicorn", *options, application, ready="Booting worker")
    try:
        answers = gunicorn.get_together(REQUESTS)
    finally:
        gunicorn.end()
    inside, tokens = zip(*answers, strict=True)
    assert inside == ("1",) * REQUESTS, gunicorn.log
    assert len(set(tokens)) == REQUESTS


# Rounds of requests, of which each begins when a thread of the last one has ended.
ROUNDS = 6


def _has_ended(tasks: Path, numbers: list[str]) -> bool:
    return not all((tasks / number).exists() for number in numbers)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux shows when a thread has ended")
def test_granian(server: Server, root: str) -> None:
    """A thread of a server in Rust owns nothing of one that has ended, also if it has the same ident in Python."""
    port = free_port()
    threads = ["--workers", "1", "--blocking-threads", str(REQUESTS), "--blocking-threads-idle-timeout", "5"]
    options = ["--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port), *threads]
    application = "tests.integration.web_applications.hoarding:application"
    granian = WebServer(server, root, "granian", *options, application, ready="Started worker")
    idents: dict[str, str] = {}
    try:
        for _ in range(ROUNDS):
            answers = granian.get_together(REQUESTS)
            assert [answer[3:] for answer in answers] == [[]] * REQUESTS, granian.log
            found = {number: ident for _process, number, ident, *_ in answers}
            if set(found.values()) & {ident for number, ident in idents.items() if number not in found}:
                return
            idents |= found
            tasks = Path("/proc", answers[0][0], "task")
            wait_until(partial(_has_ended, tasks, list(found)), timeout=LONG)
    finally:
        granian.end()
    pytest.fail(f"no ident was given again: {idents}")


@pytest.mark.shows(
    "guarantees#the-lock-is-kept-for-what-a-call-makes-or-the-call-is-refused", "ownership#holds-of-responses"
)
@pytest.mark.once
@pytest.mark.parametrize("kind", ["gunicorn", "granian"])
def test_client_disconnects(server: Server, root: str, observer: Observer, kind: str) -> None:
    """A streaming view keeps its lock while the client reads; when the client is gone, the next request has it."""
    application = "tests.integration.web_applications.streaming:application"
    port = str(free_port())
    options = {
        "gunicorn": ["--bind", f"127.0.0.1:{port}", "--threads", "2"],
        "granian": ["--interface", "wsgi", "--host", "127.0.0.1", "--port", port, "--blocking-threads", "2"],
    }
    ready = {"gunicorn": "Booting worker", "granian": "Started worker"}
    site = WebServer(server, root, kind, *options[kind], application, ready=ready[kind])
    try:
        first = site.open()
        assert first.read(4) == b"part"
        second = Runner(site.open)
        observer.wait_count(f"{root}/k", 2, LONG)
        assert first.read(4) == b" par"
        first.close()
        with second.result(LONG) as response:
            assert response.read(4) == b"part", site.log
        observer.wait_empty(f"{root}/k", LONG)
    finally:
        site.end()


# Requests of Django's ASGI handler.

inside = 0
together: list[int] = []
both_have_come = threading.Barrier(2)


def _meet() -> None:
    global inside  # noqa: PLW0603 - what the requests share
    inside += 1
    together.append(inside)


def _part() -> None:
    global inside  # noqa: PLW0603
    inside -= 1


def sync_view(_request: HttpRequest) -> HttpResponse:
    """Take the lock in plain code, when another request is about to do so too."""
    both_have_come.wait(LONG)
    with zk_lock("k") as held:
        _meet()
        with zk_lock("k") as nested:
            assert nested.node == held.node
        _part()
    return HttpResponse(str(held.token))


async def async_view(_request: HttpRequest) -> HttpResponse:
    """Take the lock in a coroutine, and ask for it again in the thread of the request."""
    await asyncio.to_thread(both_have_come.wait, LONG)
    async with zk_lock("k") as held:
        _meet()
        assert await sync_to_async(_token_of_nested)() == held.token
        await asyncio.sleep(0.01)
        _part()
    return HttpResponse(str(held.token))


async def nested_view(_request: HttpRequest) -> HttpResponse:
    """Ask in a coroutine for what a plain middleware has taken around it."""
    outer = current_lock("k")
    assert outer is not None
    async with zk_lock("k") as held:
        assert await sync_to_async(_token_of_nested)() == held.token == outer.token
    return HttpResponse(str(held.token))


def _token_of_nested() -> int:
    with zk_lock("k") as held:
        return held.token


def middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Hold the lock while a request is answered."""

    @zk_locked("k")
    def answered(request: HttpRequest) -> HttpResponse:
        return get_response(request)

    return answered


urlpatterns = [path("sync", sync_view), path("async", async_view), path("nested", nested_view)]


# To mypy it has no types.
_Communicator: Any = ApplicationCommunicator


async def answer(to: str) -> str:
    """Send a request through an application of its own, as a server does."""
    headers = [(b"host", b"testserver")]
    scope = {"type": "http", "method": "GET", "path": f"/{to}", "headers": headers, "query_string": b""}
    client: Any = _Communicator(ASGIHandler(), {**scope, "http_version": "1.1"})
    await client.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await client.receive_output(LONG)
    body = await client.receive_output(LONG)
    await client.wait(LONG)
    assert start["status"] == 200, body
    text: str = body["body"].decode()
    return text


@pytest.fixture
def site(ensemble: Ensemble, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("first", ["sync", "async"])
@pytest.mark.parametrize("second", ["sync", "async"])
def test_asgi__two_requests(first: str, second: str) -> None:
    """Two requests of one event loop take turns, whatever their views are; each re-enters its own lock."""
    together.clear()

    async def main() -> list[str]:
        return list(await asyncio.gather(answer(first), answer(second)))

    tokens = asyncio.run(main())
    assert together == [1, 1]
    assert len(set(tokens)) == 2


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("server_is", ["asgi", "wsgi"])
def test_requests__middleware_around_an_async_view(settings: Any, server_is: str) -> None:
    """A coroutine that answers a request re-enters what a plain middleware holds around it, over all bridges."""
    settings.MIDDLEWARE = [f"{__name__}.middleware"]
    if server_is == "asgi":
        assert int(asyncio.run(answer("nested"))) > 0
    else:
        assert int(Client().get("/nested").content) > 0
