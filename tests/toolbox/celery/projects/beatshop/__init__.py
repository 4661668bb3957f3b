"""The Celery app of the beats under test; its scheduled tasks are sent and never run."""

from __future__ import annotations

from celery import Celery

app = Celery("beatshop")
app.config_from_object("django.conf:settings", namespace="CELERY")

__all__ = ["app"]
