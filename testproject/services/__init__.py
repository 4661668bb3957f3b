"""Real processes for the demo and the tests: ZooKeeper, Redis, RabbitMQ, Celery workers; no Django in here."""
