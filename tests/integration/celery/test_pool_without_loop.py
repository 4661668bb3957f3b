"""The end of a child of a pool without an event loop, which brokers such as kombu's filesystem transport have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.celery


@pytest.mark.shows("faults#a-child-with-threads-is-ended-in-a-pool-without-an-event-loop")
def test_end__with_another_thread() -> None:
    """The answer to the last word of a child with several threads does not end it under the lock of the queue."""
    command = [sys.executable, "-m", "tests.integration.celery.pool_without_loop"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "working\n"
        finally:
            os.killpg(program.pid, signal.SIGKILL)
