"""Locks as plain values: the command that ends a task."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from django_zklock.serializers import end_command, kill_command
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops.snapshots import QueueEntry

BILL = Work(kind="task", name="billing.bill", id="77", worker="celery@web1", child=93)


def entry_of(work: Work | None) -> QueueEntry:
    return QueueEntry(
        node="n", path="/p/n", kind="exclusive", position=0, held=True, token=1, session_id=1, since=0.0,
        identity=Identity(host="web1", pid=71, work=work),
    )  # fmt: skip


@pytest.mark.parametrize("child", [0, 93])
def test_end_command(monkeypatch: pytest.MonkeyPatch, child: int) -> None:
    """A task in a child is ended by Celery's remote control, at its worker alone, known child or not."""
    monkeypatch.setitem(sys.modules, "celery.app", None)
    line = end_command(entry_of(replace(BILL, child=child)))
    assert line == "celery -A PROJECT control -d celery@web1 terminate SIGTERM 77"


@pytest.mark.parametrize(
    ("child", "line"), [(93, "kill -9 93"), (0, None), (None, None), (1, None), (-1, None), (-93, None)]
)
def test_kill_command(child: int | None, line: str | None) -> None:
    """The child is killed by its pid; what is no pid, in data that any client may have written, is no command."""
    assert kill_command(entry_of(replace(BILL, child=child))) == line


def test_kill_command__task_is_forgotten() -> None:
    """A task that its worker has forgotten is not ended by remote control, and its child can be killed."""
    entry = entry_of(replace(BILL, forgotten=True))
    assert (end_command(entry), kill_command(entry)) == (None, "kill -9 93")


@pytest.mark.celery
def test_end_command__names_the_app() -> None:
    """In a process with the project's Celery app the line has its name."""
    from celery.app import app_or_default
    from config.celery import app

    before = app_or_default()
    app.set_current()
    try:
        line = end_command(entry_of(BILL))
    finally:
        before.set_current()
    assert line is not None
    assert line.startswith("celery -A config control ")


@pytest.mark.celery
@pytest.mark.parametrize(
    ("name", "attributes", "module"),
    [
        ("an_online_shop", {"an_online_shop_settings.celery_app": "app"}, "an_online_shop_settings.celery_app"),
        ("an online shop", {"a.b.tasks": "app", "an_online_shop": "celery_app"}, "an_online_shop"),
        ("an_online_shop", {"an_online_shop.celery": "app", "aa": "app"}, "an_online_shop"),
        ("an_online_shop", {}, "PROJECT"),
    ],
)
def test_end_command__app_with_the_name_of_no_module(
    monkeypatch: pytest.MonkeyPatch, name: str, attributes: dict[str, str], module: str
) -> None:
    """The line has the module of the app, which need not be the app's name."""
    from celery import Celery
    from celery.app import app_or_default

    before, app = app_or_default(), Celery(name)
    for each, attribute in attributes.items():
        monkeypatch.setitem(sys.modules, each, ModuleType(each))
        setattr(sys.modules[each], attribute, app)
    try:
        line = end_command(entry_of(BILL))
    finally:
        before.set_current()
    assert line is not None
    assert line.startswith(f"celery -A {module} control ")


@pytest.mark.parametrize(
    "work",
    [
        None,
        Work(kind="command", name="nightly"),
        replace(BILL, child=None),
        replace(BILL, id=""),
        replace(BILL, id="--help"),
    ],
)
def test_end_command__none(work: Work | None) -> None:
    """There is no line for other work, for a task without a child of its own, and for an id that is an option."""
    assert end_command(entry_of(work)) is None


def test_end_command__hostile() -> None:
    """Data of other clients adds neither words nor options to the line, nor control characters."""
    line = end_command(entry_of(replace(BILL, id="x; rm -rf $HOME\x1b\n'", worker="`id`")))
    assert line is not None
    assert line.isprintable()
    assert shlex.split(line)[3:] == ["control", "-d", "`id`", "terminate", "SIGTERM", "x; rm -rf $HOME\\x1b\\n'"]
    line = end_command(entry_of(replace(BILL, worker="--broker=evil")))
    assert line is not None
    assert "evil" not in line
