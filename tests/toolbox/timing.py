"""How slow this machine is, measured once in a run, and the times of tests that follow from it.

A time in a test is written as it is on a machine like that of :data:`QUIET` with nothing else to do, and `scaled` makes
it longer where processes get less computing done in a second.
Fixtures and helpers scale what a test gives them: the sessions and connect timeouts of pools and workers, and how long
they wait for what must happen. So do the limits of pytest-timeout. A test itself scales what it gives to others.

A bound on the clock is ``GRACE`` more than what it shows. It shows that something ends by its own limit and not by
another one, so that one must be larger than the bound: a connect timeout of a minute, a session of forty seconds.

``python -m tests.toolbox.timing`` prints the measure. All programs of a run find it in :data:`VARIABLE`, which also
takes a number of the user's choice.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "ZKLOCK_SLOWNESS"
# Seconds for the probes, one for each core and all at once. On two cores of a server, an Intel Xeon, each takes 0.8 of
# computing; what is a quarter slower counts as quiet. Within less a scheduler lets a new program catch up with others.
QUIET = 1.0
# Beyond this the tests would take hours.
MAX_SLOWNESS = 10.0
_PROBE = "number = 0\nfor each in range(4_000_000): number = (3 * number + each) & 65535"

# Most tests wait for something: with two at once a core has nothing to do for two fifths of the time.
PROCESSES_PER_CORE = 4
# Each grows to 250 MB, beside the servers that it starts.
MAX_PROCESSES = 16


def cores() -> int:
    """Return on how many cores this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure() -> float:
    """Return how many times longer than on a quiet machine programs take that use every core; takes 0.8 seconds then.

    Programs, because a limit to the whole of them (a cgroup's, of half a core each) leaves a single one its own core.
    """
    began = time.perf_counter()
    # Neither the site's packages nor variables for Python: they would be measured too.
    probes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", _PROBE]) for _ in range(cores())]
    for probe in probes:
        probe.wait()
    return (time.perf_counter() - began) / QUIET


def _slowness() -> float:
    """Return the measure of this run, and make it if this is the first program to ask."""
    given = os.environ.get(VARIABLE)
    slowness = round(min(max(float(given) if given else measure(), 1.0), MAX_SLOWNESS), 2)
    os.environ[VARIABLE] = str(slowness)
    return slowness


# How many times longer than on a quiet machine anything takes here; at least 1.
SLOWNESS = _slowness()


def scaled(seconds: float) -> float:
    """Return ``seconds`` of a quiet machine in seconds of this one, to the millisecond, as ZooKeeper counts."""
    return round(seconds * SLOWNESS, 3)


def processes(slowness: float = SLOWNESS, cores: int = cores()) -> int:
    """Return how many processes run tests at once: each gets about as much computing done as on a quiet machine."""
    return max(2, math.ceil(min(PROCESSES_PER_CORE * cores, MAX_PROCESSES) / slowness))


# Added to a bound: it is missed when something waits for another limit, and never because the machine is busy.
GRACE = scaled(15.0)
# A sixth of this session, a heartbeat, and the grace are over before it can end. Fixtures scale it.
LONG_SESSION = 30.0
# The longest session that the servers of the fixtures grant.
MAX_SESSION = scaled(60.0)
# Seconds between two questions.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05


def wait_until(condition: Callable[[], Any], timeout: float = 30.0, what: str = "") -> Any:
    """Wait for ``condition`` to become true and return its value; fail after ``timeout`` seconds of a quiet machine.

    The longer it takes, the longer are the pauses: most conditions ask a server, which has other work to do.
    """
    began, limit = time.monotonic(), scaled(timeout)
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < limit, f"not within {limit:g} s: {what or condition}"
        time.sleep(min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))
    return value


if __name__ == "__main__":
    print(SLOWNESS)  # noqa: T201 - what it is for
