"""Settings of the workers under test: the test project's, with results and a ZooKeeper of the tests' choice."""

from __future__ import annotations

import json
import os
import sys

from kombu import Exchange, Queue

from tests.toolbox.celery.projects.pageless import *  # noqa: F403 - derived settings
from tests.toolbox.celery.projects.pageless import CELERY_TASK_DEFAULT_QUEUE
from tests.toolbox.timing import scaled

ZKLOCK = {
    "default": {
        "HOSTS": os.environ["ZOOKEEPER_HOSTS"],
        "ROOT": os.environ["WORKSHOP_ROOT"],
        "SESSION_TIMEOUT": float(os.environ["WORKSHOP_SESSION_TIMEOUT"]),
        "CONNECT_TIMEOUT": float(os.environ.get("WORKSHOP_CONNECT_TIMEOUT", "5")),
    },
}
ZKLOCK["elsewhere"] = ZKLOCK["default"] | {"ROOT": f"{os.environ['WORKSHOP_ROOT']}/elsewhere"}
CELERY_RESULT_BACKEND = os.environ["WORKSHOP_BOARD"]
CELERY_TASK_IGNORE_RESULT = False
# As the documents say; otherwise a result that the garbage collector finalizes can stop such a worker for good.
CELERY_RESULT_BACKEND_THREAD_SAFE = not {"gevent", "eventlet"}.isdisjoint(sys.argv)
# Enough for a test's tasks: early versions of Celery fetch more only once a second while threads run.
CELERY_WORKER_PREFETCH_MULTIPLIER = int(os.environ.get("WORKSHOP_PREFETCH", "10"))
CELERY_ZKLOCK_GATE = os.environ["WORKSHOP_GATE"] == "1"
if "WORKSHOP_MAX_WAIT" in os.environ:
    CELERY_ZKLOCK_GATE_MAX_WAIT = float(os.environ["WORKSHOP_MAX_WAIT"])
# After four seconds Celery would kill a child that is about to start.
CELERY_WORKER_PROC_ALIVE_TIMEOUT = scaled(60)
CELERY_WORKER_LOST_WAIT = float(os.environ.get("WORKSHOP_LOST_WAIT", "10"))
if "WORKSHOP_QUORUM" in os.environ:
    # RabbitMQ delays messages of topic exchanges alone. The queue of this worker is not the default one, which nothing
    # declares; Celery 5.5 binds no queue that comes after it.
    CELERY_TASK_QUEUES = [
        Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments={"x-queue-type": "quorum"})
        for name in (CELERY_TASK_DEFAULT_QUEUE, f"{CELERY_TASK_DEFAULT_QUEUE}-default")
    ]
    CELERY_TASK_DEFAULT_QUEUE = CELERY_TASK_QUEUES[1].name
# Settings of one test, by their names.
globals().update(json.loads(os.environ.get("WORKSHOP_SETTINGS", "{}")))
