"""The addresses of the servers in HOSTS: looked up in the background, and remembered.

DNS may be silent or wrong while every server runs. So a look-up does not delay a connection for long, and where it
fails the last known addresses are tried. The addresses that this process has found are in ``_known``, by name: they
are for all its connections, and a forked child has them too.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from django_zklock.zk.waiting import DaemonCall, Deadline
from django_zklock.zk.wire.options import join_address

Address = tuple[str, str, int]
"""A host as HOSTS names it, one of its addresses, and the port."""

_known: dict[str, tuple[str, ...]] = {}


def describe(address: Address) -> str:
    """Return an address as ZooKeeper writes it, with the name in HOSTS, if it is not that itself."""
    host, literal, port = address
    return join_address(host, port) if host == literal else f"{host}/{join_address(literal, port)}"


class Names:
    """The look-ups of one connection, used by its thread alone. At most one of each name is under way."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        self._servers = servers
        self._literals = {host: found for host, _port in servers if (found := _read_literal(host))}
        self._calls: dict[str, DaemonCall[tuple[str, ...]]] = {}

    @property
    def names(self) -> list[str]:
        """The hosts that are no addresses."""
        return list(dict.fromkeys(host for host, _port in self._servers if host not in self._literals))

    def resolve(self, deadline: Deadline) -> tuple[list[Address], dict[str, str]]:
        """Return the addresses of all servers, and why names could not be looked up until ``deadline``.

        Such a name has its last known addresses. A look-up that takes longer goes on, and its result is known later.
        """
        failures: dict[str, str] = {}
        for name in self.names:
            call = self._calls.get(name)
            if call is None or call.over:
                self._calls[name] = DaemonCall(partial(_resolve, name))
        for name in self.names:
            try:
                self._calls[name].result(deadline)
            except TimeoutError:
                failures[name] = "no answer"
            except UnicodeError:
                failures[name] = "no host can have this name"
            except Exception as error:  # noqa: BLE001 - gevent and eventlet raise errors of their own
                failures[name] = getattr(error, "strerror", None) or str(error) or repr(error)
        found = self._literals | {name: _known.get(name, ()) for name in self.names}
        return [(host, address, port) for host, port in self._servers for address in found[host]], failures


def _resolve(name: str) -> tuple[str, ...]:
    """Look up a name, which may block for long, and remember its addresses."""
    found = _addresses(socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM))
    if not found:
        raise OSError("the answer has no address")
    _known[name] = found
    return found


def _read_literal(host: str) -> tuple[str, ...]:
    """Return the address that ``host`` is, in any form that the system reads; nothing for a name. Does not block."""
    try:
        return _addresses(socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return ()


def _addresses(entries: Sequence[tuple[object, ...]]) -> tuple[str, ...]:
    # A link-local address of IPv6 means nothing without its zone, the last of its four parts.
    sockaddrs: list[tuple[str | int, ...]] = [entry[4] for entry in entries]  # type: ignore[misc]
    found = (f"{host}%{zone[1]}" if zone[1:] and zone[1] else str(host) for host, _port, *zone in sockaddrs)
    # One that comes twice, as from two lines of /etc/hosts, is one server.
    return tuple(dict.fromkeys(found))
