"""Settings of the workers under test: the test project's, with results and a ZooKeeper of the tests' choice."""

from __future__ import annotations

import os
from typing import Any

from config.settings import *  # noqa: F403 - derived settings

ZKLOCK: dict[str, dict[str, Any]] = {
    "default": {
        "HOSTS": os.environ["ZOOKEEPER_HOSTS"],
        "ROOT": os.environ["WORKSHOP_ROOT"],
        "SESSION_TIMEOUT": float(os.environ["WORKSHOP_SESSION_TIMEOUT"]),
    },
}
CELERY_RESULT_BACKEND = os.environ["CELERY_BROKER_URL"]
CELERY_TASK_IGNORE_RESULT = False
