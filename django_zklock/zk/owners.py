"""The owners of holds, found at the call: an asyncio task, a greenlet, a thread, or a job of an executor.

A thread-local is not enough. A library may patch threads after this module was imported, and then all greenlets of a
thread share it; and many tasks run their synchronous code in one thread. A context variable is not enough either. A new
task, and in Python 3.14 perhaps a new thread, gets a copy of its creator's context, but not its creator's locks.

``sync_to_async`` runs a function in a thread while a task waits for it, and ``async_to_sync`` runs a coroutine as a
task while a thread waits for it. asgiref does not store which task or thread that is. A context variable does not tell
either: every task and thread that was started meanwhile may have a copy of the context. But asgiref makes an object for
each call, and it is a local variable on both sides: the list ``task_context`` of ``SyncToAsync``, and the future
``call_result`` of ``AsyncToSync`` (asgiref 3.8 to 3.13). So what is found by them is right. Where nothing is found, as
for a call whose task was cancelled, the code has no outer owner. Nothing here imports asgiref: without it there are no
bridges.

An agent that traces a program puts functions of its own around those of asgiref, of executors, and around coroutines.
The real ones still run, so their frames are looked for, by name and module: at its place a class may have another.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary, ref

from django_zklock.exceptions import AsyncUnsafe
from django_zklock.zk.waiting import AutoResetEvent, is_serving

# Django's own switch, for shells and notebooks that run an event loop.
ASYNC_UNSAFE = "DJANGO_ALLOW_ASYNC_UNSAFE"

# Seconds to wait for a turn of an event loop. It is needed only where a task has just started its call, or no longer
# waits for it.
TURN = 1.0

# The modules whose `_WorkItem` is a job of an executor.
EXECUTORS = ("asgiref.current_thread_executor", "concurrent.futures.thread")
# The functions there that have a job, and the variable that it is in.
_JOB_IN = {"run": "self", "_worker": "work_item", "run_until_future": "work_item"}

# By the id of the task, greenlet, thread or job, with which the entry goes: two that compare equal are two owners.
_owners: dict[int, Owner] = {}


class _ForeignThread:
    """Stands for a thread that ``threading`` did not start, such as one of a server in C or Rust."""

    __slots__ = ("__weakref__",)


class _Here(threading.local):
    """The calling thread, if ``threading`` did not start it: an object that ends with it.

    T1 holds a lock and ends. T2, not started by ``threading`` either, gets the same ident from the system, and with it,
    up to Python 3.12, the same ``threading._DummyThread``, which never ends. T2 would own what T1 held.
    """

    def __init__(self) -> None:
        self.thread = _ForeignThread()
        _foreign_threads[threading.get_ident()] = self.thread


# Those that have asked for an owner, by ident.
_foreign_threads: WeakValueDictionary[int, _ForeignThread] = WeakValueDictionary()
_here = _Here()


class Owner:
    """A task, a greenlet, a thread or a job, with its holds and acquisitions.

    It exists as long as that does; a hold (:class:`~.held.Held`) refers to it weakly. ``holds`` has the innermost last.

    Code that runs for an owner behind a bridge is an owner of its own: a call. It may use what the owner holds while
    that waits for it. The owner may use what the call holds when the call has ended, and not before: an owner that was
    cancelled, or interrupted, no longer waits, while the call goes on under its lock.
    """

    # Thousands of tasks may wait in one process.
    __slots__ = ("__weakref__", "_calls", "_of", "acquisitions", "held_here", "holds", "runs_jobs")

    def __init__(self, of: Any, *, runs_jobs: bool = False) -> None:
        self.holds: list[Any] = []
        # References to what this owner is acquiring (:class:`~.acquire.Acquisition`); a task may have begun several.
        self.acquisitions: list[Callable[[], Any]] = []
        self._calls: list[Owner] = []
        # What was acquired in this thread, if it is one, for other owners.
        self.held_here: WeakSet[Any] | None = None
        # Whether this is a thread or a greenlet that does jobs of an executor, one after the other.
        self.runs_jobs = runs_jobs
        number, forget = id(of), _owners.pop
        self._of = ref(of, lambda _gone: forget(number, None))

    def available(self) -> list[Any]:
        """Return what this owner may use, innermost last: its own holds, and those of its calls that have ended."""
        return [held for call in self._calls if call.ended for held in call.available()] + self.holds

    @property
    def ended(self) -> bool:
        """Whether it will run no more."""
        of = self._of()
        if isinstance(of, asyncio.Task):
            return of.done() or of.get_loop().is_closed()
        if isinstance(of, threading.Thread):
            return not of.is_alive()
        if of is None:
            return True
        # A job has a future, and a greenlet says that it is dead.
        future = getattr(of, "future", None)
        return bool(getattr(of, "dead", False) if future is None else future.done())

    def acquiring(self, paths: Sequence[str]) -> list[Any]:
        """Return the acquisitions by which this owner, or what runs for it, waits for a lock with one of these paths.

        A mere try is none.
        """
        acquisitions = [acquisition for get in self.acquisitions if (acquisition := get()) is not None]
        return [
            each
            for each in acquisitions
            if each.is_waiting and each.timeout != 0 and not set(each.lock.paths).isdisjoint(paths)
        ]

    def release_since(self, lock: object, before: Sequence[Any] = ()) -> None:
        """Release what was acquired through the object ``lock`` since this owner had the holds ``before``.

        Another thread may have released some of these meanwhile.

        A time limit or Ctrl-C can be raised in a thread between the return of an acquiring call and the moment its
        caller keeps the hold. The caller's ``except BaseException`` calls this. It is no context manager: leaving one
        runs Python code, in which the next exception can be raised.
        """
        for held in reversed(self.holds[:]):
            if held.lock is lock and held not in before and not held._is_kept:
                held.release()


class Caller(NamedTuple):
    """The owner that a lock is acquired for, and the thread that is blocked if the owner has to wait.

    ``thread`` is ``None`` where no other owner needs that thread. ``outer`` are the owners that wait for this one, the
    nearest first. With ``in_loop`` an event loop runs the calling code.
    """

    owner: Owner
    thread: Owner | None
    outer: tuple[Owner, ...] = ()
    in_loop: bool = False

    def available(self) -> list[Any]:
        """Return the holds that the calling code may use, innermost last."""
        if not self.outer and not self.owner._calls:
            return self.owner.holds
        return [held for owner in (*reversed(self.outer), self.owner) for held in owner.available()]


def caller() -> Caller:
    """Find the owner that the calling code is, and those that wait for it."""
    # Mostly there is none; and an exception that says so costs as much as the rest.
    loop = None if asyncio._get_running_loop() is None else running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    if task is not None:
        return _of_task(task)._replace(in_loop=True)
    frame = sys._getframe(1)
    current: Any = threading.current_thread()
    thread = _of(_here.thread if isinstance(current, threading._DummyThread) else current, frame)
    getcurrent = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    greenlet = None if getcurrent is None else getcurrent()
    # The main greenlet of a thread stands for the thread.
    if greenlet is None or greenlet.parent is None:
        found = Caller(thread, thread)
    else:
        # Where threads are patched, a greenlet that waits lets the others go on.
        found = Caller(_of(greenlet, frame), thread if _blocks_thread() else None)
    # Without that attribute, `sync_to_async` has never run anything in this thread.
    bridge = getattr(sys.modules.get("asgiref.sync"), "SyncToAsync", None)
    if found.owner.runs_jobs or hasattr(getattr(bridge, "threadlocal", None), "task_context"):
        found = _served(found, frame)
    return found if loop is None else found._replace(in_loop=True)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop whose code calls, if any.

    asyncio keeps it by thread. In a thread with several greenlets the loop runs in one of them, and may be in the
    middle of a task while another one runs.
    """
    loop = asyncio._get_running_loop()
    getcurrent = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    if loop is None or getcurrent is None:
        return loop
    # The frames that show the loop at work: that of its task, and that of the loop itself unless it is written in C, as
    # uvloop's is.
    task = asyncio.current_task(loop)
    runs = getattr(type(loop), "run_forever", None)
    code = runs.__code__ if isinstance(runs, FunctionType) else None
    coroutine = None if task is None else _frame_of(task.get_coro())
    if code is None and coroutine is None:
        return loop
    is_here = any(
        each is coroutine or (each.f_code is code and each.f_locals.get("self") is loop) for each in callers()
    )
    return loop if is_here else None


