"""The test project's settings without pages: a worker runs the checks of Django, which import all of the admin."""

from __future__ import annotations

from config.settings import *  # noqa: F403 - derived settings

INSTALLED_APPS = ["django_zklock"]
MIDDLEWARE = []
ROOT_URLCONF = ""
TEMPLATES = []
