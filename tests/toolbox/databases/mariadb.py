"""A MariaDB server on the loopback interface, with data of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import pymysql

from tests.toolbox.databases.database import DatabaseServer
from tests.toolbox.network.port import LOOPBACK

# Django uses mysqlclient by its name, MySQLdb; that has to be compiled.
pymysql.install_as_MySQLdb()

DATABASE = "zklock"


class MariaDB(DatabaseServer):
    """One server that lets everybody in."""

    name: ClassVar[str] = "MariaDB"
    package: ClassVar[str] = "mariadb-server"

    def __init__(self) -> None:
        """Make the data; nothing runs yet."""
        super().__init__()
        self._program = self.find("mariadbd")
        self.set_up(
            self.find("mariadb-install-db"),
            *("--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", "--skip-name-resolve"),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The value for ``DATABASES``."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": DATABASE,
            "USER": "root",
            "HOST": LOOPBACK,
            "PORT": self.port,
        }

    def arguments(self) -> list[str]:
        """Run the server in the foreground."""
        return self.as_user(
            *(self._program, "--no-defaults", f"--datadir={self.data}", f"--socket={self.folder}/socket"),
            *(f"--bind-address={LOOPBACK}", f"--port={self.port}", "--skip-grant-tables"),
            *("--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", "--character-set-server=utf8mb4"),
        )

    def is_ready(self) -> bool:
        """Tell whether a client can connect; the first one finds an empty database."""
        try:
            with pymysql.connect(host=LOOPBACK, port=self.port, user="root", connect_timeout=5) as connection:
                connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        except pymysql.err.OperationalError:
            return False
        return True
