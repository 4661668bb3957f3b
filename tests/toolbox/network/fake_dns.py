"""A DNS inside of this process, which answers, refuses or is silent as the test says."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from typing import Any, Final

import pytest

from django_zklock.zk.wire import names

# What a name server says of a name, as the resolver of the system reports it.
NXDOMAIN: Final = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
SERVFAIL: Final = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
EMPTY: Final[list[str]] = []
SILENCE: Final = None

Answer = list[str] | socket.gaierror | None


class FakeDns:
    """Looks up the names that have an answer, instead of the system; forgets what was looked up before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._system = socket.getaddrinfo
        self._answers: dict[str, Answer] = {}
        self._changed = threading.Condition()
        # The look-ups that have begun and that have ended, by name.
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        monkeypatch.setattr(names, "_known", {})
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)

    def answer(self, name: str, answer: Answer) -> None:
        """Answer so from now on, to the look-ups under way too; with ``SILENCE`` they wait."""
        with self._changed:
            self._answers[name] = answer
            self._changed.notify_all()

    def _getaddrinfo(self, host: str, port: int | None, *arguments: int) -> list[tuple[Any, ...]]:
        with self._changed:
            if host not in self._answers or socket.AI_NUMERICHOST in arguments:
                return self._system(host, port, *arguments)
            self.asked[host] += 1
            self._changed.wait_for(lambda: self._answers[host] is not SILENCE)
            answer = self._answers[host]
            self.answered[host] += 1
        if isinstance(answer, socket.gaierror):
            raise answer
        assert answer is not None
        return [entry for each in answer for entry in self._system(each, port, *arguments)]

    def close(self) -> None:
        """Let the look-ups under way end."""
        for name, answer in list(self._answers.items()):
            if answer is SILENCE:
                self.answer(name, NXDOMAIN)
