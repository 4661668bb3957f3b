"""The README's examples do what it says."""

from __future__ import annotations

import importlib.util
import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_zklock import conf, current_lock, zk_lock

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def block(word: str) -> str:
    """Give the one example that has this word."""
    found: list[str] = [text for text in BLOCKS if word in text]
    assert len(found) == 1
    return found[0]


def run(text: str, name: str) -> dict[str, Any]:
    """Run an example as a module of this name, and give its names."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, "README.md", "exec"), names)
    return names


def test_blocks__none_is_left_out() -> None:
    """Each example of the README has its test below."""
    assert len(BLOCKS) == 3


@pytest.mark.celery
@pytest.mark.zookeeper
@pytest.mark.usefixtures("zklock")
def test_task(capsys: pytest.CaptureFixture[str]) -> None:
    """The task runs under its lock, and so does the block."""
    names = run(block("@shared_task"), "readme_tasks")
    assert re.fullmatch(r"catalogue is ours, after \d\.\d{3} s\n", capsys.readouterr().out)
    assert re.fullmatch(r"invoice 42 billed, fencing token [1-9]\d*", names["bill"](42))
    assert current_lock() is None


@pytest.mark.zookeeper
@pytest.mark.usefixtures("zklock")
def test_command() -> None:
    """The command runs under its lock; when that is taken, it says who has it and does nothing."""
    command = run(block("BaseCommand"), "readme.management.commands.report")["Command"]
    assert output_of(command()) == "The report is written.\n"
    with zk_lock("nightly-report"), ThreadPoolExecutor() as another_thread:
        output = another_thread.submit(output_of, command()).result(timeout=30)
    assert re.fullmatch(r"Skipped: lock 'nightly-report': held by .*pid \d+ on .+\.\n", output)


def test_settings(settings: Any) -> None:
    """The settings are enough, and the app is the one to install."""
    names = run(block("ZKLOCK ="), "readme_settings")
    settings.ZKLOCK = names["ZKLOCK"]
    assert conf.options("default").connection.hosts == "zk1:2181,zk2:2181,zk3:2181"
    assert all(importlib.util.find_spec(app) for app in names["INSTALLED_APPS"])


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links__lead_somewhere(target: str) -> None:
    """Every link of the README leads to a file of this repository."""
    assert (ROOT / target).is_file()


def output_of(command: Any) -> str:
    stream = io.StringIO()
    call_command(command, stdout=stream)
    return stream.getvalue()
