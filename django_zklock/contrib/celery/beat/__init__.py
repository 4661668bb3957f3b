"""``celery beat`` on several hosts: one leads and sends.

``celery beat -S django_zklock.contrib.celery.beat:LeaderScheduler``
"""

from __future__ import annotations

from django_zklock.contrib.celery.beat.scheduler import LeaderScheduler

__all__ = ["LeaderScheduler"]
