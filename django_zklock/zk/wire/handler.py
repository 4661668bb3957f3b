"""kazoo's handlers, changed to run callbacks on the thread that reads the answers."""

from __future__ import annotations

import select
import ssl
import sys
from collections.abc import Callable
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

    def select(self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None) -> Any:
        # Bytes that TLS has decrypted already do not make the socket readable; kazoo's loop would sleep.
        if buffered := [sock for sock in rlist if getattr(sock, "pending", int)()]:
            return buffered, [], []
        return self.wait_for_sockets(rlist, wlist, xlist, timeout)

    def wait_for_sockets(self, *arguments: Any) -> Any:
        return super().select(*arguments)  # type: ignore[misc]

    def poller(self, sockets: list[Any]) -> Poller:
        """Return what waits until one of ``sockets`` is readable."""
        with_tls, sleep = [sock for sock in sockets if hasattr(sock, "pending")], self.sleeper(sockets)
        if not with_tls:
            return sleep

        def wait(milliseconds: float) -> list[tuple[int, int]]:
            return [(sock.fileno(), READABLE) for sock in with_tls if sock.pending()] or sleep(milliseconds)

        return wait

    def sleeper(self, sockets: list[Any]) -> Poller:
        def sleep(milliseconds: float) -> list[tuple[int, int]]:
            readable, _, _ = self.wait_for_sockets(sockets, [], [], milliseconds / 1000)
            return [(sock.fileno(), READABLE) for sock in readable]

        return sleep

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

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

    def wait_for_sockets(self, rlist: list[Any], wlist: list[Any], _xlist: list[Any], timeout: float | None) -> Any:
        # kazoo builds, fills and closes a selector, with a descriptor of its own, for each call.
        poll = select.poll()
        for sockets, events in ((rlist, select.POLLIN), (wlist, select.POLLOUT)):
            for sock in sockets:
                poll.register(sock, events)
        ready = {number for number, _events in poll.poll(None if timeout is None else timeout * 1000)}
        readable, writable = ([sock for sock in sockets if sock.fileno() in ready] for sockets in (rlist, wlist))
        return readable, writable, []

    def sleeper(self, sockets: list[Any]) -> Poller:
        poll = select.poll()
        for sock in sockets:
            poll.register(sock, READABLE)
        return poll.poll

    # Greenlets are interrupted only where they wait.
    def event_object(self) -> Any:
        return _Event()


def make_handler(options: ConnectionOptions) -> Any:
    """Return the handler for one client."""
    handler = _handler_class()()
    if options.use_tls:
        handler.tls = partial(tls_context, options)
    return handler


def _handler_class() -> type:
    """Return the handler for what is monkey-patched in this process."""
    gevent_monkey = sys.modules.get("gevent.monkey")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        return type("GeventHandler", (_InlineGeventHandler, SequentialGeventHandler), {})
    eventlet_patcher = sys.modules.get("eventlet.patcher")
    if eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        return type("EventletHandler", (_InlineHandler, SequentialEventletHandler), {})
    return ThreadingHandler
