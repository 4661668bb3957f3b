"""What is left out of Celery's tests, and the tests that pass without the gate and cannot pass with it, with reasons.

The lists are exact: a test on the second one that passes with the gate fails the run just as one that is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .run import Part

# It depends on the tests before it: one that looks for the commands of installed packages imports ours in either run.
COMMANDS = "the package adds commands to remote control, and Celery's class has methods for its own ones alone"

UNIT = Part(
    name="unit",
    paths=["t/unit/worker", "t/unit/app", "t/unit/tasks", "t/unit/concurrency"],
    needs_worker=False,
    timeout=3600.0,
    left_out={"t/unit/app/test_control.py::test_inspect_implements_all_commands": COMMANDS},
)
TASKS = Part(
    name="tasks",
    paths=["t/integration/test_tasks.py", "t/integration/test_group_chains.py", "t/integration/test_inspect.py"],
    needs_worker=True,
    timeout=3600.0,
)
CANVAS = Part(name="canvas", paths=["t/integration/test_canvas.py"], needs_worker=True, timeout=5400.0)

# None so far: test -> reason.
REASONS: Mapping[str, str] = MappingProxyType({})
