"""The Celery app of the workers under test; its tasks say what they ran under."""

from __future__ import annotations

from .app import app

__all__ = ["app"]
