"""The Celery app of the beats under test; its scheduled tasks are sent and never run."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta

from celery import Celery

AHEAD = float(os.environ.get("BEATSHOP_AHEAD", "0"))
_true_time = time.time
if AHEAD:
    time.time = lambda: _true_time() + AHEAD


class Shop(Celery):
    """An app on a host whose clock is not right."""

    def now(self) -> datetime:
        """Return what the clock shows."""
        return super().now() + timedelta(seconds=AHEAD)


app = Shop("beatshop")
app.config_from_object("django.conf:settings", namespace="CELERY")

__all__ = ["app"]
