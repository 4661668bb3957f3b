"""A storm of faults over real workers, and a model of the possible ends of each task.

``python -m tests.integration.celery.storm`` draws tasks and faults from a seed, runs them on workers of two brokers,
and judges the journal of the workers.
"""
