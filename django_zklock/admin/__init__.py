"""Live locks in Django's admin."""

from __future__ import annotations

from django_zklock.admin.lock_admin import LockAdmin

__all__ = ["LockAdmin"]
