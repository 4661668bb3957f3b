"""The pages of locks in a project with a theme for its admin, which replaces Django's templates."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.oldest

# A theme is an app, and must be there when Django starts.
PROJECT = """
import json, sys, warnings
import django
from django.conf import settings
from django_zklock.testing import ZooKeeperServer

server = ZooKeeperServer()
server.start()
contrib = ["admin", "auth", "contenttypes", "sessions", "messages", "staticfiles"]
processors = ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages"]
settings.configure(
    INSTALLED_APPS=[*sys.argv[1:], *(f"django.contrib.{app}" for app in contrib), "django_zklock"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": processors}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    ROOT_URLCONF="__main__", SECRET_KEY="themes", STATIC_URL="/static/", ALLOWED_HOSTS=["testserver"], USE_TZ=True,
    ZKLOCK={"default": {"HOSTS": server.hosts}},
)
django.setup()
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.urls import include, path, reverse
from django_zklock import zk_lock
from django_zklock.zk import paths

urlpatterns = [path("admin/", admin.site.urls)]
if "grappelli" in sys.argv:
    urlpatterns.append(path("grappelli/", include("grappelli.urls")))
call_command("migrate", verbosity=0)
client = Client()
client.force_login(get_user_model().objects.create_superuser("operator"))
held = zk_lock("invoice:42").acquire(timeout=120)
lock = quote("default/" + paths.escape("invoice:42"))
pages = {name: reverse(f"admin:django_zklock_lock_{name}", args=arguments) for name, arguments in [
    ("changelist", ()), ("ensembles", ()),
    ("change", (lock,)), ("history", (lock,)), ("break", (lock,)), ("revoke", (lock,)),
]}
node = {"node": held.node.rpartition("/")[2]}
answers = {name: client.get(url, node if name in {"break", "revoke"} else {}) for name, url in pages.items()}
print(json.dumps({name: [each.status_code, "invoice:42" in each.content.decode()] for name, each in answers.items()}))
"""


@pytest.mark.program
@pytest.mark.parametrize(
    "theme", [[], ["unfold"], ["jazzmin"], ["grappelli"]], ids=["plain", "unfold", "jazzmin", "grappelli"]
)
def test_pages__with_a_theme(theme: list[str]) -> None:
    """Every page is there: a theme finds in the context what Django's own pages have in it."""
    run = subprocess.run(
        [sys.executable, "-c", PROJECT, *theme], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    pages = json.loads(run.stdout)
    assert pages.pop("ensembles") == [200, False]
    assert set(pages) == {"changelist", "change", "history", "break", "revoke"}
    assert [name for name, found in pages.items() if found != [200, True]] == []
