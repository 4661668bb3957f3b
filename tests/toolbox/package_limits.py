"""What the package gives ZooKeeper, a broker or a worker for an answer, whatever its settings are, scaled.

A process that gets no time to run misses these few seconds, and reports an unknown holder, a page without locks or a
worker that does not answer. They belong to what a test states only where the test says so.
"""

from __future__ import annotations

from importlib import import_module

from tests.toolbox.timing import scaled

# Seconds on a quiet machine, with seven other processes that run tests.
LIMITS = {
    "django_zklock.admin.reader": {"PROMPT": 1.0},
    "django_zklock.doctor.configuration": {"ACL_TIMEOUT": 5.0},
    "django_zklock.doctor.roundtrip": {"CLEANUP_TIMEOUT": 5.0},
    "django_zklock.zk.acquire": {"HOLDER_READ_GRACE": 1.0},
    "django_zklock.zk.held": {"REASON_TIMEOUT": 2.0},
}
LIMITS_WITH_CELERY = {
    "django_zklock.contrib.celery.internals.sending": {"CONFIRM_TIMEOUT": 5.0},
    "django_zklock.doctor.celery": {"ANSWER_TIMEOUT": 2.0, "BROKER_TIMEOUT": 10.0},
}
# Of these a worker makes use.
LIMITS_OF_WORKERS = {
    name: {**LIMITS, **LIMITS_WITH_CELERY}[name]
    for name in ("django_zklock.contrib.celery.internals.sending", "django_zklock.zk.acquire", "django_zklock.zk.held")
}


def scale_limits(limits: dict[str, dict[str, float]]) -> None:
    """Set these limits in this process."""
    for module, values in limits.items():
        for name, seconds in values.items():
            assert hasattr(import_module(module), name), name
            setattr(import_module(module), name, scaled(seconds))
