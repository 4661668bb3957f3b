"""Settings of the workers in a season."""

from __future__ import annotations

import json
import os
import sys

from config.settings import *  # noqa: F403 - derived settings

from tests.toolbox.timing import scaled

from .plan import make_queue

ZKLOCK = {
    "default": {
        "HOSTS": os.environ["ZOOKEEPER_HOSTS"],
        "ROOT": os.environ["CHAOS_ROOT"],
        "SESSION_TIMEOUT": float(os.environ["CHAOS_SESSION_TIMEOUT"]),
        "CONNECT_TIMEOUT": float(os.environ["CHAOS_CONNECT_TIMEOUT"]),
    },
}
CELERY_RESULT_BACKEND = os.environ["CHAOS_RECORDS"]
CELERY_TASK_IGNORE_RESULT = False
# As the documents say; otherwise a result that the garbage collector finalizes can stop such a worker for good.
CELERY_RESULT_BACKEND_THREAD_SAFE = not {"gevent", "eventlet"}.isdisjoint(sys.argv)
CELERY_BROKER_TRANSPORT_OPTIONS = json.loads(os.environ["CHAOS_TRANSPORT"])
# Where RabbitMQ closes a connection just after a worker has begun, Celery notices only by its heartbeats.
CELERY_BROKER_HEARTBEAT = 15
CELERY_WORKER_PREFETCH_MULTIPLIER = 4
CELERY_WORKER_LOST_WAIT = 0.5
# For an overloaded machine.
CELERY_WORKER_PROC_ALIVE_TIMEOUT = scaled(60)
CELERY_ZKLOCK_GATE = os.environ["CHAOS_GATE"] == "1"
CELERY_ZKLOCK_GATE_MAX_WAIT = float(os.environ["CHAOS_MAX_WAIT"])
CELERY_TASK_QUEUES = [
    make_queue(name, os.environ["CHAOS_EXCHANGE"], json.loads(os.environ["CHAOS_QUEUE_ARGUMENTS"]))
    for name in os.environ["CHAOS_QUEUES"].split(",")
]
