"""A PostgreSQL server on the loopback interface, with data of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import psycopg

from tests.toolbox.databases.database import USER, DatabaseServer
from tests.toolbox.network.port import LOOPBACK

# Debian has the programs of each version in a folder of its own.
DEBIAN = Path("/usr/lib/postgresql")


class PostgreSQL(DatabaseServer):
    """One server, whose superuser needs no password."""

    name: ClassVar[str] = "PostgreSQL"
    package: ClassVar[str] = "postgresql"

    def __init__(self) -> None:
        """Make the data; nothing runs yet."""
        super().__init__()
        self._folders = sorted(DEBIAN.glob("*/bin"), reverse=True)
        initdb = self.find("initdb", *self._folders)
        self.set_up(
            *(initdb, "--pgdata", str(self.data), "--username", USER, "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale", "--no-sync"),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The value for ``DATABASES``."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": USER,
            "HOST": LOOPBACK,
            "PORT": self.port,
        }

    def arguments(self) -> list[str]:
        """Run the server in the foreground."""
        options = {"listen_addresses": LOOPBACK, "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return self.as_user(self.find("postgres", *self._folders), "-D", str(self.data), *words)

    def is_ready(self) -> bool:
        """Tell whether a client can connect."""
        try:
            psycopg.connect(host=LOOPBACK, port=self.port, user=USER, dbname="postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
