"""A part for :mod:`tests.contract.programs.scripted_child`: a holder that checks, and writes when it is told to,
however late that is."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.contract.programs.scripted_child import PARTS, receive, send


class Account:
    """A balance in a database that takes no orders from a holder before one that has given some."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Make an account to which no holder has ever written."""
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("CREATE TABLE account (balance TEXT, fence INTEGER)")
            connection.execute("INSERT INTO account VALUES ('nothing', 0)")

    def set(self, balance: str, token: int) -> bool:
        """Write, unless a later holder has; whether it was written."""
        update = "UPDATE account SET balance = ?, fence = ? WHERE fence <= ?"
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            return connection.execute(update, (balance, token, token)).rowcount == 1

    @property
    def balance(self) -> str:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            (balance,) = connection.execute("SELECT balance FROM account").fetchone()
            return str(balance)


def write(pool: Pool, path: str) -> None:
    """Write with a hold that was good a moment ago, or so it seems."""
    held = Lock("k", pool).acquire(timeout=20)
    held.check()
    send("checked", held.token)
    receive()
    send("written" if Account(Path(path)).set("the latecomer's", held.token) else "refused", held.lost)


PARTS[write.__name__] = write  # type: ignore[assignment]  # the names of the arguments differ
