"""Whether what is said to ZooKeeper leaves this host."""

from __future__ import annotations

import ipaddress

from django_zklock.zk.wire import ConnectionOptions, words


def is_here(options: ConnectionOptions) -> bool:
    """Whether every server in HOSTS is on the loopback interface. No name is looked up."""
    return all(_is_loopback(host) for host, _port in words.addresses(options.hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
