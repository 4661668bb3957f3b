"""What the subcommands share: how long they wait for ZooKeeper."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from django.core.management.base import OutputWrapper
from services.port import free_port

from django_zklock.connections import connections
from django_zklock.management.subcommands import _common
from django_zklock.management.subcommands._output import Terminal
from tests.support.timing import GRACE

if TYPE_CHECKING:
    from pytest_django import Settings


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "seconds"), [(_Tty(), _common.SECOND_TRY), (io.StringIO(), 2 * GRACE)])
def test_answer_timeout(settings: Settings, stdout: io.StringIO, seconds: float) -> None:
    """At a terminal the command does not wait for servers that refuse; in a script it does, as they may be starting."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 2 * GRACE}}
    assert _common.answer_timeout(connections["default"], Terminal(OutputWrapper(stdout), None)) == seconds
