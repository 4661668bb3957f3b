"""The asyncio task, or the thread, that waits for the code behind one of asgiref's bridges.

``sync_to_async`` runs a function in a thread while a task waits for it, and ``async_to_sync`` runs a coroutine as a
task while a thread waits for it. asgiref does not store which task or thread that is. A context variable does not tell
either: every task and thread that was started meanwhile may have a copy of the context. But asgiref makes an object for
each call, and it is a local variable on both sides: the list ``task_context`` of ``SyncToAsync``, and the future
``call_result`` of ``AsyncToSync`` (asgiref 3.8 to 3.13). So what is found here is right. Where nothing is found, as for
a call whose task was cancelled, the code has no outer owner.

Nothing here imports asgiref: without it there are no bridges.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any
from weakref import ref

from django_zklock.zk.waiting import AutoResetEvent

# Seconds to wait for a turn of an event loop. It is needed only where a task has just started its call, or no longer
# waits for it.
TURN = 1.0

_SUSPENDABLE = (CoroutineType, GeneratorType, AsyncGeneratorType)


def _asgiref() -> Any:
    """Return the module that has the bridges, or ``None`` where nothing has imported it completely."""
    module = sys.modules.get("asgiref.sync")
    return module if hasattr(module, "sync_to_async") else None


def is_crossed() -> bool:
    """Whether ``sync_to_async`` has ever run something in the calling thread."""
    module = _asgiref()
    return module is not None and hasattr(module.SyncToAsync.threadlocal, "task_context")


def call_code() -> CodeType | None:
    """Return the code of the function that runs what ``sync_to_async`` was given; ``None`` if there is none."""
    module = _asgiref()
    return None if module is None else module.SyncToAsync.thread_handler.__code__


def job_code(module: str) -> CodeType | None:
    """Return the code that runs a job of the executors in ``module``; ``None`` if nothing has imported it."""
    item: Any = getattr(sys.modules.get(module), "_WorkItem", None)
    return None if item is None else item.run.__code__


def blocks_all(call: FrameType) -> bool:
    """Whether the calls of other tasks have to wait for the end of this ``call``: it is thread-sensitive."""
    return bool(getattr(call.f_locals.get("self"), "_thread_sensitive", True))


def waiting_task(call: FrameType) -> asyncio.Task[Any] | None:
    """Return the task that waits for ``call``, a frame of :func:`call_code`."""
    here = call.f_locals
    mark, loop = here.get("task_context"), here.get("loop")
    if not isinstance(mark, list) or not isinstance(loop, asyncio.AbstractEventLoop):
        return None
    thread = threading.get_ident()
    latest = _latest.get(thread, lambda: None)()
    if latest is not None and _waits(latest, mark):
        return latest
    task = _find(mark, loop)
    if task is None and loop.is_running() and not _runs_here(loop):
        # The thread can be faster than the task that has started the call and is about to wait for it.
        turned = AutoResetEvent()
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # closed meanwhile
            return None
        turned.wait(TURN)
        task = _find(mark, loop)
    if task is not None:
        _latest[thread] = ref(task)
    return task


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # no running event loop in this thread
        return False


def waiting_thread(task: asyncio.Task[Any]) -> tuple[int, FrameType] | None:
    """Return the identifier of the thread that waits in ``async_to_sync`` for ``task``, and the frame in which it does.

    ``None`` for a task that was made by anything else.
    """
    module = _asgiref()
    if module is None:
        return None
    result = _awaited_result(module, task)
    if result is None:
        return None
    code = module.AsyncToSync.__call__.__code__
    for ident, top in sys._current_frames().items():  # noqa: SLF001 - the documented way to see other threads
        for frame in outwards(top):
            if frame.f_code is code and frame.f_locals.get("call_result") is result:
                return ident, frame
    return None


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over ``frame`` and the frames that it was called by."""
    while frame is not None:
        yield frame
        frame = frame.f_back


# The task that was found last in each thread. Code that asks once asks again; each time the task is checked again.
_latest: dict[int, Callable[[], asyncio.Task[Any] | None]] = {}


def _find(mark: list[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    return next((task for task in asyncio.all_tasks(loop) if _waits(task, mark)), None)


def _waits(task: asyncio.Task[Any], mark: list[Any]) -> bool:
    """Whether ``task`` waits for the call that has this ``mark``."""
    code = _asgiref().SyncToAsync.__call__.__code__
    awaited: Any = task.get_coro()
    while awaited is not None:
        # There may be thousands of tasks, and nearly all of what they wait in is of this type.
        if type(awaited) is CoroutineType:
            if awaited.cr_code is code and _local(awaited, "task_context") is mark:
                return True
            awaited = awaited.cr_await
        else:
            awaited = _behind(awaited)
    return False


def _behind(awaited: Any) -> Any:
    """Return what ``awaited``, which is no plain coroutine, waits for in the same task; ``None`` if it is the last."""
    for name in ("gi_yieldfrom", "ag_await", "cr_await"):
        if hasattr(awaited, name):
            return getattr(awaited, name)
    if type(awaited).__module__ != "builtins":
        return None
    # The objects that drive an asynchronous generator, or iterate over a coroutine, show it only to the garbage
    # collector.
    return next((each for each in gc.get_referents(awaited) if isinstance(each, _SUSPENDABLE)), None)


def _awaited_result(module: Any, task: asyncio.Task[Any]) -> Any:
    """Return the future that ``task`` will put its result into, if ``async_to_sync`` has made it."""
    wrap = module.AsyncToSync.main_wrap.__code__
    coroutine: Any = task.get_coro()
    code = getattr(coroutine, "cr_code", None)
    if code is not None and code is not wrap and code in module.AsyncToSync.__call__.__code__.co_consts:
        # In a loop of its own, a function of `__call__` awaits the one that is looked for.
        coroutine = _local(coroutine, "awaitable")
        code = getattr(coroutine, "cr_code", None)
    return _local(coroutine, "call_result") if code is wrap else None


def _local(coroutine: Any, name: str) -> Any:
    frame = coroutine.cr_frame
    return None if frame is None else frame.f_locals.get(name)
