"""What the errors of an acquisition advise."""

from __future__ import annotations

import pytest

from django_zklock.zk.failures import _are_local


@pytest.mark.parametrize(
    ("hosts", "local"),
    [
        ("localhost", True),
        ("localhost:2181", True),
        ("127.0.0.1:2181/app", True),
        ("127.0.0.1:2181, 127.0.0.1:2182,[::1]:2183", True),
        ("127.0.0.1:2181,zk1:2181", False),
        ("localhost.example.org:2181", False),
        ("zk1:2181/localhost", False),
    ],
)
def test_local(hosts: str, local: bool) -> None:
    """Only for servers on this machine is the development server an answer."""
    assert _are_local(hosts) is local
