"""A server that refuses requests on demand, done or not, as one does that is overloaded or in trouble."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.testing.server.client import Client
from django_zklock.testing.server.jute import Reader

THROTTLED, NO_AUTH, QUOTA_EXCEEDED = -127, -102, -125


class Refusal:
    """Refuses the next ``times`` requests of a kind with an error code; if ``done``, they are executed all the same.

    Without a code it closes the connection, after the answers to earlier requests.
    """

    def __init__(
        self, opcodes: Collection[Opcode], code: int | None, times: float, *, done: bool, session: int | None
    ) -> None:
        self.opcodes = opcodes
        self.code = code
        self.done = done
        self.session = session
        self.count = 0
        self._times = times
        self._changed = threading.Condition()

    def takes(self, session: int, opcode: int) -> bool:
        with self._changed:
            takes = opcode in self.opcodes and self.session in {None, session} and self.count < self._times
            self.count += takes
            self._changed.notify_all()
            return takes

    def wait_for(self, count: int, timeout: float = 20.0) -> None:
        """Wait until as many requests have been refused."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, timeout), f"{self.count} refused, not {count}"

    def end(self) -> None:
        """Refuse no more."""
        with self._changed:
            self._times = 0


class Refusals:
    """The refusals of one server."""

    def __init__(self, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._refusals: list[Refusal] = []
        handle, send = Client.handle, Client._send
        answering: list[Refusal] = []

        def handled(client: Client, frame: bytes) -> None:
            if client._service is not server.service:
                handle(client, frame)
                return
            reader = Reader(frame)
            xid, opcode = reader.integer(), reader.integer()
            refusal = next((each for each in self._refusals if each.takes(client.session_id, opcode)), None)
            if refusal is None:
                handle(client, frame)
            elif refusal.code is None:
                client._connection.close()
            elif refusal.done:
                answering.append(refusal)
                handle(client, frame)
            else:
                send(client, Opcode(opcode), xid, 0, refusal.code)  # type: ignore[arg-type]

        def sent(client: Client, opcode: Opcode, xid: int, zxid: int, code: int = 0, body: bytes = b"") -> None:
            if answering:
                send(client, opcode, xid, zxid, answering.pop().code)  # type: ignore[arg-type]
            else:
                send(client, opcode, xid, zxid, code, body)  # type: ignore[arg-type]

        monkeypatch.setattr(Client, "handle", handled)
        monkeypatch.setattr(Client, "_send", sent)

    def refuse(
        self,
        *opcodes: str,
        code: int | None = THROTTLED,
        times: float = 2,
        done: bool = False,
        session: int | None = None,
    ) -> Refusal:
        """Refuse the next requests of these kinds."""
        refusal = Refusal([Opcode.named(each) for each in opcodes], code, times, done=done, session=session)
        self._refusals.append(refusal)
        return refusal
