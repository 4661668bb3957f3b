"""The jobs of executors that were started while a hold lasted, and go on when the coroutine that held has left.

``sync_to_async`` and ``asyncio.to_thread`` run a function in a thread. If the coroutine that waits for it is cancelled,
or an error of another one ends its block, the thread goes on. It runs in a copy of the coroutine's context, so a
context variable tells what was started under which hold: each hold that a coroutine acquires has a :class:`Scope`.

Only copies of the context keep a scope alive when its hold ends. Mostly there are none, and no thread is looked at.

What nothing else shows is found in private places of executors: the call of a job, the jobs in a queue, and the job
that a thread has (Python 3.11 to 3.13, asgiref 3.8 to 3.13). A job that copies no context is not found, such as one of
``loop.run_in_executor``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import Context, ContextVar
from functools import partial
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar
from weakref import ref

from django_zklock.zk import owners

C = TypeVar("C", bound=Coroutine[Any, Any, Any])


class Scope:
    """What was started while one hold lasted: the contexts that have this object."""

    __slots__ = ("__weakref__", "of")

    def __init__(self) -> None:
        # The coroutine that acquires, and then the hold, while there is one.
        self.of: Callable[[], object | None] = _nothing


def _nothing() -> None:
    return None


# Those that the calling code is in, the innermost last.
_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("django_zklock_scopes", default=())


def enter(begin: Callable[[ref[Scope]], C]) -> C:
    """Begin a scope in the calling context, and return the coroutine that acquires its hold: what ``begin`` returns.

    That context and its copies alone keep the scope alive.
    """
    scope = Scope()
    acquiring = begin(ref(scope))
    scope.of = ref(acquiring)
    # One that another context has left is still in this one, as is that of a coroutine which was never awaited.
    _scopes.set((*(each for each in _scopes.get() if each.of() is not None), scope))
    return acquiring


def begin(held: Any) -> Scope:
    """Begin a scope of a hold that is there already. The result keeps it alive, and :func:`within` enters it."""
    scope = Scope()
    scope.of = ref(held)
    held._scope = ref(scope)
    return scope


@contextlib.contextmanager
def within(scope: Scope | None) -> Iterator[None]:
    """Enter ``scope``, if there is one, in the calling context for a block."""
    token = None if scope is None else _scopes.set((*_scopes.get(), scope))
    try:
        yield
    finally:
        if token is not None:
            _scopes.reset(token)


def belongs_to(get: ref[Scope], held: object) -> None:
    """Note that the hold of a scope is ``held``."""
    if (scope := get()) is not None:
        scope.of = ref(held)


def leave(get: ref[Scope]) -> bool:
    """End a scope; return whether there may be jobs that were started in it and have not ended."""
    _end(get)
    return get() is not None


def _end(get: ref[Scope]) -> None:
    # A function of its own, so that none of its variables keeps the scope alive.
    scope, entered = get(), _scopes.get()
    if scope is not None:
        scope.of = _nothing
    if scope in entered:
        _scopes.set(tuple(each for each in entered if each is not scope))


def started_in(get: ref[Scope]) -> list[Any]:
    """Return the jobs that were started in a scope and have not ended, except one that the caller is a part of."""
    scope, found = get(), {}
    mine = [owners.job_in(frame) for frame in owners.callers()]
    # The queues first: a job that leaves one meanwhile is seen in its thread.
    for job in itertools.chain(_queued(), _recent(), _running()):
        is_mine = any(job is each for each in mine)
        if not (is_mine or job.future.done()) and any(scope in each.get(_scopes, ()) for each in _contexts(job)):
            found[id(job)] = job
    return list(found.values())


def name_of(job: Any) -> str:
    """Return the name of the function that a job runs, for a message."""
    bridge = getattr(sys.modules.get("asgiref.sync"), "SyncToAsync", None)
    call, is_in_context = job.fn, False
    for each in _parts(job):
        if bridge is not None and issubclass(type(each), bridge):
            call = each.func
            break
        if type(each) is BuiltinFunctionType and type(each.__self__) is Context:
            is_in_context = True
        elif is_in_context and callable(each):
            call = each
            break
    while type(call) is partial:
        call = call.func
    # Anything may be called, and an object of Django's lazy types would be loaded for its name.
    if type(call) not in {FunctionType, MethodType, BuiltinFunctionType}:
        return type(call).__qualname__
    return f"{call.__module__}.{call.__qualname__}" if call.__module__ else call.__qualname__


# Where the jobs are.


def _job_types() -> set[Any]:
    modules: Any = map(sys.modules.get, owners.EXECUTORS)
    return {module._WorkItem for module in modules if hasattr(module, "_WorkItem")}


def _queued() -> Iterator[Any]:
    """Iterate over the jobs that no thread has begun."""
    types = _job_types()
    # The queue of each thread of a pool; one read, while other threads add theirs.
    queues = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", None)
    for queue in [] if queues is None else {id(each): each for each in list(queues.data.values())}.values():
        # It shows what is in it to the garbage collector alone; up to Python 3.12 that is a list.
        for each in gc.get_referents(queue):
            yield from (job for job in (each if type(each) is list else [each]) if type(job) in types)
    bridge = getattr(sys.modules.get("asgiref.sync"), "AsyncToSync", None)
    # That of the thread which waits for this coroutine, and those of the bridges around.
    executor = getattr(getattr(bridge, "executors", None), "current", None)
    while executor is not None:
        # Before asgiref 3.9 the items were in a queue.
        items = executor._work_items if hasattr(executor, "_work_items") else executor._work_queue.queue
        yield from (job for job in items.copy() if type(job) in types)
        executor = getattr(executor, "_old_executor", None)


def _recent() -> Iterator[Any]:
    """Iterate over the jobs that were submitted a moment ago.

    From Python 3.13 on a job may be handed to a thread that waits for one, and until that thread runs nothing else
    shows it. It is among the objects that the garbage collector has not looked at, or once.
    """
    types = _job_types()
    for generation in (0, 1):
        yield from [each for each in gc.get_objects(generation) if type(each) in types]


def _running() -> Iterator[Any]:
    """Iterate over the jobs that threads have taken out of a queue."""
    types = _job_types()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if (job := owners.job_in(frame)) is not None and type(job) in types:
                yield job
            frame = frame.f_back


# What a job is made of. An agent that traces a program puts a function, a tuple or an object of its own around what was
# submitted, so the context that a job runs in is not always in the same place.

# A job mostly has some ten parts; its arguments may be large.
MAX_PARTS = 500


def _contexts(job: Any) -> Iterator[Context]:
    """Iterate over the contexts that a job may run in."""
    return (each for each in _parts(job) if type(each) is Context)


def _parts(job: Any) -> Iterator[Any]:
    """Iterate over what a job calls, its arguments, and what these call or contain, the nearest first."""
    seen: dict[int, Any] = {}
    parts: deque[Any] = deque([job.fn, job.args, job.kwargs])
    while parts and len(seen) < MAX_PARTS:
        part = parts.popleft()
        if id(part) not in seen:
            seen[id(part)] = part
            yield part
            parts.extend(_inside(part))


def _inside(part: Any) -> Iterable[Any]:
    """Return what ``part`` calls or contains.

    Nothing is asked of an object but its type, as one of Django's lazy types would be loaded. What it refers to is
    asked of the garbage collector.
    """
    kind = type(part)
    if kind is FunctionType:
        return (*(part.__closure__ or ()), part.__defaults__, part.__kwdefaults__)
    if kind in {tuple, list, dict}:
        return () if len(part) > MAX_PARTS else part.values() if kind is dict else part
    if kind is CellType or (callable(part) and not issubclass(kind, type)):
        return [each for each in gc.get_referents(part) if not issubclass(type(each), type)]
    return ()
