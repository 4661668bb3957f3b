"""What the subcommands share: how long they wait for ZooKeeper."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import pytest
from django.core.management.base import OutputWrapper

from django_zklock.connections import connections
from django_zklock.management.subcommands import _common
from django_zklock.management.subcommands._output import Terminal
from tests.toolbox.django.command import Screen, failure
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import GRACE

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.mark.parametrize(("stdout", "seconds"), [(Screen(), _common.SECOND_TRY), (io.StringIO(), 2 * GRACE)])
def test_answer_timeout(settings: Settings, stdout: io.StringIO, seconds: float) -> None:
    """At a terminal the command does not wait for servers that refuse; in a script it does, as they may be starting."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 2 * GRACE}}
    assert _common.answer_timeout(connections["default"], Terminal(OutputWrapper(stdout), None)) == seconds


commands = pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "k"],
        ["history"],
        ["revoke", "k", "--reason", "deploy"],
        ["break", "k", "--yes", "--reason", "it hangs"],
        ["prune"],
    ],
    ids=lambda command: command[0],
)


@commands
def test_unreachable(settings: Settings, command: list[str]) -> None:
    """An unreachable ZooKeeper is an error of one line, within the connect timeout, with exit code 2.

    It names the server for development, because the address is of this machine, and ends with the command to go on.
    """
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    began = time.monotonic()
    error = failure(*command)
    assert time.monotonic() - began < 4 + GRACE
    assert error.returncode == 2
    assert "ZooKeeper at 127.0.0.1:" in str(error)
    assert "`manage.py zklock devserver` starts one" in str(error)
    assert str(error).endswith("`manage.py zklock doctor` examines it")


@commands
def test_terminal__servers_refuse(settings: Settings, command: list[str]) -> None:
    """At a terminal each of these ends before ``CONNECT_TIMEOUT`` if the servers refuse."""
    limit = _common.SECOND_TRY + GRACE
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": limit + GRACE}}
    began = time.monotonic()
    assert "Connection refused" in str(failure(*command, out=Screen()))
    assert time.monotonic() - began < limit
