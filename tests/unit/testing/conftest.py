"""Mark the tests that no version of a library can change."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# These talk to the server by kazoo, or through a project.
OF_LIBRARIES = {
    "test_faults",
    "test_network",
    "test_network_cut_replies",
    "test_plugin",
    "test_redirect_settings",
    "test_replica",
    "test_requestlog",
    "test_sandbox",
    "test_server",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.stem not in OF_LIBRARIES:
            item.add_marker(pytest.mark.once)
