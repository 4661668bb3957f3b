"""What Python reports of a client is found in its log."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.clients import uncaught


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import threading; threading.Thread(target=lambda: 1 / 0, name='life').start()", "Exception in thread life:"),
        ("type('Value', (), {'__del__': lambda self: 1 / 0})()", "Exception ignored "),
        ("1 / 0", "Traceback (most recent call last):"),
        ("import os; os.abort()", "Fatal Python error: Aborted"),
        ("import logging; logging.error('event=suspended Exception')", ""),
    ],
)
def test_uncaught(program: str, found: str) -> None:
    """An error that nothing catches is found, wherever it is raised, and a log record is none."""
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    log = subprocess.run(command, capture_output=True, check=False).stderr
    assert uncaught(log)[:1] == [line for line in log.decode().splitlines() if found and line.startswith(found)][:1]
    assert bool(uncaught(log)) == bool(found), log
