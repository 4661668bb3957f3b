"""The Django app: registers the system checks and the receivers of Django's and Celery's signals."""

from __future__ import annotations

import sys

from django.apps import AppConfig
from django.core.signals import request_finished, request_started
from django.utils.translation import gettext_lazy as _


class ZkLockConfig(AppConfig):
    """Locks in ZooKeeper."""

    name = "django_zklock"
    verbose_name = _("ZooKeeper locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_zklock import checks, conf, unreleased

        checks.register()
        conf.name_command()
        request_started.connect(unreleased.begin, dispatch_uid="django_zklock.unreleased")
        request_finished.connect(unreleased.end, dispatch_uid="django_zklock.unreleased")
        # A worker imports Celery before it sets up Django; other processes do not need the receivers.
        if "celery" in sys.modules:
            from django_zklock.contrib import celery

            celery.install()
