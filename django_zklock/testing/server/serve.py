"""Run a server in the foreground of a process, until a signal ends it."""

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

# ZooKeeper's default.
DEFAULT_PORT = 2181
LAST_PORT = 65_535


class CannotServeError(Exception):
    """The server cannot listen at this address; the message has one line, with the reason and a remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the address."""
    parser.add_argument("--host", metavar="ADDRESS", default=LOOPBACK, help="where to listen (default: %(default)s)")
    parser.add_argument(
        "--port", metavar="PORT", type=_port, default=DEFAULT_PORT, help="0 for any free port (default: %(default)s)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="listen where other machines can connect")


def run(host: str, port: int, *, allow_remote: bool, write: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM.

    ``write`` is called once, when clients can connect, with two lines of text: the address and the setting. It must
    flush them. To be called in the main thread. Raises CannotServeError.
    """
    # Not an Event: a signal handler could interrupt the thread that holds the lock of the Event.
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
                f"other machines could connect to {host}, and this server does not resist attackers; "
                "--allow-remote permits it"
            )
            raise CannotServeError(msg)
        # Clients outlive the server: they never connect to a server with a smaller zxid than they have seen, and
        # fencing tokens must not decrease. So each start begins above the last zxid of the previous run, unless
        # that run had more than a million transactions a second.
        server = ZooKeeperServer(host=str(address), port=port, zxid=time.time_ns() // 1_000)
        try:
            server.start()
        except BaseException:
            server.close()
            raise
    except OSError as error:
        msg = f"cannot listen at {host}:{port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            msg += "; stop the process that listens there, or choose another port with --port (0 for any free port)"
        raise CannotServeError(msg) from error
    return server


def _resolve(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address of a name, resolved once, so that the address that is checked is used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    return ipaddress.ip_address(found[0][4][0])


def _greeting(server: ZooKeeperServer) -> str:
    host, port = server.address
    # Clients cannot connect to the unspecified address.
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
