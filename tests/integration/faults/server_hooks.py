"""A test's hand in the middle of a conversation: something happens right before the server takes up a request."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.testing.server.client import Client
from django_zklock.testing.server.connection import ClientConnection
from django_zklock.testing.server.jute import Reader


class Moment:
    """The moment before the request number ``place``, pings aside, of a session, counted from now."""

    def __init__(self, session: int, place: int, action: Callable[[], object]) -> None:
        self.happened = threading.Event()
        self._session = session
        self._place = place
        self._action = action
        self._count = 0

    def come(self, session: int, opcode: int) -> None:
        if session == self._session and opcode != Opcode.PING:
            self._count += 1
            if self._count == self._place:
                self._action()
                self.happened.set()


class Moments:
    """The moments of one server. Actions run in its own thread: they must not ask it to call them."""

    def __init__(self, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._moments: list[Moment] = []
        handle = Client.handle

        def watched(client: Client, frame: bytes) -> None:
            if client._service is server.service:
                reader = Reader(frame)
                _xid, opcode = reader.integer(), reader.integer()
                for moment in self._moments:
                    moment.come(client.session_id, opcode)
                # The session may have ended, or the connection.
                if isinstance(client._connection, ClientConnection) and client._connection.closing:
                    return
            handle(client, frame)

        monkeypatch.setattr(Client, "handle", watched)

    def before(self, session: int, place: int, action: Callable[[], object]) -> Moment:
        moment = Moment(session, place, action)
        self._moments.append(moment)
        return moment
