"""How soon a page says that ZooKeeper does not answer."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from django.test import Client

from django_zklock.admin import reader
from django_zklock.admin.reader import AliasReader
from django_zklock.connections import connections
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import snapshots
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import GRACE
from tests.unit.admin.pages import LIST, text_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.oldest

# Longer than any grace: a page that waits for it fails the test.
CONNECT_TIMEOUT = reader.PROMPT + 2 * GRACE


@pytest.mark.django_db
def test_list__outage_is_said_at_once(viewer: Client, settings: Settings) -> None:
    """If the servers refuse the connection, the page does not wait for ``CONNECT_TIMEOUT``."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": CONNECT_TIMEOUT}}
    began = time.monotonic()
    text = text_of(viewer.get(LIST))
    assert time.monotonic() - began < reader.PROMPT + GRACE
    assert re.search(r"Locks of “default” cannot be shown\. .*`manage\.py zklock doctor` examines it ", text)


def test_read__connection_is_lost(settings: Settings) -> None:
    """Nor does a page of a process that was connected before."""
    with ZooKeeperServer() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "CONNECT_TIMEOUT": CONNECT_TIMEOUT}}
        assert AliasReader("default").read(snapshots.list_names) == []
        server.stop()
        began = time.monotonic()
        late = AliasReader("default")
        assert late.read(snapshots.list_names) is None
        assert time.monotonic() - began < reader.PROMPT + GRACE
        assert late.error


def test_wait_for_first_answer(settings: Settings) -> None:
    """It returns as soon as there is a connection, or a server has refused."""
    with ZooKeeperServer() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts}, "gone": {"HOSTS": f"127.0.0.1:{free_port()}"}}
        assert connections.wait_for_first_answer(connections["default"], 2 * GRACE)
        assert not connections.wait_for_first_answer(connections["gone"], 2 * GRACE)
        connections.close_all()
