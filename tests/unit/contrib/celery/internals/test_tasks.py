"""Tasks of the installed Celery: what they know of their request, and what a retry sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from django_zklock.contrib.celery.internals.tasks import current_request, keep_headers

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


def test_current_request__is_that_of_the_message() -> None:
    """While the key is made in the main process, the task's own request is that of its message, as in a slot."""
    app = Celery("tasks", broker="memory://")

    @app.task(name="bill")
    def bill() -> None: ...

    facts = {"id": "4711", "headers": {"tenant": "north"}}
    received: Any = SimpleNamespace(task=bill, request_dict=facts, args=[7], kwargs={"year": 2026})
    with current_request(received):
        request = bill.request
        assert (request.id, request.args, request.kwargs) == ("4711", [7], {"year": 2026})
        assert (request.headers, request.called_directly) == ({"tenant": "north"}, False)
    assert bill.request.id is None


@pytest.mark.parametrize("facts", [{"id": "4711", "tenant": "north"}, {"headers": {"tenant": "north"}}])
def test_keep_headers(facts: dict[str, Any]) -> None:
    """What is added to the facts of a request later is in no header that a retry sends; what was there before is."""
    keep_headers(facts)
    headers = Context({**facts, "zklock": object()}).headers or {}
    assert headers["tenant"] == "north"
    assert "zklock" not in headers
