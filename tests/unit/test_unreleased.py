"""Locks that a request or a task has not released, in a thread that goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client
from django.urls import path

from django_zklock import LockLost, current_lock, unreleased, zk_lock, zk_locked
from django_zklock.testing import Sandbox
from django_zklock.zk.held import held_stack
from tests.toolbox.timing import wait_until

if TYPE_CHECKING:
    from pytest_django import Settings


def forgetful(_request: HttpRequest) -> HttpResponse:
    zk_lock("forgotten").acquire()
    return HttpResponse()


@zk_locked("view", template="view")
def tidy(_request: HttpRequest) -> HttpResponse:
    with zk_lock("block"):
        zk_lock("released").acquire().release()
    return HttpResponse()


def streaming(_request: HttpRequest) -> StreamingHttpResponse:
    def body() -> Iterator[str]:
        with zk_lock("stream"):
            yield "part"

    return StreamingHttpResponse(body())


urlpatterns = [path("forgetful", forgetful), path("tidy", tidy), path("streaming", streaming)]


@pytest.fixture
def place() -> Iterator[Sandbox]:
    with Sandbox() as place:
        yield place


@pytest.fixture
def client(settings: Settings, place: Sandbox) -> Iterator[Client]:
    """Return a client of the views above; a warning that no test expects is an error."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield Client()


@pytest.mark.shows("faults#a-hold-is-forgotten")
def test_request__forgets(client: Client) -> None:
    """A lock that a request leaves held is warned of at its end, once."""
    with pytest.warns(ResourceWarning, match="lock 'forgotten' was acquired in this request or task and not released"):
        client.get("/forgetful")
    client.get("/tidy")


@pytest.mark.parametrize("url", ["/tidy", "/streaming"])
@pytest.mark.django_db
def test_request__releases(client: Client, url: str) -> None:
    """What a request has released by its end is no matter for a warning, nor what its caller holds."""
    with zk_lock("around") as held:
        response = client.get(url)
        b"".join(response)
        response.close()
        held.check()
    assert current_lock() is None


@pytest.mark.shows("ownership#holds-that-are-lost")
def test_request__lost(place: Sandbox) -> None:
    """A lock that is lost is not held any more, and is nothing to what this thread does next."""
    around = zk_lock("around").acquire()
    unreleased.begin()
    lost = zk_lock("lost").acquire()
    # A block that is never left.
    entered = zk_lock("entered").acquire().__enter__()
    place.lose(lost)
    wait_until(lambda: entered.lost and around.lost)
    unreleased.end()
    assert held_stack() == [around]
    with pytest.raises(LockLost):
        lost.check()
    around.release()


def test_request__lost_later(place: Sandbox) -> None:
    """What an earlier request has entered and never left does not keep this thread from the lock when it is lost."""
    unreleased.begin()
    entered = zk_lock("entered").acquire().__enter__()
    with pytest.warns(ResourceWarning, match="lock 'entered' was acquired in this request or task"):
        unreleased.end()
    place.lose(entered)
    with zk_lock("entered").acquire(timeout=120) as held:
        assert held.token > entered.token


def test_request__without_a_beginning(place: Sandbox) -> None:
    """An end without a beginning, as of a request that began before the app was ready, says nothing."""
    with zk_lock("around"):
        unreleased.end()


@pytest.mark.celery
def test_task__lost(place: Sandbox) -> None:
    """What one task of a child has lost and not released is in the way of none that follows."""
    from celery import Celery

    from django_zklock.contrib.celery import install

    install()
    app = Celery("unreleased", broker="memory://", set_as_current=False)

    def forgetful() -> None:
        place.lose(zk_lock("shared").acquire())
        place.lose(zk_lock("shared").acquire().__enter__())

    @zk_locked("shared", template="shared", timeout=20)
    def locked() -> str:
        return "ran"

    app.task(shared=False)(forgetful).apply().get()
    assert held_stack() == []
    assert app.task(shared=False)(locked).apply().get() == "ran"


@pytest.mark.shows("faults#a-hold-is-forgotten")
@pytest.mark.celery
@pytest.mark.parametrize("forgets", [True, False])
def test_task__forgets(place: Sandbox, forgets: bool) -> None:
    """The same for a task."""
    from celery import Celery

    from django_zklock.contrib.celery import install

    install()
    app = Celery("unreleased", broker="memory://", set_as_current=False)

    def body() -> None:
        held = zk_lock("forgotten").acquire()
        if not forgets:
            held.release()

    run: Callable[[], Any] = app.task(shared=False)(zk_locked("task")(body)).apply
    if forgets:
        with pytest.warns(ResourceWarning, match="lock 'forgotten' was acquired"):
            run()
    else:
        run()
