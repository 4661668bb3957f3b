"""Where the command writes, and asks what it has not been told."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping

from django.core.management.base import OutputWrapper
from django.core.management.color import Style


class Terminal:
    """Standard output, which may be a terminal, a file or a pipe.

    ``emphasis`` gives what colours words such as "held"; it is empty where colours are not wanted. ``is_heard`` is
    false once nobody reads any more.
    """

    def __init__(self, stdout: OutputWrapper, style: Style | None) -> None:
        self.is_heard = True
        self.emphasis: Mapping[str, Callable[[str], str]] = {}
        if style is not None:
            self.emphasis = {
                "held": style.SUCCESS,
                "waiting": style.WARNING,
                "revoked": style.NOTICE,
                "ok": style.SUCCESS,
                "warning": style.WARNING,
                "error": style.ERROR,
            }
        self._stdout = stdout

    @property
    def is_a_tty(self) -> bool:
        """Whether it is a terminal indeed."""
        return self._stdout.isatty()

    @property
    def width(self) -> int | None:
        """How many columns there are; ``None`` where nothing has to be cut."""
        return shutil.get_terminal_size().columns if self.is_a_tty else None

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits there who can be asked."""
        return self.is_a_tty and sys.stdin.isatty()

    def write(self, text: str) -> None:
        """Write ``text`` as it is and at once; that nobody reads it any more is no error."""
        encoding = getattr(self._stdout, "encoding", None) or "utf-8"
        try:
            # A terminal that cannot show a sign of a key gets its number.
            self._stdout.write(text.encode(encoding, "backslashreplace").decode(encoding), ending="")
            self._stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough (`| head`). Python would complain again when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.is_heard = False

    def ask(self, question: str) -> str:
        """Give the line that is typed in; nothing at the end of input."""
        self.write(question)
        return sys.stdin.readline().strip()
