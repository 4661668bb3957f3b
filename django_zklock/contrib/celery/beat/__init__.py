"""``celery beat`` on several hosts, of which one sends.

``celery beat -S django_zklock.contrib.celery.beat:LeaderScheduler``
"""

from __future__ import annotations

from django_zklock.contrib.celery.beat.scheduler import LeaderScheduler

__all__ = ["LeaderScheduler"]
