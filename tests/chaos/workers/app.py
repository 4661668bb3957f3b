"""The Celery app of the workers in a season."""

from __future__ import annotations

from celery import Celery

app = Celery("chaos", include=["tests.chaos.workers.tasks", "tests.chaos.workers.witness"])
app.config_from_object("django.conf:settings", namespace="CELERY")
