"""Celery under chaos: workers of two brokers, tasks of every policy and kind, and a model of how each may end."""
