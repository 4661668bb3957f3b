"""More names than a message of Java's clients may have: ``jute.maxbuffer``, a megabyte by default."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from pytest_django.fixtures import Settings

from django_zklock.zk.ops import actions
from tests.toolbox.django.command import run
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.server import Installation, ZooKeeper

pytest_plugins = ["tests.toolbox.django.command_fixtures"]
pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

MAX_BUFFER = 0xFFFFF
# Their names take more bytes than that.
QUEUES = 12_000
NAME = "a-key-that-is-as-long-as-some-are:account-of-a-customer:year-2026:the-month-of-may:{:08}"
BATCH = 500
ROOT = "/django_zklock"


@pytest.fixture
def server() -> Iterator[ZooKeeper]:
    """Return a server with so many empty queues."""
    assert QUEUES * len(NAME.format(0)) > MAX_BUFFER
    with ZooKeeper() as server:
        client = KazooClient(hosts=server.hosts, timeout=60)
        client.start(timeout=scaled(20))
        client.ensure_path(ROOT)
        results = []
        for start in range(0, QUEUES, BATCH):
            transaction = client.transaction()
            for number in range(start, start + BATCH):
                transaction.create(f"{ROOT}/{NAME.format(number)}")
            results.append(transaction.commit_async())
        for result in results:
            assert all(isinstance(outcome, str) for outcome in result.get(timeout=scaled(60)))
        client.stop()
        client.close()
        yield server


def shell(server: ZooKeeper, command: str, flags: str = "") -> str:
    """Return what ``zkCli.sh`` writes for a command."""
    done = subprocess.run(
        [str(Installation.find().shell()), "-server", server.hosts, *command.split()],
        env={**os.environ, "CLIENT_JVMFLAGS": flags},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.program
@pytest.mark.shows("troubleshooting#commands-the-admin-tests")
def test_names__longer_than_a_message_of_java(server: ZooKeeper, settings: Settings) -> None:
    """ZooKeeper's own command line needs a larger ``jute.maxbuffer`` to list them; ours lists and removes them."""
    assert f"ConnectionLoss for {ROOT}" in shell(server, f"ls {ROOT}")
    assert NAME.format(7) in shell(server, f"ls {ROOT}", f"-Djute.maxbuffer={8 * MAX_BUFFER}")
    settings.ZKLOCK = {"default": {"HOSTS": server.hosts}}
    assert run("list") == f"No locks are in use under {ROOT} at {server.hosts}.\n"
    assert actions.BATCH_SIZE < QUEUES
    assert run("prune").endswith(f"\nRemoved {QUEUES} empty queues under {ROOT}.\n")
    assert NAME.format(7) not in shell(server, f"ls {ROOT}")
