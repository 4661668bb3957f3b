"""The Celery app of the workers under test; its tasks return the locks that they held."""

from __future__ import annotations

from tests.toolbox.celery.projects.workshop.app import app

__all__ = ["app"]
