"""Django's configuration of the app."""

from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """The billing app."""

    name = "billing"
