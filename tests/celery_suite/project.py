"""The smallest Django project, with the package or without it."""

from __future__ import annotations

import os

import django
from django.conf import settings


def set_up(*, with_package: bool) -> None:
    """Set up Django. Without a server in ``CELERY_SUITE_ZOOKEEPER`` no lock can be taken.

    Celery imports the commands of each installed package, so the package is imported where it is in no project too.
    """
    if not settings.configured:
        hosts = os.environ.get("CELERY_SUITE_ZOOKEEPER") or "127.0.0.1:1"
        settings.configure(
            SECRET_KEY="not secret",
            INSTALLED_APPS=["django_zklock"] if with_package else [],
            DATABASES={},
            USE_TZ=True,
            ZKLOCK={"default": {"HOSTS": hosts, "ROOT": "/celery-suite"}},
        )
    django.setup()
