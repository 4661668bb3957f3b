"""Real processes for the demo and the tests: ZooKeeper, Redis, Celery workers. Nothing here imports Django."""
