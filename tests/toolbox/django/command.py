"""Run `manage.py zklock` in tests."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_zklock.management.commands.zklock import Command, UnsuccessfulError
from django_zklock.management.subcommands.exit_codes import INTERRUPTED
from django_zklock.zk.held import Held
from django_zklock.zk.node_data import Work

GUID = "01234567-89ab-cdef-0123-456789abcdef"
# What a client may write into its node: it clears the screen, turns the text around and forges a row.
NASTY = "\x1b[2J\u202egpj.exe\r\nfake row"
BILL = Work(kind="task", name="billing.bill", id="77")

Hold = Callable[..., Held]
Join = Callable[..., str]
Type = Callable[..., None]
Wait = Callable[..., None]


class Screen(StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def run(*arguments: str, status: int | None = 0, out: StringIO | None = None) -> str:
    """Run ``zklock`` and return its output; its exit code must be ``status``, unless that is ``None``."""
    out = out or StringIO()
    command = Command()
    ended: str | int | None
    try:
        call_command(command, *arguments, stdout=out)
        ended = command.exit_code
    except UnsuccessfulError as end:
        ended = end.returncode
    except SystemExit as end:  # a signal, or the command that it runs
        ended = end.code
    except KeyboardInterrupt:
        ended = INTERRUPTED
    assert status in {ended, None}, out.getvalue()
    return out.getvalue()


def failure(*arguments: str, out: StringIO | None = None) -> CommandError:
    """Run ``zklock``, which must fail, and return the error."""
    with pytest.raises(CommandError) as caught:
        run(*arguments, out=out)
    assert "\n" not in str(caught.value)
    return caught.value
