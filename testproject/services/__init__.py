"""Processes that the demo starts, and tests: ZooKeeper, a Celery worker, Django's server; no Django in here."""
