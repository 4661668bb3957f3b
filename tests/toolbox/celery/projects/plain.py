"""Settings of a project without Celery, pages or a database: a command that many tests start is ready soon."""

from __future__ import annotations

import os

SECRET_KEY = "for the tests, no secret"
INSTALLED_APPS = ["django_zklock"]
ZKLOCK = {
    "default": {
        "HOSTS": os.environ["ZOOKEEPER_HOSTS"],
        "SESSION_TIMEOUT": float(os.environ.get("TESTPROJECT_SESSION_TIMEOUT", "10")),
    },
}
