"""`zklock prune`, on a real ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from services.port import free_port

from django_zklock.management.actions import pruning
from tests.command import Hold, failure, run

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.operating"]

pytestmark = pytest.mark.zookeeper


def test_prune__tells_what_is_gone(hold: Hold, zklock: str, outsider: KazooClient) -> None:
    """Idle lines go, those in use stay, and --dry-run only tells."""
    hold("held")
    for key in ("idle", "\u202eold"):
        outsider.create(f"{zklock}/{key}")
    told = f"idle\n\\u202eold\nWould remove 2 idle lines under {zklock}.\n"
    assert run("prune", "--dry-run") == told
    assert sorted(outsider.get_children(zklock)) == ["held", "idle", "\u202eold"]
    assert run("prune") == told.replace("Would remove", "Removed")
    assert outsider.get_children(zklock) == ["held"]
    assert run("prune") == f"Removed 0 idle lines under {zklock}.\n"


def test_prune__in_portions(zklock: str, outsider: KazooClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, all go."""
    monkeypatch.setattr(pruning, "PORTION", 2)
    for number in range(5):
        outsider.create(f"{zklock}/k{number}", makepath=True)
    assert run("prune").endswith(f"k4\nRemoved 5 idle lines under {zklock}.\n")
    outsider.create(f"{zklock}/k")
    assert run("prune").endswith(f"Removed 1 idle line under {zklock}.\n")


def test_prune__unreachable(settings: Settings) -> None:
    """A ZooKeeper that is not there is one line, and status 2."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    assert failure("prune").returncode == 2
