"""Leave out what imports Celery where it is not installed."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("celery") is None:
    collect_ignore_glob = ["*"]
