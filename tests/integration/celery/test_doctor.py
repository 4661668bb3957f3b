"""The doctor asks workers that run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery.app import app_or_default

from django_zklock.doctor import celery as celery_findings
from tests.toolbox.django.findings import by_id

if TYPE_CHECKING:
    from tests.toolbox.celery.workshop import OpenWorkshop


@pytest.mark.zookeeper
def test_workers__real(open_workshop: OpenWorkshop) -> None:
    """Workers report gate and pool; a worker of a project without this app has no gate."""
    bare = {"DJANGO_SETTINGS_MODULE": "workshop.bare"}
    before = app_or_default()
    with (
        open_workshop(concurrency=1) as workshop,
        open_workshop(concurrency=1, pool="threads", environment=bare) as other,
    ):
        assert workshop.worker is not None
        assert other.worker is not None
        names = [workshop.worker.node_name, other.worker.node_name]
        workshop.sender.set_current()
        try:
            found = by_id(celery_findings.examine("default", 15.0))
        finally:
            before.set_current()
    assert found["celery.broker"][0].level == "ok"
    workers = {finding.subject: finding for finding in found["celery.workers"]}
    assert [workers[name].level for name in names] == ["ok", "warning"]
    assert "prefork" in workers[names[0]].found
    assert "has no gate" in workers[names[1]].found


@pytest.mark.zookeeper
def test_workers__on_a_folder(open_workshop: OpenWorkshop, tmp_path: Path) -> None:
    """A worker on a broker without an event loop is found too, while it works."""
    before = app_or_default()
    with open_workshop(concurrency=1, folder=tmp_path) as workshop:
        assert workshop.worker is not None
        name = workshop.worker.node_name
        workshop.send("idle", "busy")
        workshop.entered("busy")
        workshop.sender.set_current()
        try:
            found = by_id(celery_findings.examine("default", 15.0))
        finally:
            before.set_current()
            workshop.let_go("busy")
    assert found["celery.broker"][0].level == "ok"
    assert [finding.subject for finding in found["celery.workers"]] == [name]
