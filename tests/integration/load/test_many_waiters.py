"""Thousands wait in one process; ``make soak WHAT=waiters`` has ten thousand, and a session's budget of production."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.pool import SESSION_BUDGET
from tests.toolbox.timing import scaled

HOME = Path(__file__).resolve().parents[3]
FULL = 10_000
COUNT = int(os.environ.get("ZKLOCK_WAITERS", "2000"))
# In MB, for all of them together, tasks and coroutines of the test included; and what the allocator keeps in any case.
MEMORY = 2.0 + 100.0 * COUNT / FULL
# For each a creation, the watches on its own node and the one before, a read of the holder's or the next one's node,
# and a deletion; and room for what is asked now and then.
REQUESTS = 6
# The nodes of ten thousand take 0.7 MB, and one session has room for 0.5 MB: there is a second one, with a thread.
BUDGET = SESSION_BUDGET * COUNT // FULL
THREADS = 1
# A list of all names is shared by the waiters that ask together; one for each would be gigabytes.
LISTS = 0.1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_waiters(root: str) -> None:
    """They cost no thread each and little memory, ask the server for little, and are served in order to the last."""
    with ZooKeeperServer() as server:
        arguments = [
            sys.executable,
            "-m",
            "tests.integration.load.many_waiters",
            server.hosts,
            root,
            str(COUNT),
            str(BUDGET),
        ]
        done = subprocess.run(arguments, cwd=HOME, capture_output=True, text=True, timeout=scaled(240), check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["served"], found["in order"], found["threads"], found["left"]) == (COUNT, True, THREADS, []), (
            found
        )
        assert max(found["waiting"], found["most"]) < MEMORY, found
        requests = server.requests.counts()
        assert sum(requests.values()) < REQUESTS * COUNT, requests
        assert requests["getChildren"] < LISTS * COUNT, requests
