"""The modules that a process imports when Django starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolbox.processes.project import PROJECT

# What is imported when the first lock is taken, or a worker begins.
LATER = (
    "kazoo",
    "billiard",
    "celery.concurrency",
    "celery.worker",
    "kombu.asynchronous",
    "django_zklock.zk.wire.client",
)

START = """
import json, sys
import django
from django.conf import settings

with_celery, with_locks = "celery" in sys.argv, "locks" in sys.argv
apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
settings.configure(
    INSTALLED_APPS=apps + ["django_zklock"] * with_locks, SECRET_KEY="start", ZKLOCK={"default": {"HOSTS": "zk1:2181"}}
)
if with_celery:
    from celery import Celery, shared_task

    app = Celery("start", broker="memory://")
if "control" in sys.argv:
    import celery.bin.control
django.setup()
if with_locks:
    from django_zklock import zk_lock, zk_locked

    lock = zk_lock("nightly")
def bill(invoice_id): ...
work = zk_locked("invoice:{invoice_id}", on_lost="terminate")(bill) if with_locks else bill
if with_celery:
    shared_task(work)
    app.finalize()
print(json.dumps(sorted(sys.modules)))
"""


def modules(*arguments: str) -> set[str]:
    """Return the modules that a process has imported after Django's start."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT.parent), *filter(None, sys.path)])}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    run = subprocess.run(
        [sys.executable, "-c", START, *arguments], capture_output=True, text=True, timeout=100, check=False,
        env=environment, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("what", [pytest.param("celery", marks=pytest.mark.celery), "plain"])
def test_start__imports_later_what_locks_need(what: str) -> None:
    """Before the first lock is taken, neither kazoo nor more of Celery is imported."""
    added = modules(what, "locks") - modules(what)
    assert "django_zklock.apps" in added
    assert ("django_zklock.contrib.celery.tasks" in added) == (what == "celery")
    assert sorted(name for name in added if name.startswith(LATER)) == []


@pytest.mark.celery
def test_start__of_a_command_line() -> None:
    """If Celery's remote control is imported before Django starts, as by `celery inspect`, it knows our commands."""
    assert "django_zklock.contrib.celery.inspect" in modules("celery", "control", "locks")
