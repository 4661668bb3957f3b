"""kazoo's handlers, with callbacks that run where they arrive."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from django_zklock.zk.alarm import Alarm
from django_zklock.zk.wire.options import ConnectionOptions


class _InlineHandler:
    """What every handler of ours changes: nothing is queued for another thread, as our callbacks never block."""

    connect_limit = float("inf")

    # Makes what TLS needs, for each connection anew: certificates are renewed.
    tls: Callable[[], ssl.SSLContext] | None = None

    def create_connection(self, address: Any, timeout: float, hostname: str | None = None, **_tls: Any) -> Any:
        # kazoo's own way to TLS leaves a socket behind whenever the handshake fails.
        sock = super().create_connection(address, timeout=min(timeout, self.connect_limit))  # type: ignore[misc]
        if self.tls is None:
            return sock
        try:
            return self.tls().wrap_socket(sock, server_hostname=hostname)
        except BaseException:
            sock.close()
            raise

    def select(self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None) -> Any:
        # What TLS has already decrypted is not readable for the operating system; kazoo's loop would sleep.
        if buffered := [sock for sock in rlist if getattr(sock, "pending", int)()]:
            return buffered, [], []
        return super().select(rlist, wlist, xlist, timeout)  # type: ignore[misc]

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False


class _Event:
    """An event for kazoo, without an instant at which an exception would leave it locked for ever; see Alarm."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        # Adding to a set, discarding from it and copying it are atomic.
        self._waiting: set[Alarm] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for alarm in list(self._waiting):
            alarm.ring()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        alarm = Alarm()
        self._waiting.add(alarm)
        try:
            # Looked at after the alarm can be heard.
            return self._is_set or alarm.wait(timeout)
        finally:
            self._waiting.discard(alarm)


class _ThreadingHandler(_InlineHandler, SequentialThreadingHandler):
    # Greenlets are interrupted where they wait only, and gevent and eventlet have events of their own.
    def event_object(self) -> Any:
        return _Event()


def make_handler(options: ConnectionOptions, *, patience: float) -> Any:
    """Make the handler for one client; ``patience`` are the seconds in which some server is to accept."""
    handler = _handler_class()()
    # kazoo gives each server the whole session timeout to accept, and one that is switched off uses it up.
    handler.connect_limit = patience / len(options.hosts.split(","))
    if options.use_tls:
        handler.tls = partial(tls_context, options)
    return handler


def _handler_class() -> type:
    """Choose the handler by what is monkey-patched in this process, not by a setting."""
    gevent_monkey = sys.modules.get("gevent.monkey")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        return type("GeventHandler", (_InlineHandler, SequentialGeventHandler), {})
    eventlet_patcher = sys.modules.get("eventlet.patcher")
    if eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        return type("EventletHandler", (_InlineHandler, SequentialEventletHandler), {})
    return _ThreadingHandler


def tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Read the certificates and make what TLS needs; ``OSError`` if a file is not there or of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Before the verification is turned off, as ssl asks for.
    context.check_hostname = options.checks_host_name
    context.verify_mode = ssl.CERT_REQUIRED if options.tls_verify else ssl.CERT_NONE
    if options.tls_ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(options.tls_ca)
    if options.tls_cert is not None:
        # With None for a password, OpenSSL asks at the terminal for that of an encrypted key.
        context.load_cert_chain(options.tls_cert, options.tls_key, options.tls_key_password or "")
    return context
