"""Clients of Apache Curator in one Java program."""

from __future__ import annotations

import re
from pathlib import Path

from tests.toolbox.curator.installation import HOW_TO_GET_CURATOR, find_curator
from tests.toolbox.processes.dialogue import Dialogue
from tests.toolbox.processes.java import QUICK_START, find_java
from tests.toolbox.timing import scaled

SOURCE = Path(__file__).parent / "CuratorClient.java"
# The kinds of output for a client: a reply, an exception, an event.
OUTPUT = re.compile(r"(\d+) ([=!>]) (.*)")


class RefusedError(Exception):
    """An exception of Curator; the text has the name of Java's exception and its message."""


class CuratorClient:
    """One session of Curator, with its own thread in Java."""

    def __init__(self, program: Curator, number: int) -> None:
        self._program = program
        self._number = number
        self._closing = False
        self.answers = program.lines()
        self.events = program.lines()

    def send(self, command: str) -> None:
        """Send a command without waiting."""
        self._program.send(f"{self._number} {command}")

    def answer(self) -> str:
        """Wait for the reply to the oldest command without one, or raise RefusedError."""
        kind, _, text = self.answers.get().partition(" ")
        if kind == "!":
            raise RefusedError(text)
        return text

    def ask(self, command: str) -> str:
        """Send a command and wait for its reply."""
        self.send(command)
        return self.answer()

    def close(self) -> None:
        """Close the session without waiting, even while a command runs; a closed session is no error."""
        if not self._closing:
            self._closing = True
            self.send("close")

    def wait_closed(self) -> None:
        """Wait for the end of ``close``."""
        while self.events.get() != "CLOSED":
            pass

    def on_line(self, kind: str, text: str) -> None:
        if kind == ">":
            self.events.put(text)
        else:
            self.answers.put(f"{kind} {text}")


class Curator(Dialogue):
    """The Java program. Java compiles the source at the start; Debian's headless runtime suffices, without a JDK."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[CuratorClient] = []

    def arguments(self) -> list[str]:
        return [
            find_java(HOW_TO_GET_CURATOR),
            *QUICK_START,
            # Through the object that prints the replies, so that lines are not mixed.
            "-Dorg.slf4j.simpleLogger.logFile=System.out",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", find_curator()),
            str(SOURCE),
        ]

    def on_line(self, line: str) -> None:
        if output := OUTPUT.fullmatch(line):
            self._clients[int(output[1])].on_line(output[2], output[3])

    def connect(self, hosts: str, *, session_timeout: float = 10.0) -> CuratorClient:
        """Return a new client with its own session."""
        client = CuratorClient(self, len(self._clients))
        self._clients.append(client)
        client.ask(f"connect {hosts} {round(scaled(session_timeout) * 1000)}")
        assert client.events.get() == "CONNECTED"
        return client
