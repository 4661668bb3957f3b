"""Metrics of locks, as OpenTelemetry's SDK measures them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from asgiref.sync import sync_to_async
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, Sum

from django_zklock import LockConflict, ZooKeeperUnavailable, current_lock, signals, zk_lock, zk_locked
from django_zklock.contrib.opentelemetry import BOUNDARIES, instrument, uninstrument
from django_zklock.zk.ops import actions
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

DOCS = Path(__file__).resolve().parents[3] / "docs"
INVOICE = {"zklock.alias": "default", "zklock.kind": "exclusive", "zklock.template": "invoice:{number}"}


class Meter:
    """A provider, and what it has measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def metrics(self) -> dict[str, Metric]:
        """Return the measured metrics by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"django_zklock"}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> list[Any]:
        metric = self.metrics().get(name)
        return list(metric.data.data_points) if metric is not None else []

    def count(self, name: str) -> float:
        """Return the value of an instrument, or the count of a histogram, over all attributes."""
        return sum(point.count if isinstance(point, HistogramDataPoint) else point.value for point in self.points(name))

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of an instrument that was used with one set of them."""
        (point,) = self.points(name)
        return dict(point.attributes)

    def wait(self, name: str, count: float) -> None:
        wait_until(lambda: self.count(name) == count, 20, f"{name} is {count}")


@pytest.fixture
def meter() -> Iterator[Meter]:
    """Measure the locks of this process."""
    meter = Meter()
    instrument(meter.provider)
    yield meter
    uninstrument()
    meter.provider.shutdown()


@zk_locked("invoice:{number}")
def bill(number: int) -> str:
    return f"{number} billed"


@zk_locked("invoice:{number}", on_conflict="skip", on_unavailable="skip")
def bill_or_skip(number: int) -> None: ...


@pytest.mark.shows("faults#a-task-is-cancelled-while-receivers-of-signals-run")
@pytest.mark.parametrize("what", ["grant", "release"])
def test_cancelled__before_it_is_told(ensemble: Ensemble, meter: Meter, what: str) -> None:
    """Tasks that are cancelled while the thread of the receivers is busy leave neither half of a hold uncounted."""

    async def main() -> None:
        for number in range(10):
            # What is started in this context does not belong to the hold, which would be kept for it.
            outside = contextvars.copy_context()
            held = await zk_lock(f"k{number}").aacquire() if what == "release" else None
            busy, go_on = threading.Event(), threading.Event()

            def occupy(busy: threading.Event = busy, go_on: threading.Event = go_on) -> None:
                busy.set()
                assert go_on.wait(60)

            occupied = asyncio.create_task(sync_to_async(occupy)(), context=outside)
            await asyncio.to_thread(busy.wait, 60)
            task: asyncio.Task[Any]
            if held is not None:
                task = asyncio.create_task(held.arelease())
            else:
                # It belongs to this task, which asks for it.
                task = asyncio.create_task(zk_lock(f"k{number}").aacquire())
                while current_lock(f"k{number}") is None:  # noqa: ASYNC110 - nothing tells it earlier
                    await asyncio.sleep(0.001)
            for _ in range(20):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            go_on.set()
            await occupied
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert meter.count("zklock.active_holds") == 0
    assert meter.count("zklock.acquisitions") == meter.count("zklock.hold.duration") == 10


def test_forgotten(ensemble: Ensemble, meter: Meter) -> None:
    """A forgotten hold causes a warning although it is measured, and it is still counted."""

    def acquire() -> None:
        zk_lock("k").acquire()

    def forget() -> None:
        Runner(acquire).result()
        gc.collect()

    with pytest.warns(ResourceWarning, match="lock 'k' was never released"):
        forget()
    ensemble.wait_count("k", 1)
    assert meter.count("zklock.active_holds") == 1


def test_hold(ensemble: Ensemble, meter: Meter) -> None:
    """An acquisition is counted, with how long it waited; while it is held there is one more, and then one less."""
    with zk_lock("invoice:42", template="invoice:{number}") as held:
        assert meter.count("zklock.acquisitions") == meter.count("zklock.active_holds") == 1
        assert meter.points("zklock.wait.duration")[0].sum == held.waited
        assert meter.points("zklock.hold.duration") == []
    assert meter.count("zklock.active_holds") == 0
    assert meter.count("zklock.hold.duration") == 1
    for name in ("acquisitions", "active_holds", "wait.duration", "hold.duration"):
        assert meter.attributes(f"zklock.{name}") == INVOICE