def owner_of(what: Any) -> Owner:
    """Return the owner that an object is, such as a job of an executor or what keeps the lock of a response."""
    return _of(what)


def must_not_block() -> bool:
    """Whether waiting in the calling thread would stop an event loop."""
    return running_loop() is not None and not os.environ.get(ASYNC_UNSAFE)


def check_may_wait(what: str, *, key: str | None = None) -> None:
    """Raise ``AsyncUnsafe``, which begins with ``what``, in a thread in which nothing may wait."""
    if is_serving():
        raise AsyncUnsafe(
            f"{what} in a thread of django_zklock, on which heartbeats or reports of losses depend: it would wait for "
            f"itself, or make others wait. Python runs finalizers and callbacks of weak references in any thread, and "
            f"log handlers run in one of these; let them put the work into a queue.SimpleQueue, for a thread of yours",
            key=key,
        )


def _of(what: Any, frame: FrameType | None = None) -> Owner:
    """Return the owner that ``what`` is; if that is a thread or a greenlet, ``frame`` runs in it."""
    owner = _owners.get(id(what))
    if owner is not None and owner._of() is what:
        return owner
    # A thread or a greenlet that runs the jobs of an executor.
    module = sys.modules.get("concurrent.futures.thread")
    owner = Owner(what, runs_jobs=any(_is_of(each, "_worker", module) for each in _outwards(frame)))
    found = _owners.setdefault(id(what), owner)
    if found._of() is not what:
        found = _owners[id(what)] = owner
    return found


