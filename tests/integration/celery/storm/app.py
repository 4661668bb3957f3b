"""The Celery app of the workers in the storm."""

from __future__ import annotations

from celery import Celery

app = Celery("storm", include=["tests.integration.celery.storm.tasks", "tests.integration.celery.storm.witness"])
app.config_from_object("django.conf:settings", namespace="CELERY")
