"""kazoo's handlers, changed to run callbacks on the thread that reads the answers."""

from __future__ import annotations

import select
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from django_zklock.zk.waiting import AutoResetEvent, Deadline
from django_zklock.zk.wire.options import ConnectionOptions, tls_context

Poller = Callable[[float], list[tuple[int, int]]]
"""Waits for at most some milliseconds, and returns the descriptors that are ready, each with an event, as ``poll``."""

# select.POLLIN, which gevent and eventlet remove from the module.
READABLE = 1


class _InlineHandler:
    """The changes to each of kazoo's handlers. No callback is queued for another thread: ours never block."""

    # By then the server that is being connected to must have accepted; the connection sets it.
    attempt = Deadline(None)

    # Returns a new TLS context for each connection: certificates may have been renewed.
    tls: Callable[[], ssl.SSLContext] | None = None

    def create_connection(self, address: Any, timeout: float, hostname: str | None = None, **_tls: Any) -> Any:
        # kazoo's own TLS code leaks the socket if the handshake fails.
        sock = super().create_connection(address, timeout=self.attempt.capped(timeout).remaining())  # type: ignore[misc]
        if self.tls is None:
            return sock
        try:
            return self.tls().wrap_socket(sock, server_hostname=hostname)
        except BaseException:
            sock.close()
            raise

    def poller(self, readers: list[Any], writers: Sequence[Any] = ()) -> Poller:
        """Return what waits until one of ``readers`` is readable, or one of ``writers`` writable."""
        with_tls, sleep = [sock for sock in readers if hasattr(sock, "pending")], self.sleeper(readers, writers)

        def wait(milliseconds: float) -> list[tuple[int, int]]:
            # Bytes that TLS has decrypted already do not make the socket readable.
            return [(sock.fileno(), READABLE) for sock in with_tls if sock.pending()] or sleep(milliseconds)

        return wait if with_tls else sleep

    def sleeper(self, readers: list[Any], writers: Sequence[Any]) -> Poller:
        def sleep(milliseconds: float) -> list[tuple[int, int]]:
            readable, writable, _ = self.select(readers, writers, [], milliseconds / 1000)  # type: ignore[attr-defined]
            return [(sock.fileno(), READABLE) for sock in (*readable, *writable)]

        return sleep

    def abandon(self, routine: Any) -> None:
        """In a forked child: end what has run the connection. A thread is not there any more."""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False


class _InlineGeventHandler(_InlineHandler):
    def abandon(self, routine: Any) -> None:
        if routine is not None:
            routine.kill(block=False)


class _Event:
    """An event for kazoo that no exception can leave locked; see AutoResetEvent."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        # Adding to a set, discarding from it and copying it are atomic.
        self._waiting: set[AutoResetEvent] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for event in list(self._waiting):
            event.set()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        event = AutoResetEvent()
        self._waiting.add(event)
        try:
            # Read after the event is registered, so that a set() in between is not missed.
            return self._is_set or event.wait(timeout)
        finally:
            self._waiting.discard(event)


class ThreadingHandler(_InlineHandler, SequentialThreadingHandler):
    # Not for greenlets: gevent and eventlet have their own.

    def sleeper(self, readers: list[Any], writers: Sequence[Any]) -> Poller:
        # kazoo builds, fills and closes a selector, with a descriptor of its own, for each wait.
        poll = select.poll()
        for sock in readers:
            poll.register(sock, READABLE)
        for sock in writers:
            poll.register(sock, select.POLLOUT)
        return poll.poll

    # Greenlets are interrupted only where they wait.
    def event_object(self) -> Any:
        return _Event()


def make_handler(options: ConnectionOptions) -> Any:
    """Return the handler for one client, for what is monkey-patched in this process."""
    handler_class: type = ThreadingHandler
    gevent_monkey, eventlet_patcher = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        handler_class = type("GeventHandler", (_InlineGeventHandler, SequentialGeventHandler), {})
    elif eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        handler_class = type("EventletHandler", (_InlineHandler, SequentialEventletHandler), {})
    handler: Any = handler_class()
    if options.use_tls:
        handler.tls = partial(tls_context, options)
    return handler
