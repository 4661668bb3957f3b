"""The doctor asks a worker that has no gate; `test_operator` has one with a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery.app import app_or_default

from django_zklock.doctor import celery as celery_findings
from tests.toolbox.django.findings import by_id

if TYPE_CHECKING:
    from tests.toolbox.celery.workshop import OpenWorkshop


@pytest.mark.zookeeper
def test_workers__without_the_gate(open_workshop: OpenWorkshop) -> None:
    """A worker of a project without this app has no gate."""
    bare = {"DJANGO_SETTINGS_MODULE": "workshop.bare"}
    before = app_or_default()
    with open_workshop(concurrency=1, pool="threads", environment=bare) as workshop:
        assert workshop.worker is not None
        workshop.sender.set_current()
        try:
            found = by_id(celery_findings.examine("default", 15.0))
        finally:
            before.set_current()
        (worker,) = [each for each in found["celery.workers"] if each.subject == workshop.worker.node_name]
    assert worker.level == "warning"
    assert "has no gate" in worker.found