def _of_task(task: asyncio.Task[Any]) -> Caller:
    owner = _of(task)
    waiting = _waiting_thread(task)
    if waiting is None or not _blocks_thread():
        return Caller(owner, None)
    # Found out anew each time: that thread may be torn out of its wait, and then the task is on its own.
    thread, frame = waiting
    found = _of(thread, frame)
    return _called(owner, None, _served(Caller(found, found), frame))


def _called(call: Owner, thread: Owner | None, by: Caller) -> Caller:
    """Note that ``call`` runs for the owner in ``by``, which waits for it."""
    known = by.owner._calls
    if call not in known:
        by.owner._calls = [*(each for each in known if not each.ended or each.available()), call]
    return Caller(call, thread, (by.owner, *by.outer))


def _served(found: Caller, frame: FrameType) -> Caller:
    """Find the owner that ``frame`` is, in a thread, ``found``, that runs code for other owners too.

    That is the job that the code is a part of. If it is a call of ``sync_to_async``, the task that waits for it, if one
    can be found, is an outer owner.
    """
    module = _asgiref()
    blocked = task = None
    each: FrameType | None = frame
    while each is not None:
        # A thread may have many frames.
        name = each.f_code.co_name
        if name == "thread_handler" and _is_of(each, name, module):
            # The calls of other tasks have to wait for the end of a call that is thread-sensitive.
            blocks_all = getattr(each.f_locals.get("self"), "_thread_sensitive", True)
            blocked = blocked or (found.thread if blocks_all else None)
            task = task or _waiting_task(each)
        elif name == "run" and (job := job_in(each)) is not None:
            owner = _of(job)
            return Caller(owner, blocked) if task is None else _called(owner, blocked, _of_task(task))
        each = each.f_back
    return found if task is None else _of_task(task)._replace(thread=blocked)


def job_in(frame: FrameType) -> Any:
    """Return the job of an executor that ``frame`` runs, or is about to run or has just run; ``None`` mostly."""
    name = frame.f_code.co_name
    variable = _JOB_IN.get(name)
    if variable is None or not any(_is_of(frame, name, sys.modules.get(module)) for module in EXECUTORS):
        return None
    return frame.f_locals.get(variable)


def _blocks_thread() -> bool:
    """Whether waiting for a lock of ``threading`` blocks the thread, with all its greenlets."""
    return type(threading.Lock()).__module__ == "_thread"


# The bridges of asgiref: which task or thread waits for the code behind one.


def _asgiref() -> Any:
    """Return the module that has the bridges, or ``None`` where nothing has imported it completely."""
    module = sys.modules.get("asgiref.sync")
    return module if hasattr(module, "sync_to_async") else None


def _waiting_task(call: FrameType) -> asyncio.Task[Any] | None:
    """Return the task that waits for ``call``, a frame of what runs a function for ``sync_to_async``."""
    here = call.f_locals
    mark, loop = here.get("task_context"), here.get("loop")
    if not isinstance(mark, list) or not isinstance(loop, asyncio.AbstractEventLoop):
        return None
    thread = threading.get_ident()
    latest = _latest.get(thread, lambda: None)()
    if latest is not None and _waits(latest, mark):
        return latest
    task = _find(mark, loop)
    if task is None and loop.is_running() and asyncio._get_running_loop() is not loop:
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


