"""Settings of a project that uses the package without having it in INSTALLED_APPS."""

from __future__ import annotations

from tests.toolbox.celery.projects.workshop.settings import *  # noqa: F403 - all but the apps

from . import settings

INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "django_zklock"]
