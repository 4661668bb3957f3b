"""The undocumented parts of Celery and kombu that are used, checked with the installed versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import celery._state
import pytest
from celery.local import PromiseProxy
from celery.worker import state
from celery.worker.request import Request
from celery.worker.worker import WorkController
from kombu import Consumer
from kombu.transport import redis

from django_zklock.contrib.celery import internals

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


def test_private_names__nowhere_else() -> None:
    """No other module uses a private name of Celery: ruff finds those that are not marked."""
    package = Path(internals.__file__).parents[1]
    modules = [path for path in package.rglob("*.py") if path.parent.name != "internals"]
    assert len(modules) > 10
    marks = ("SLF001", "celery._", '"_orig_run"')
    assert [path.name for path in modules for mark in marks if mark in path.read_text(encoding="utf-8")] == []


def test_names() -> None:
    """All names that the gate looks up exist."""
    assert {"__dict__", "_on_reject"} <= set(Request.__dict__["__slots__"])
    assert {"on_accepted", "on_success", "on_failure", "on_timeout", "_apply_result"} <= set(dir(Request))
    assert {"_process_task_sem", "process_task", "wait_for_soft_shutdown"} & set(dir(WorkController))
    assert {"reserved_requests", "active_requests", "task_ready"} <= set(dir(state))
    assert {"restore_by_tag", "restore_unacked"} <= set(dir(redis.QoS))
    assert redis.Channel.visibility_timeout == 3600
    assert {"get_current_task", "_get_active_apps", "connect_on_app_finalize"} <= set(dir(celery._state))
    assert hasattr(PromiseProxy, "__then__")
    no_channel: Any = None
    assert hasattr(Consumer(no_channel), "_active_tags")
