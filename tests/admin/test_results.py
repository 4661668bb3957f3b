"""Links from a lock's page to the results of tasks that django-celery-results keeps."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client, override_settings
from django.urls import path

from django_zklock.admin import results
from django_zklock.zk.identity import Work
from tests.admin.conftest import body_of
from tests.admin.test_lock_page import url_of
from tests.command import Hold

pytest_plugins = ["tests.operating"]

TASK = "5b7e3c52"

# For the test in which the project has no page for results.
urlpatterns = [path("admin/", admin.AdminSite().urls)]


@pytest.mark.celery
@pytest.mark.django_db
@pytest.mark.zookeeper
def test_lock__links_to_the_result(admin_client: Client, hold: Hold) -> None:
    """A task leads to its result; what is no task, or has none, does not."""
    result = apps.get_model(results.APP, "TaskResult").objects.create(task_id=TASK, task_name="bill")
    page = f"/admin/django_celery_results/taskresult/{result.pk}/change/"
    for key, kind, task in (("first", "task", TASK), ("second", "task", "other"), ("third", "command", TASK)):
        hold(key, Work(kind=kind, name="bill", id=task))
    pages = {key: body_of(admin_client.get(url_of(key))) for key in ("first", "second", "third")}
    assert [key for key, body in pages.items() if f'href="{page}"' in body] == ["first"]
    assert TASK in body_of(admin_client.get(page))


@pytest.mark.celery
@pytest.mark.django_db
def test_urls__not_in_the_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app may be there without its admin."""
    model = apps.get_model(results.APP, "TaskResult")
    model.objects.create(task_id=TASK)
    assert results.urls([TASK])
    # The addresses of the project were made with it.
    with override_settings(ROOT_URLCONF=__name__):
        assert results.urls([TASK]) == {}


def test_urls__not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the app there is nobody to ask."""
    monkeypatch.setattr(apps, "is_installed", lambda _name: False)
    assert results.urls([TASK]) == {}
