"""Links from a lock's page to the results of tasks in django-celery-results."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client, override_settings
from django.urls import path, reverse

from django_zklock.admin import detail
from django_zklock.zk.node_data import Work
from tests.toolbox.django.command import Hold
from tests.unit.admin.pages import body_of, url_of

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

TASK = "5b7e3c52"

# A project whose admin has no page for results.
urlpatterns = [path("admin/", admin.AdminSite().urls)]


@pytest.mark.celery
@pytest.mark.django_db
def test_lock__links_to_the_result(admin_client: Client, hold: Hold) -> None:
    """A task with a result links to it; other work, and a task without a result, has no link."""
    result = apps.get_model(detail.RESULTS_APP, "TaskResult").objects.create(task_id=TASK, task_name="bill")
    page = f"/admin/django_celery_results/taskresult/{result.pk}/change/"
    for key, kind, task in (("first", "task", TASK), ("second", "task", "other"), ("third", "command", TASK)):
        hold(key, Work(kind=kind, name="bill", id=task))
    pages = {key: body_of(admin_client.get(url_of(key))) for key in ("first", "second", "third")}
    assert [key for key, body in pages.items() if f'href="{page}"' in body] == ["first"]
    assert TASK in body_of(admin_client.get(page))


@pytest.mark.celery
@pytest.mark.django_db
def test_urls__not_in_the_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the app's admin there are no links."""
    model = apps.get_model(detail.RESULTS_APP, "TaskResult")
    model.objects.create(task_id=TASK)
    assert detail.celery_result_urls([TASK])
    # The URL configuration of the test project contains it.
    with override_settings(ROOT_URLCONF=__name__):
        assert detail.celery_result_urls([TASK]) == {}


@pytest.mark.celery
@pytest.mark.django_db
def test_lock__results_cannot_be_read(
    boss: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the table is missing, the page of a lock and the confirmation page have no links and no error."""
    # Django caches the columns of a query with the name of their table, so the first query needs the right one.
    assert detail.celery_result_urls([TASK]) == {}
    monkeypatch.setattr(apps.get_model(detail.RESULTS_APP, "TaskResult")._meta, "db_table", "missing")
    held = hold("account:17", Work(kind="task", name="bill", id=TASK))
    for page in ("change", "break"):
        url = reverse(f"admin:django_zklock_lock_{page}", args=(quote("default/account:17"),))
        response = boss.get(url, {"node": held.node.rpartition("/")[2]})
        assert response.status_code == 200
        assert TASK in body_of(response)
    assert "event=no_results error=OperationalError('no such table: missing')" in caplog.text


def test_urls__not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the app there are no links."""
    monkeypatch.setattr(apps, "is_installed", lambda _name: False)
    assert detail.celery_result_urls([TASK]) == {}
