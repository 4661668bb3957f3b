"""`zklock prune`, on a real ZooKeeper."""

from __future__ import annotations

from kazoo.client import KazooClient

from tests.toolbox.django.command import Hold, run

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def test_prune__removes_empty_queues(hold: Hold, zklock: str, kazoo_client: KazooClient) -> None:
    """Empty queues are removed, others stay, and --dry-run only shows them."""
    hold("held")
    for key in ("idle", "\u202eold"):
        kazoo_client.create(f"{zklock}/{key}")
    shown = f"idle\n\\u202eold\nWould remove 2 empty queues under {zklock}.\n"
    assert run("prune", "--dry-run") == shown
    assert sorted(kazoo_client.get_children(zklock)) == ["held", "idle", "\u202eold"]
    assert run("prune") == shown.replace("Would remove", "Removed")
    assert kazoo_client.get_children(zklock) == ["held"]
    assert run("prune") == f"Removed 0 empty queues under {zklock}.\n"
    kazoo_client.create(f"{zklock}/idle")
    assert run("prune") == f"idle\nRemoved 1 empty queue under {zklock}.\n"
