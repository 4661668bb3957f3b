"""Where the results of tasks are to be seen, if django-celery-results keeps them in this database."""

from __future__ import annotations

from collections.abc import Collection

from django.apps import apps
from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse

APP = "django_celery_results"


def urls(tasks: Collection[str]) -> dict[str, str]:
    """Give the page in the admin for each of these task ids that has a result there."""
    if not tasks or not apps.is_installed(APP):
        return {}
    found = apps.get_model(APP, "TaskResult").objects.filter(task_id__in=tasks)
    try:
        return {
            task: reverse(f"admin:{APP}_taskresult_change", args=(quote(key),))
            for task, key in found.values_list("task_id", "pk")
        }
    except NoReverseMatch:
        # The project does not show them.
        return {}
