"""The README's examples do what it says."""

from __future__ import annotations

import importlib.util
import io
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import call_command

from django_zklock import conf, current_lock, zk_lock
from tests.project.doc_blocks import Block, execute, runs
from tests.toolbox.timing import scaled

Blocks = list[Block]


@pytest.mark.celery
@pytest.mark.zookeeper
@pytest.mark.usefixtures("zklock")
@runs("README.md", "@shared_task", "catalogue")
def test_task(blocks: Blocks, capsys: pytest.CaptureFixture[str]) -> None:
    """The task runs under its lock, and so does the block."""
    names = execute(blocks, {})
    assert re.fullmatch(r"catalogue is ours, after \d\.\d{3} s\n", capsys.readouterr().out)
    assert re.fullmatch(r"invoice 42 billed, fencing token [1-9]\d*", names["bill"](42))
    assert current_lock() is None


@pytest.mark.zookeeper
@pytest.mark.usefixtures("zklock")
@runs("README.md", "BaseCommand")
def test_command(blocks: Blocks) -> None:
    """The command runs under its lock; when that is taken, it names the holder and does nothing."""
    command = execute(blocks, {})["Command"]
    assert output_of(command()) == "The report is written.\n"
    with zk_lock("nightly-report"), ThreadPoolExecutor() as another_thread:
        output = another_thread.submit(output_of, command()).result(timeout=scaled(30))
    assert re.fullmatch(r"Skipped: lock 'nightly-report': held by .*pid \d+ on .+\.\n", output)


@runs("README.md", "ZKLOCK =")
def test_settings(blocks: Blocks, settings: Any) -> None:
    """The settings are enough, and the app is the one to install."""
    names = execute(blocks, {})
    settings.ZKLOCK = names["ZKLOCK"]
    assert conf.options("default").connection.hosts == "zk1:2181,zk2:2181,zk3:2181"
    assert all(importlib.util.find_spec(app) for app in names["INSTALLED_APPS"])


def output_of(command: Any) -> str:
    stream = io.StringIO()
    call_command(command, stdout=stream)
    return stream.getvalue()
