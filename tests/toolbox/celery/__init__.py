"""Celery workers, and the projects that they serve."""