def test_hold__nested(ensemble: Ensemble, meter: Meter) -> None:
    """A nested hold is not counted, whichever hold is released last."""
    outer = zk_lock("k").acquire()
    inner = zk_lock("k", template="inner").acquire()
    outer.release()
    assert meter.count("zklock.active_holds") == 1
    inner.release()
    assert meter.count("zklock.acquisitions") == meter.count("zklock.hold.duration") == 1
    assert [point.value for point in meter.points("zklock.active_holds")] == [0]


def test_nodes(ensemble: Ensemble, meter: Meter) -> None:
    """The nodes of holders and waiters are measured by alias, while the locks are measured at all."""
    with zk_lock("invoice:42"):
        (session,) = ensemble.pool.sessions()
        size = session.used
        assert size > 0
        waiting = Runner(lambda: zk_lock("invoice:42").acquire(timeout=120).release())
        wait_until(lambda: session.used == 2 * size)
        assert [(point.value, dict(point.attributes)) for point in meter.points("zklock.nodes.size")] == [
            (2 * size, {"zklock.alias": "default"})
        ]
    waiting.result()
    meter.wait("zklock.nodes.size", 0)
    uninstrument()
    assert meter.points("zklock.nodes.size") == []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the gate of a worker in this process: two tasks wait for their locks, one for a slot, and one runs."""
    # Only workers need them.
    child = pytest.importorskip("django_zklock.contrib.celery.gate.child")
    from django_zklock.contrib.celery.gate.gate import Gate
    from django_zklock.contrib.celery.gate.states import Phase

    gate: Any = Gate.__new__(Gate)
    gate.pid, phases = os.getpid(), [Phase.WAITING, Phase.WAITING, Phase.DECIDED, Phase.CLAIMED]
    gate.requests = {
        number: SimpleNamespace(phase=phase, waits_for_slot=phase is Phase.DECIDED, contended=True)
        for number, phase in enumerate(phases)
    }
    monkeypatch.setitem(child.gates, "of this worker", gate)
    return gate


def test_gate__tasks(gate: Any, meter: Meter) -> None:
    """A worker's main process measures the tasks that wait for their locks, and for slots; its children do not."""
    counts = [(point.value, dict(point.attributes)) for point in meter.points("zklock.gate.tasks")]
    assert counts == [(2, {"zklock.state": "waiting"}), (1, {"zklock.state": "ready"})]
    gate.pid = -1
    assert meter.points("zklock.gate.tasks") == []


def test_contention(other_client: OtherClient, meter: Meter) -> None:
    """A wait is counted when it begins, and its duration when it ends."""
    other_client.take("invoice:42")
    waiting = Runner(lambda: bill(42))
    meter.wait("zklock.contentions", 1)
    assert meter.count("zklock.acquisitions") == 0
    other_client.release("invoice:42")
    waiting.result()
    assert meter.points("zklock.wait.duration")[0].sum > 0
    assert meter.attributes("zklock.contentions") == INVOICE
    assert meter.count("zklock.contentions") == meter.count("zklock.acquisitions") == 1


@pytest.mark.parametrize("policy", ["skip", "raise"])
@pytest.mark.parametrize("reason", ["conflict", "unavailable"])
def test_refusal(other_client: OtherClient, meter: Meter, reason: str, policy: Literal["skip", "raise"]) -> None:
    """A call that does not run is counted with the reason, whether it is skipped or an error."""
    other_client.take("invoice:42")
    alias = "default" if reason == "conflict" else "absent"
    lock = zk_locked("invoice:{number}", on_conflict=policy, on_unavailable=policy, using=alias)
    with contextlib.suppress(LockConflict, ZooKeeperUnavailable):
        lock(lambda number: None)(42)
    assert meter.attributes("zklock.refusals") == {**INVOICE, "zklock.alias": alias, "zklock.reason": reason}
    assert meter.count("zklock.refusals") == 1
    assert meter.count("zklock.acquisitions") == 0


