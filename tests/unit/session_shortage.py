"""A process that has no descriptor, thread or memory for a session."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest
from kazoo.handlers import utils

ERRORS = [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread"), MemoryError()]


class Shortage:
    """Something that a session needs, and that is not there until the test says so."""

    def __init__(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = error
        self.attempts = 0
        self.over = False
        # What an attempt has opened.
        self.sockets: list[socket.socket] = []
        make_pair, start = utils.create_socket_pair, threading.Thread.start

        def create_socket_pair(module: Any) -> Any:
            if not isinstance(error, RuntimeError):
                self._check()
            self.sockets += (pair := make_pair(module))
            return pair

        def start_thread(thread: threading.Thread) -> None:
            if isinstance(error, RuntimeError) and ("zk_loop" in thread.name or "zklock" in thread.name):
                self._check()
            start(thread)

        monkeypatch.setattr(utils, "create_socket_pair", create_socket_pair)
        monkeypatch.setattr(threading.Thread, "start", start_thread)

    def _check(self) -> None:
        if not self.over:
            self.attempts += 1
            raise self.error
