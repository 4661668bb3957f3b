"""A WSGI application of Django with one view, which streams under its lock for as long as the client reads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django_zklock"],
    ROOT_URLCONF=__name__,
    ZKLOCK={"default": {"HOSTS": os.environ["HOSTS"], "ROOT": os.environ["ROOT"]}},
)
django.setup()

from django_zklock import zk_locked  # noqa: E402 - when the settings are there


@zk_locked("k")
def export(request: HttpRequest) -> StreamingHttpResponse:
    """Stream for ever."""

    def content() -> Iterator[bytes]:
        while True:
            yield b"part " * 1000

    return StreamingHttpResponse(content())


urlpatterns = [path("", export)]
application = get_wsgi_application()