def test_loss(ensemble: Ensemble, meter: Meter) -> None:
    """A loss is counted and ends the hold, although its release comes later."""
    held = zk_lock("invoice:42", template="invoice:{number}").acquire()
    ensemble.delete(held)
    meter.wait("zklock.losses", 1)
    meter.wait("zklock.active_holds", 0)
    held.release()
    assert meter.attributes("zklock.losses") == INVOICE
    assert meter.count("zklock.active_holds") == 0
    assert meter.count("zklock.hold.duration") == 1


def test_revocation(ensemble: Ensemble, meter: Meter) -> None:
    """A revoke request is counted without its reason, and the lock stays held."""
    with zk_lock("invoice:42", template="invoice:{number}") as held:
        actions.revoke(ensemble.pool, held.node, "a deployment", timeout=10)
        meter.wait("zklock.revocations", 1)
        assert meter.attributes("zklock.revocations") == INVOICE
        assert meter.count("zklock.active_holds") == 1


@pytest.mark.parametrize(
    ("options", "kind"), [({"mode": "read"}, "read"), ({"mode": "write"}, "write"), ({"limit": 2}, "lease")]
)
def test_attributes__plain_key(ensemble: Ensemble, meter: Meter, options: dict[str, Any], kind: str) -> None:
    """A key that is no template is in no attribute."""
    with zk_lock("invoice:42", **options):
        pass
    assert meter.attributes("zklock.acquisitions") == {"zklock.alias": "default", "zklock.kind": kind}
    assert "42" not in str([point.attributes for name in meter.metrics() for point in meter.points(name)])


def test_instrument__again(ensemble: Ensemble, meter: Meter) -> None:
    """After a second call only the new provider measures, and only what begins later."""
    other = Meter()
    with zk_lock("k"):
        instrument(other.provider)
    with zk_lock("k"):
        assert other.count("zklock.active_holds") == 1
    assert meter.count("zklock.acquisitions") == other.count("zklock.acquisitions") == 1
    assert other.count("zklock.active_holds") == 0
    other.provider.shutdown()


def test_uninstrument(ensemble: Ensemble, meter: Meter) -> None:
    """After it nothing is measured, and calling it again does nothing."""
    for _ in range(2):
        uninstrument()
    with zk_lock("k"):
        pass
    assert meter.metrics() == {}


def test_instrument__global_provider() -> None:
    """Without a provider it is the global one, also one that is set later. In a process of its own: it is set once."""
    program = """
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from django_zklock import signals
        from django_zklock.contrib.opentelemetry import instrument
        from django_zklock.zk.lock import Lock

        instrument()
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        signals.contended.send(Lock, key="k", alias="default", template=None, kind="exclusive", holder=None)
        print(reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("zklock.contentions\n", "")


def test_reference__has_every_instrument(
    gate: Any, other_client: OtherClient, ensemble: Ensemble, meter: Meter
) -> None:
    """The table of the reference has each instrument with its kind and unit, and no other."""
    other_client.take("invoice:42")
    bill_or_skip(42)
    waiting = Runner(lambda: bill(42))
    meter.wait("zklock.contentions", 1)
    other_client.release("invoice:42")
    waiting.result()
    held = zk_lock("k").acquire()
    actions.revoke(ensemble.pool, held.node, "a deployment", timeout=10)
    meter.wait("zklock.revocations", 1)
    ensemble.delete(held)
    meter.wait("zklock.losses", 1)
    signals.send(signals.dropped, **signals.common_arguments(held.lock), task="bill", id="1")
    assert meter.count("zklock.drops") == 1
    signals.send(signals.not_sent, **signals.common_arguments(held.lock), task="bill", id="1")
    assert meter.count("zklock.not_sent") == 1
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(zklock\.[\w.]+)` \| ([\w-]+) \| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(
        (name, kind_of(metric), metric.unit or "") for name, metric in meter.metrics().items()
    )
    assert ", ".join(f"{boundary:g}" for boundary in BOUNDARIES) in page
    assert tuple(meter.points("zklock.wait.duration")[0].explicit_bounds) == BOUNDARIES


def kind_of(metric: Metric) -> str:
    """Return the reference's name for the kind of instrument of ``metric``."""
    if not isinstance(metric.data, Sum):
        return "histogram"
    return "counter" if metric.data.is_monotonic else "up-down-counter"
