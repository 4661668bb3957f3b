"""Clients of Apache Curator, which live in one Java program."""

from __future__ import annotations

import re
from pathlib import Path

from services.java import HOW_TO_GET_CURATOR, QUICK_START, find_curator, find_java

from tests.testing.dialogue import Dialogue

SOURCE = Path(__file__).parent / "java" / "CuratorClient.java"
# What the program says of a client: an answer, an exception, an event.
SAID = re.compile(r"(\d+) ([=!>]) (.*)")


class RefusedError(Exception):
    """Curator has raised; the text is the name of Java's exception and its message."""


class CuratorClient:
    """One session of Curator, with a thread of its own in Java."""

    def __init__(self, program: Curator, number: int) -> None:
        self._program = program
        self._number = number
        self._closing = False
        self.answers = program.lines()
        self.events = program.lines()

    def tell(self, command: str) -> None:
        """Send a command and do not wait."""
        self._program.say(f"{self._number} {command}")

    def answer(self) -> str:
        """Wait for the answer to the first command that has none yet, or raise RefusedError."""
        kind, _, text = self.answers.get().partition(" ")
        if kind == "!":
            raise RefusedError(text)
        return text

    def ask(self, command: str) -> str:
        """Send a command and wait for its answer."""
        self.tell(command)
        return self.answer()

    def close(self) -> None:
        """End the session, whatever the client does now, and do not wait; fine if it has ended."""
        if not self._closing:
            self._closing = True
            self.tell("close")

    def wait_closed(self) -> None:
        """Wait for the end that ``close`` has asked for."""
        while self.events.get() != "CLOSED":
            pass

    def hear(self, kind: str, text: str) -> None:
        if kind == ">":
            self.events.put(text)
        else:
            self.answers.put(f"{kind} {text}")


class Curator(Dialogue):
    """The program. Java compiles the source when it starts it; Debian's headless runtime can, a JDK is not needed."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[CuratorClient] = []

    def arguments(self) -> list[str]:
        return [
            find_java(HOW_TO_GET_CURATOR),
            *QUICK_START,
            # Through the same object as the answers, so that no line comes into the middle of another.
            "-Dorg.slf4j.simpleLogger.logFile=System.out",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", find_curator()),
            str(SOURCE),
        ]

    def hear(self, line: str) -> None:
        if said := SAID.fullmatch(line):
            self._clients[int(said[1])].hear(said[2], said[3])

    def connect(self, hosts: str, *, session_timeout: float = 10.0) -> CuratorClient:
        """Give a new client with a session of its own."""
        client = CuratorClient(self, len(self._clients))
        self._clients.append(client)
        client.ask(f"connect {hosts} {round(session_timeout * 1000)}")
        assert client.events.get() == "CONNECTED"
        return client
