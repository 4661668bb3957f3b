"""The pools of the installed Celery, and their jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from django_zklock.contrib.celery.internals import pool

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


def test_has_lost_job__pool_stopped() -> None:
    """A pool that is stopped has no jobs, also while the one of a request is still referred to."""
    request: Any = SimpleNamespace(_apply_result=lambda: SimpleNamespace(_job=1))
    assert not pool.has_lost_job(SimpleNamespace(_pool=SimpleNamespace(_cache={1: None})), request)
    assert pool.has_lost_job(SimpleNamespace(_pool=None), request)
