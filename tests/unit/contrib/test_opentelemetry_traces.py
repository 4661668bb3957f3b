"""Traces of locks, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_zklock import LockConflict, ZooKeeperUnavailable, signals, zk_lock, zk_locked
from django_zklock.contrib.opentelemetry import instrument_traces, uninstrument_traces
from django_zklock.zk.lock import Lock
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.slow_deadlines"]

SECOND = 1_000_000_000


@dataclass
class Traces:
    """A tracer provider, and the spans that have ended."""

    provider: TracerProvider
    exporter: InMemorySpanExporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the one span of this name, when there is one."""
        return wait_until(lambda: self.spans(name), 20, f"a span {name}")[0]  # type: ignore[no-any-return]


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Trace the locks of this process."""
    traces = Traces(TracerProvider(shutdown_on_exit=False), InMemorySpanExporter())
    traces.provider.add_span_processor(SimpleSpanProcessor(traces.exporter))
    instrument_traces(traces.provider)
    yield traces
    uninstrument_traces()
    traces.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@zk_locked("invoice:{number}")
def bill(number: int) -> None: ...


@zk_locked("invoice:{number}")
async def abill(number: int) -> None: ...


@pytest.mark.parametrize("call", [lambda: bill(42), lambda: asyncio.run(abill(42))], ids=["sync", "async"])
def test_hold(ensemble: Ensemble, traces: Traces, call: Any) -> None:
    """A wait and a hold have one span each, below the span of the caller, with the facts of the lock."""
    with traces.provider.get_tracer("shop").start_as_current_span("the caller") as caller:
        call()
    wait, hold = traces.one("zklock wait"), traces.one("zklock hold")
    for span in (wait, hold):
        assert span.parent is not None
        assert span.parent.span_id == caller.get_span_context().span_id
        assert span.status.status_code is StatusCode.UNSET
        assert (
            attributes(span).items()
            >= {
                "zklock.key": "invoice:42",
                "zklock.template": "invoice:{number}",
                "zklock.alias": "default",
                "zklock.kind": "exclusive",
            }.items()
        )
    assert attributes(wait)["zklock.outcome"] == "granted"
    assert "zklock.holder" not in attributes(wait)
    assert attributes(hold)["zklock.token"] > 0
    assert wait.start_time is not None
    assert wait.end_time is not None
    assert hold.start_time is not None
    assert wait.start_time <= wait.end_time <= hold.start_time + SECOND // 100


def test_wait__names_the_holder(other_client: OtherClient, traces: Traces) -> None:
    """The span of a wait is as long as the wait, and names the holder that the caller has met."""
    taken, met = other_client.take("invoice:42"), threading.Event()

    def note(**_facts: Any) -> None:
        met.set()

    # After that of the traces, so that they know by then.
    signals.contended.connect(note)
    waiting = Runner(lambda: bill(42))
    assert met.wait(20)
    taken.release()
    waiting.result()
    wait = traces.one("zklock wait")
    assert attributes(wait)["zklock.holder"].startswith("label the other client (pid ")
    assert attributes(wait)["zklock.outcome"] == "granted"


@pytest.mark.usefixtures("unhurried")
def test_refused(other_client: OtherClient, traces: Traces) -> None:
    """A call that does not get its lock is a wait that ends so; it is no error, for a policy may expect it."""
    other_client.take("invoice:42")
    with pytest.raises(LockConflict):
        zk_locked("invoice:{number}", on_conflict="raise", timeout=0.3)(bill.__wrapped__)(42)  # type: ignore[attr-defined]
    wait = traces.one("zklock wait")
    assert (attributes(wait)["zklock.outcome"], wait.status.status_code) == ("conflict", StatusCode.UNSET)
    assert attributes(wait)["zklock.holder"].startswith("label the other client (pid ")
    assert wait.end_time is not None
    assert wait.start_time is not None
    assert wait.end_time - wait.start_time >= 0.3 * SECOND
    assert traces.spans("zklock hold") == []


def test_unavailable(ensemble: Ensemble, traces: Traces) -> None:
    """Without ZooKeeper the wait is an error."""
    with pytest.raises(ZooKeeperUnavailable):
        zk_locked("k", using="absent", timeout=0.1)(lambda: None)()
    wait = traces.one("zklock wait")
    assert (attributes(wait)["zklock.outcome"], wait.status.status_code) == ("unavailable", StatusCode.ERROR)


def test_lost(ensemble: Ensemble, traces: Traces) -> None:
    """The span of a lost hold ends with the loss, as an error, and once."""
    held = zk_lock("k").acquire()
    ensemble.delete(held)
    hold = traces.one("zklock hold")
    assert hold.status.status_code is StatusCode.ERROR
    assert str(hold.status.description).startswith("the lock was lost: ")
    held.release()
    assert len(traces.spans("zklock hold")) == 1


def test_uninstrument(ensemble: Ensemble, traces: Traces) -> None:
    """Nothing is traced any more, and a second call does nothing."""
    uninstrument_traces()
    uninstrument_traces()
    bill(42)
    assert traces.exporter.get_finished_spans() == ()
    assert not signals.acquired.has_listeners(Lock)


def test_wait__of_tasks_of_one_loop(other_client: OtherClient, traces: Traces) -> None:
    """Where several tasks of one thread wait, it is not known which one has met a holder, and none is named."""
    taken, met = other_client.take("invoice:42"), threading.Semaphore(0)

    def note(**_facts: Any) -> None:
        met.release()

    signals.contended.connect(note)

    async def both() -> None:
        await asyncio.gather(abill(42), abill(42))

    waiting = Runner(lambda: asyncio.run(both()))
    assert met.acquire(timeout=120)
    assert met.acquire(timeout=120)
    taken.release()
    waiting.result()
    waits = wait_until(lambda: found if len(found := traces.spans("zklock wait")) == 2 else None, 20, "two spans")
    assert ["zklock.holder" in attributes(each) for each in waits] == [False, False]
