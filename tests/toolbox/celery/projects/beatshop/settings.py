"""Settings of the beats under test: the test project's, with a schedule and a ZooKeeper of the tests' choice."""

from __future__ import annotations

import json
import os

from tests.toolbox.celery.projects.pageless import *  # noqa: F403 - derived settings

ZKLOCK = {
    "default": {
        "HOSTS": os.environ["ZOOKEEPER_HOSTS"],
        "ROOT": os.environ["BEATSHOP_ROOT"],
        "SESSION_TIMEOUT": float(os.environ["BEATSHOP_SESSION_TIMEOUT"]),
        "CONNECT_TIMEOUT": 1,
    },
}
CELERY_BEAT_SCHEDULE = {
    name: {"task": f"beatshop.{name}", "schedule": seconds}
    for name, seconds in json.loads(os.environ["BEATSHOP_SCHEDULE"]).items()
}
# The scheduler adds no entries of its own.
CELERY_RESULT_BACKEND = None
CELERY_BEAT_SCHEDULER = "django_zklock.contrib.celery.beat:LeaderScheduler"
if "BEATSHOP_SCHEDULER" in os.environ:
    CELERY_ZKLOCK_BEAT_SCHEDULER = os.environ["BEATSHOP_SCHEDULER"]
# Of RedBeat, where that is the scheduler.
CELERY_REDBEAT_REDIS_URL = os.environ["CELERY_BROKER_URL"]
CELERY_REDBEAT_KEY_PREFIX = f"{os.environ['BEATSHOP_ROOT']}:"
