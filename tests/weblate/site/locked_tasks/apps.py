"""The locks: of a task that is sent after each change, of a periodic one, and of one that Weblate tries again."""

from __future__ import annotations

import importlib
from typing import Any

from django.apps import AppConfig

from django_zklock import zk_locked

LOCKS: dict[str, Any] = {
    "weblate.trans.tasks:cleanup_component": zk_locked("cleanup:{pk}", on_conflict="coalesce"),
    "weblate.trans.tasks:update_remotes": zk_locked("update-remotes", on_conflict="skip"),
    "weblate.trans.tasks:perform_commit": zk_locked("commit:{pk}"),
}


class LockedTasks(AppConfig):
    """Locks the tasks when all apps are there."""

    name = "locked_tasks"

    def ready(self) -> None:
        for place, lock in LOCKS.items():
            module, _, name = place.partition(":")
            task = getattr(importlib.import_module(module), name)
            setattr(importlib.import_module(module), name, lock(task))
