"""The pool of a worker: its kind, its jobs, and where it reports what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency import prefork, thread
from celery.worker.request import Request

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")


def is_prefork(pool: Any) -> bool:
    """Return whether tasks run in child processes of this one."""
    return isinstance(pool, prefork.TaskPool)


def can_have_gate(pool: Any) -> bool:
    """Return whether tasks in ``pool`` can use a lock that this process holds.

    A solo pool has no gate: its only thread runs the tasks. A consumer without a pool runs none.
    """
    if pool is None:
        return False
    if is_prefork(pool):
        # A child that was not forked has no scoreboard.
        return bool(pool.forking_enable)
    return bool(pool.is_green) or isinstance(pool, thread.TaskPool)


def starts_children(pool: Any) -> bool:
    """Return whether a child of the prefork ``pool`` cannot take a task yet; Celery kills one that never starts."""
    return bool(getattr(pool._pool, "_waiting_to_start", None))  # noqa: SLF001 - no other record


def has_lost_job(pool: Any, request: Request) -> bool:
    """Return whether the prefork ``pool`` was given the job of ``request`` and has it no more, begun or not."""
    if "_apply_result" not in vars(request):
        return False
    # A weak reference: only billiard's cache keeps the job alive. There is none if the pool has refused the job.
    reference: Any = vars(request)["_apply_result"]
    job = reference() if reference is not None else None
    # A pool that is stopped has none.
    jobs = getattr(pool._pool, "_cache", ())  # noqa: SLF001 - the pool drops jobs without a callback
    return job is None or job._job not in jobs  # noqa: SLF001


def take_callbacks(request: Request, ours: Any) -> dict[str, Callable[..., Any]]:
    """Let the pool report to ``ours`` instead of ``request``; return what it reported to."""
    theirs = {name: getattr(request, name) for name in _CALLBACKS}
    vars(request).update({name: getattr(ours, name) for name in _CALLBACKS})
    return theirs


def drop_callbacks(request: Request) -> None:
    """Let the pool report to ``request`` again."""
    for name in _CALLBACKS:
        vars(request).pop(name, None)


class PartialResults:
    """The results of the children of a prefork pool that Celery's loop has read in part when it loses the broker.

    A child writes a result of more than 16 kB in two pieces. The loop forgets its readers with the connection, and
    would take the rest for the beginning of another result: it never looks at that child again, whose slot is lost,
    and a shutdown waits for ever for the rest.

    Used in the worker's main thread, which runs that loop.
    """

    def __init__(self) -> None:
        self._children: dict[int, Any] = {}
        # By the descriptor that is read: whose it is, and the generator that reads one result.
        self._begun: dict[int, tuple[Any, Any]] = {}

    def watch(self, pool: Any) -> None:
        """Note from now on what the loop begins to read from ``pool``, which has started."""
        pool = pool._pool  # noqa: SLF001 - no other way to the reader of results
        handler = getattr(pool, "_result_handler", None)
        receive = getattr(handler, "_recv_message", None)
        if receive is None or "_recv_message" in vars(handler):
            return
        self._children = pool._fileno_to_outq  # noqa: SLF001

        def begin(add_reader: Any, fd: int, callback: Any) -> Any:
            message = receive(add_reader, fd, callback)
            self._begun[fd] = self._children.get(fd), message
            return message

        vars(handler)["_recv_message"] = begin

    def read_on(self, hub: Any) -> None:
        """Let ``hub`` read on where it has forgotten that it had begun."""
        for fd, (child, message) in list(self._begun.items()):
            # A generator that has ended has no frame. The descriptor of a child that died may be another's.
            found = self._children.get(fd)
            lives = found is not None and found is child and found._is_alive()  # noqa: SLF001
            if lives and message.gi_frame is not None:
                hub.add_reader(fd, message)
            else:
                del self._begun[fd]
