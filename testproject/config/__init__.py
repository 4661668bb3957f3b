"""The test project's settings, URLs and Celery app."""

from __future__ import annotations

import importlib.util

# Shared tasks need the app as soon as Django starts, but the project works without Celery too.
if importlib.util.find_spec("celery") is not None:
    from .celery import app as celery_app

    __all__ = ["celery_app"]
