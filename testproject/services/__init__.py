"""Real processes for the demo and the tests: ZooKeeper, Redis, Celery workers; no Django in here."""
