"""Clients that disconnect while a view writes in a thread: requests of Django's ASGI handler lose no update."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from billing.models import Account
from django.core.handlers.asgi import ASGIHandler
from django.db import connections, transaction
from django.db.models.signals import pre_save
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_zklock import zk_lock, zk_locked
from tests.toolbox.django.layer import Ensemble

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

KEY = "account"
# Seconds, for what must not happen: a wait that never ends.
LONG = 60.0


class Visit:
    """What a request has come to."""

    def __init__(self) -> None:
        # It has read; it may write; its view has been left.
        self.has_read, self.may_write, self.left = threading.Event(), threading.Event(), threading.Event()


visits: dict[str, Visit] = {}
alias = ""


def pause(name: str) -> None:
    """Stand between the reading and the writing of a request."""
    visits[name].has_read.set()
    assert visits[name].may_write.wait(LONG)


def add_one(name: str) -> None:
    """Read, and write what was read and one more, as a transaction does that locks no rows."""
    with transaction.atomic(alias):
        account = Account.objects.using(alias).get(name="Ada")
        pause(name)
        Account.objects.using(alias).filter(pk=account.pk).update(balance=account.balance + 1)
    connections[alias].close()


async def by_block(name: str) -> None:
    async with zk_lock(KEY):
        await sync_to_async(add_one)(name)


@zk_locked(KEY, template=KEY)
async def by_decorator(name: str) -> None:
    await sync_to_async(add_one)(name)


@zk_locked(KEY, template=KEY)
def locked_add_one(name: str) -> None:
    add_one(name)


async def by_function_in_the_thread(name: str) -> None:
    await sync_to_async(locked_add_one)(name)


async def by_model(name: str) -> None:
    """Use Django's own methods, with a fence."""

    def wait(instance: Account, **_facts: Any) -> None:
        if instance is account:
            pause(name)

    async with zk_lock(KEY):
        account = await Account.objects.using(alias).aget(name="Ada")
        account.balance += 1
        pre_save.connect(wait, sender=Account, weak=False)
        try:
            await account.asave(using=alias)
        finally:
            pre_save.disconnect(wait, sender=Account)


FORMS: dict[str, Callable[[str], Awaitable[None]]] = {
    form.__name__: form for form in (by_block, by_decorator, by_function_in_the_thread, by_model)
}


async def view(request: HttpRequest, form: str) -> HttpResponse:
    name = request.GET["name"]
    try:
        await FORMS[form](name)
    finally:
        visits[name].left.set()
    return HttpResponse()


urlpatterns = [path("<form>", view)]


async def request(form: str, name: str, *, disconnects: bool) -> None:
    """Send a request as a server does; the client disconnects, or not, when the request has read."""
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.to_thread(visits[name].has_read.wait, LONG)
        if not disconnects:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": f"/{form}", "headers": [(b"host", b"testserver")]}
    handler: Any = ASGIHandler()
    await handler({**scope, "query_string": f"name={name}".encode(), "http_version": "1.1"}, receive, send)


@pytest.mark.shows("guarantees#a-hold-follows-the-work-into-threads")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_disconnect(database: str, ensemble: Ensemble, settings: Any, form: str) -> None:
    """The next holder reads what the thread of a cancelled view has written."""
    global alias  # noqa: PLW0603 - what the requests share
    alias = database
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    Account.objects.using(alias).create(name="Ada", balance=0)
    visits.update(first=Visit(), second=Visit())

    async def main() -> None:
        first = asyncio.create_task(request(form, "first", disconnects=True))
        assert await asyncio.to_thread(visits["first"].left.wait, LONG)
        second = asyncio.create_task(request(form, "second", disconnects=False))
        # In the queue, or, if it is wrong, at the account already.
        await asyncio.to_thread(ensemble.wait_count, KEY, 2)
        assert not visits["second"].has_read.is_set()
        for visit in visits.values():
            visit.may_write.set()
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert Account.objects.using(alias).get(name="Ada").balance == 2
    ensemble.wait_empty(KEY)
