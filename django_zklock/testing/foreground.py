"""The server in the foreground of a process, until a signal ends it."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import queue
import signal
import socket
import time
from collections.abc import Callable

from .server import LOOPBACK, ZooKeeperServer

# ZooKeeper's own.
DEFAULT_PORT = 2181
LAST_PORT = 65_535


class CannotServeError(Exception):
    """The server may not or cannot listen there; the message says why and what to do, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where to listen."""
    parser.add_argument("--host", metavar="ADDRESS", default=LOOPBACK, help="where to listen (default: %(default)s)")
    parser.add_argument(
        "--port", metavar="PORT", type=_port, default=DEFAULT_PORT, help="0 for any that is free (default: %(default)s)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="listen where other machines can connect")


def run(host: str, port: int, *, allow_remote: bool, write: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM.

    ``write`` is called once, when clients can connect, with a line that says where and one that says how; it must
    not keep them back. To be called in the main thread. Raises CannotServeError.
    """
    # Unlike an Event, which a handler could find locked by the very thread that it interrupts.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    numbers = signal.SIGINT, signal.SIGTERM
    previous = {number: signal.signal(number, lambda number, _frame: signals.put(number)) for number in numbers}
    try:
        server = _start(host, port, allow_remote=allow_remote)
        try:
            write(_greeting(server))
            signals.get()
        finally:
            server.close()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start(host: str, port: int, *, allow_remote: bool) -> ZooKeeperServer:
    try:
        address = _resolve(host, port)
        if not allow_remote and not address.is_loopback:
            msg = (
                f"other machines could connect to {host}, and this server was not made to resist attackers; "
                "give --allow-remote if that is what you want"
            )
            raise CannotServeError(msg)
        # Clients outlive the server. They stay away from one that is behind what they have seen, for ever, and
        # fencing tokens must never fall. So every start goes on above the last one, unless that has done more than
        # a million changes a second.
        server = ZooKeeperServer(host=str(address), port=port, zxid=time.time_ns() // 1_000)
        try:
            server.start()
        except BaseException:
            server.close()
            raise
    except OSError as error:
        msg = f"cannot listen at {host}:{port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            msg += "; end what listens there, or take another port with --port (0 for any that is free)"
        raise CannotServeError(msg) from error
    return server


def _resolve(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Give the address that a name has now, so that the one which is checked is the one that is used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    return ipaddress.ip_address(found[0][4][0])


def _greeting(server: ZooKeeperServer) -> str:
    host, port = server.address
    # Everywhere is no place to connect to.
    hosts = f"{socket.gethostname()}:{port}" if ipaddress.ip_address(host).is_unspecified else server.hosts
    return (
        f"A ZooKeeper for development listens at {server.hosts}; it keeps everything in memory, not for production.\n"
        f'To use it: ZKLOCK = {{"default": {{"HOSTS": "{hosts}"}}}}. Ctrl-C ends it.\n'
    )


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= LAST_PORT:
        return int(text)
    msg = f"must be a number from 0 to {LAST_PORT}, got {text!r}"
    raise argparse.ArgumentTypeError(msg)
