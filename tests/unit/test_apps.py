"""The Django app at start-up, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nocelery

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": "zk1:2181"}})
django.setup()
"""


def run(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, text=True, capture_output=True, check=False, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_ready__without_celery() -> None:
    """A process without Celery does not import it."""
    code = f"{SETUP}import sys; print(sorted({{'celery', 'kombu', 'django_zklock.admin'}} & set(sys.modules)))"
    assert run(code) == "[]\n"


@pytest.mark.celery
def test_ready__with_celery() -> None:
    """With Celery imported, as in a worker, its signals have our receivers."""
    code = f"""
import sys
import celery
from celery.signals import worker_process_shutdown
before = len(worker_process_shutdown.receivers or ())
{SETUP}
print("django_zklock.contrib.celery" in sys.modules, len(worker_process_shutdown.receivers) > before)
"""
    assert run(code) == "True True\n"


@pytest.mark.celery
def test_celery__imported_later() -> None:
    """Where Celery is imported after Django was set up, as in some tests, the first locked function connects to it."""
    code = f"""
{SETUP}
from celery.signals import task_prerun, worker_init, worker_process_shutdown
from django_zklock import zk_locked
signals = task_prerun, worker_init, worker_process_shutdown
before = [len(each.receivers or ()) for each in signals]
for _ in range(2):
    zk_locked("{{key}}")(lambda key: None)
print([len(each.receivers) - count for each, count in zip(signals, before)])
"""
    assert run(code) == "[3, 1, 1]\n"


@pytest.mark.celery
def test_celery__app_not_installed() -> None:
    """A project without the app in INSTALLED_APPS has no gate, whenever it imports Celery."""
    code = f"""
{SETUP.replace('["django_zklock"]', "[]")}
from celery.signals import worker_init
from django_zklock import zk_locked
before = len(worker_init.receivers or ())
zk_locked("{{key}}")(lambda key: None)
print(len(worker_init.receivers or ()) - before)
"""
    assert run(code) == "0\n"


def test_ready__starts_nothing() -> None:
    """Starting Django connects to nothing and starts no thread."""
    code = f"{SETUP}import threading; print(threading.active_count())"
    assert run(code) == "1\n"
