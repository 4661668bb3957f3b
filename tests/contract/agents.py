"""Agents that trace a program put themselves around executors, asgiref's bridges and coroutines: one of each form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import asgiref.sync
import pytest
from asgiref.current_thread_executor import CurrentThreadExecutor
from asgiref.sync import AsyncToSync, SyncToAsync
from newrelic.hooks.adapter_asgiref import instrument_asgiref_sync  # type: ignore[import-untyped]


def _submit(patch: pytest.MonkeyPatch, wrap: Callable[..., tuple[Any, ...]]) -> None:
    """Let executors run what ``wrap`` makes of each call."""
    for executor in (ThreadPoolExecutor, CurrentThreadExecutor):
        submit: Any = executor.submit

        def traced(self: Any, call: Any, /, *args: Any, submit: Any = submit, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = submit(self, *wrap(call, args, kwargs))
            return future

        patch.setattr(executor, "submit", traced)


def _closure(patch: pytest.MonkeyPatch) -> None:
    """As Sentry and OpenTelemetry do: a function around the call."""

    def wrap(call: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        def traced(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        def again(*args: Any, **kwargs: Any) -> Any:
            return traced(*args, **kwargs)

        return again, *args

    _submit(patch, wrap)


def _run(_trace: object, call: Any, args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _arguments(patch: pytest.MonkeyPatch) -> None:
    """As ddtrace does: the call and its arguments are arguments of another function."""
    _submit(patch, lambda call, args, kwargs: (_run, {"trace": [1]}, call, args, kwargs))


class _Traced:
    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def _object(patch: pytest.MonkeyPatch) -> None:
    """An object that is called, in another one that is."""
    _submit(patch, lambda call, args, _kwargs: (_Traced(_Traced(call)), *args))


def _bridges(patch: pytest.MonkeyPatch) -> None:
    """Plain functions in the place of the methods of asgiref, that do not say around what they are."""
    handler: Any = SyncToAsync.thread_handler
    call: Any = SyncToAsync.__call__
    back: Any = AsyncToSync.__call__
    main: Any = AsyncToSync.main_wrap

    def traced_handler(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    async def traced_main(*args: Any) -> None:
        await main(*args)

    def traced_back(*args: Any, **kwargs: Any) -> Any:
        return back(*args, **kwargs)

    async def traced_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await call(self, *args, **kwargs)

    patch.setattr(SyncToAsync, "thread_handler", traced_handler)
    patch.setattr(SyncToAsync, "__call__", traced_call)
    patch.setattr(AsyncToSync, "__call__", traced_back)
    patch.setattr(AsyncToSync, "main_wrap", traced_main)


def _new_relic(patch: pytest.MonkeyPatch) -> None:
    """New Relic's own."""
    for kind, name in [(SyncToAsync, "thread_handler"), (SyncToAsync, "__call__"), (AsyncToSync, "main_wrap")]:
        # So that it is taken back.
        patch.setattr(kind, name, vars(kind)[name])
    instrument_asgiref_sync(asgiref.sync)


def _coroutines(patch: pytest.MonkeyPatch) -> None:
    """A coroutine around that of each task, as by Sentry's factory of tasks."""
    create_task: Any = asyncio.BaseEventLoop.create_task

    async def traced(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await coroutine

    def create(self: Any, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = create_task(self, traced(traced(coroutine)), **options)
        return task

    patch.setattr(asyncio.BaseEventLoop, "create_task", create)


AGENTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "none": lambda _patch: None,
    "closure": _closure,
    "arguments": _arguments,
    "object": _object,
    "bridges": _bridges,
    "New Relic": _new_relic,
    "coroutines": _coroutines,
}


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let an agent trace the program; return of what form it is."""
    AGENTS[request.param](monkeypatch)
    return str(request.param)
