"""Real databases: SQLite, PostgreSQL and MariaDB, with the tables of the project's app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billing.models import Account, Deposit, Execution
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from pytest_django import DjangoDbBlocker

from tests.toolbox.databases.database import as_alias
from tests.toolbox.databases.mariadb import MariaDB
from tests.toolbox.databases.postgresql import PostgreSQL
from tests.toolbox.processes.folder import make_folder, remove_folder


def _made(alias: str, blocker: DjangoDbBlocker) -> str:
    # For that alone: the fixtures below outlive their tests, and others must not reach a database meanwhile.
    with blocker.unblock():
        # By the migrations, which know no model that another test of this process has defined.
        executor = MigrationExecutor(connections[alias])
        executor.migrate(executor.loader.graph.leaf_nodes("billing"))
    return alias


@pytest.fixture(scope="session")
def sqlite(django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Return the alias of a database in a file, with an empty table of accounts."""
    folder = make_folder("sqlite")
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db", "OPTIONS": {"timeout": 30}}
    with as_alias("sqlite", settings) as alias:
        yield _made(alias, django_db_blocker)
    remove_folder(folder)


@pytest.fixture(scope="session")
def postgresql(django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Return the alias of a database of a PostgreSQL server, with an empty table of accounts."""
    with PostgreSQL() as server, as_alias("postgresql", server.settings) as alias:
        yield _made(alias, django_db_blocker)


@pytest.fixture(scope="session")
def mariadb(django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Return the alias of a database of a MariaDB server, with an empty table of accounts."""
    with MariaDB() as server, as_alias("mariadb", server.settings) as alias:
        yield _made(alias, django_db_blocker)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Return the alias of each database, one after the other; its table is empty."""
    alias: str = request.getfixturevalue(request.param)
    with django_db_blocker.unblock():
        yield alias
        connections[alias].close()
        # Not by delete(), which looks for rows of all models that refer to these.
        for model in (Deposit, Execution, Account):
            model._default_manager.all()._raw_delete(alias)