def _waiting_thread(task: asyncio.Task[Any]) -> tuple[Any, FrameType] | None:
    """Return the thread that waits in ``async_to_sync`` for ``task``, and the frame in which it does.

    ``None`` for a task that was made by anything else, and for a thread that ``threading`` did not start and that has
    not asked for a lock yet: it has no holds to share.
    """
    module = _asgiref()
    if module is None:
        return None
    # The future that the task will put its result into.
    result = _call_result(task, module)
    if result is None:
        return None
    frames: dict[Any, FrameType] = sys._current_frames()
    for thread in threading.enumerate():
        for frame in _outwards(frames.get(thread.ident)):
            if _is_of(frame, "__call__", module) and frame.f_locals.get("call_result") is result:
                is_foreign = isinstance(thread, threading._DummyThread)
                found = _foreign_threads.get(thread.ident or 0) if is_foreign else thread
                return None if found is None else (found, frame)
    return None


def _call_result(task: asyncio.Task[Any], module: Any) -> Any:
    """Return the variable of that name where ``async_to_sync`` runs a coroutine in ``task``, or ``None``."""
    outermost = _frame_of(task.get_coro())
    is_running = asyncio._get_running_loop() is task.get_loop() and asyncio.current_task() is task
    if is_running:
        # A coroutine that runs does not show what it awaits.
        frames: Iterator[FrameType | None] = callers()
    else:
        frames = map(_frame_of, _awaited(task))
    for frame in frames:
        if frame is not None and _is_of(frame, "main_wrap", module):
            return frame.f_locals.get("call_result")
        if frame is outermost and is_running:
            break
    return None


# Frames.


def _is_of(frame: FrameType, name: str, module: Any) -> bool:
    """Whether a function of that name, in that module if it is imported, runs in ``frame``."""
    return frame.f_code.co_name == name and module is not None and frame.f_globals is vars(module)


def _frame_of(coroutine: Any) -> FrameType | None:
    """Return the frame of a coroutine; ``None`` if it has none, as one that is written in C."""
    return getattr(coroutine, "cr_frame", None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over ``frame`` and the frames that it was called by."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def callers() -> Iterator[FrameType]:
    """Iterate over the frames of the calling code, outwards.

    The frame of the function that iterates is left out: it refers to this iterator, which would refer to it, and so to
    what the locals of all its callers are, until the garbage collector comes. A greenlet that a task has started runs
    for that task, as SQLAlchemy's do: then come those of its parent.
    """
    getcurrent = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    greenlet = None if getcurrent is None else getcurrent()
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None:
        yield from _outwards(frame)
        greenlet = None if greenlet is None else greenlet.parent
        frame = None if greenlet is None else greenlet.gr_frame


# The task that was found last in each thread. Code that asks once asks again; each time the task is checked again.
_latest: dict[int, Callable[[], asyncio.Task[Any] | None]] = {}


def _find(mark: list[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    return next((task for task in asyncio.all_tasks(loop) if _waits(task, mark)), None)


def _waits(task: asyncio.Task[Any], mark: list[Any]) -> bool:
    """Whether ``task`` waits for the call that has this ``mark``."""
    module = _asgiref()
    for awaited in _awaited(task):
        # There may be thousands of tasks, so its frame is asked for last.
        if type(awaited) is CoroutineType and awaited.cr_code.co_name == "__call__":
            frame = _frame_of(awaited)
            if frame is not None and _is_of(frame, "__call__", module) and frame.f_locals.get("task_context") is mark:
                return True
    return False


def _awaited(task: asyncio.Task[Any]) -> Iterator[Any]:
    """Iterate over what a task that is suspended waits in, from its coroutine to the innermost."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        yield awaited
        # Nearly all of them are of this type.
        awaited = awaited.cr_await if type(awaited) is CoroutineType else _behind(awaited)


def _behind(awaited: Any) -> Any:
    """Return what ``awaited``, which is no plain coroutine, waits for in the same task; ``None`` if it is the last."""
    for name in ("gi_yieldfrom", "ag_await", "cr_await"):
        if hasattr(awaited, name):
            return getattr(awaited, name)
    if type(awaited).__module__ != "builtins":
        return None
    # The objects that drive an asynchronous generator, or iterate over a coroutine, show it only to the garbage
    # collector. That of `anext(…, default)` shows one of them.
    shown = gc.get_referents(awaited)
    return next((each for each in shown if isinstance(each, _SUSPENDABLE) or type(each).__name__ in _DRIVERS), None)


_SUSPENDABLE = (CoroutineType, GeneratorType, AsyncGeneratorType)
_DRIVERS = {"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"}
