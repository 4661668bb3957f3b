"""An app of the site under test: on a slow machine its pages wait longer for ZooKeeper."""

from __future__ import annotations

from django.apps import AppConfig

from tests.toolbox.package_limits import LIMITS, scale_limits


class SlowSite(AppConfig):
    """Scale the limit of a page's first read; it is not in the settings."""

    name = "tests.browser"
    label = "slow_site"

    def ready(self) -> None:
        scale_limits({name: LIMITS[name] for name in ("django_zklock.admin.reader",)})
