"""The metrics of the locks of a worker's tasks, and the processes that record them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HOWTO = Path(__file__).resolve().parents[3] / "docs" / "howto" / "metrics.md"

# Each of the worker's processes measures, the main one too.
MEASURED = ("--include", "tests.toolbox.celery.readiness,workshop.metrics")

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]


def stop(workshop: Any) -> list[dict[str, Any]]:
    """Stop the worker, and return what its processes have counted, without what they have now: nodes, and tasks."""
    workshop.worker.stop()
    notes: list[dict[str, Any]] = workshop.notes(f"{workshop.queue}:metrics")
    for note in notes:
        note["counts"] = [each for each in note["counts"] if each[0] not in {"zklock.nodes.size", "zklock.gate.tasks"}]
    return notes


def sum_of(notes: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    """Return the sums of all processes by the name of the instrument and the template."""
    counts: Counter[tuple[str, str | None]] = Counter()
    for note in notes:
        counts.update({(name, template): count for name, template, count in note["counts"]})
    return counts


@pytest.mark.parametrize(("pool", "gate"), [("prefork", True), ("prefork", False), ("threads", True)])
def test_worker__counts_once(open_workshop: Any, key: str, pool: str, gate: bool) -> None:
    """Each lock of a task is counted once, in the process where the body runs, and not in the one that holds it.

    One that is lost is counted as lost once, and no longer as held, in all processes together.
    """
    with open_workshop(pool=pool, gate=gate, concurrency=4, options=MEASURED) as workshop:
        workshop.other_client.take(key)
        waiting = [workshop.send("shared_below", key) for _ in range(3)]
        workshop.wait_count(key, 4)
        assert type(workshop.outcome(workshop.send("give_up", key))).__name__ == "LockTimeout"
        assert workshop.result(workshop.send("skip", key))["zklock"] == "skipped"
        workshop.other_client.release(key)
        for task in waiting:
            workshop.result(task)
        # It acquires its own lock again, which is not counted, and one with a plain key.
        workshop.result(workshop.send("nest", key))
        lost = workshop.send("hold_interruptibly", key, f"{key}:gate")
        workshop.entered(f"{key}:gate")
        workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
        assert type(workshop.outcome(lost)).__name__ == "LockLost"
        main_process = workshop.worker.pid
        notes = stop(workshop)
        assert sum_of(notes) == {
            ("zklock.acquisitions", "{key}"): 5,
            ("zklock.acquisitions", None): 1,
            ("zklock.contentions", "{key}"): 4,
            # The task that gave up, and the task that was skipped.
            ("zklock.refusals", "{key}"): 2,
            ("zklock.losses", "{key}"): 1,
            ("zklock.active_holds", "{key}"): 0,
            ("zklock.active_holds", None): 0,
            ("zklock.wait.duration", "{key}"): 5,
            ("zklock.wait.duration", None): 1,
            ("zklock.hold.duration", "{key}"): 5,
            ("zklock.hold.duration", None): 1,
        }
        (main,) = [note for note in notes if note["pid"] == main_process]
        assert bool(main["counts"]) == (pool == "threads")


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_howto__exports(
    open_workshop: Any, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """The module of the how-to exports the lock of a task once, at the end of a worker of any kind."""
    page = HOWTO.read_text(encoding="utf-8")
    (module,) = re.findall(r"^```python\n# shop/metrics.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # Not "shop": the tests have a module of that name.
    (tmp_path / "howto").mkdir()
    (tmp_path / "howto" / "metrics.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--include", "tests.toolbox.celery.readiness,howto.metrics")
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
    with open_workshop(pool=pool, concurrency=1, options=options, environment=environment) as workshop:
        workshop.result(workshop.send("shared_below", key))
        log = workshop.worker.log
        workshop.worker.stop()
        assert re.findall(r'"zklock.acquisitions".*?"value": (\d+)', log.read_text(), re.DOTALL) == ["1"]
