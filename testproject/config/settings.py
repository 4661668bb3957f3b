"""Settings of the test project, for the demo and the tests; the environment says where everything is."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("TESTPROJECT_SECRET_KEY", "for the demo and the tests, no secret")
DEBUG = os.environ.get("TESTPROJECT_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_zklock",
    "billing",
]

# The page of a lock then leads to the results of its tasks.
if importlib.util.find_spec("django_celery_results") is not None:
    INSTALLED_APPS.append("django_celery_results")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

ROOT_URLCONF = "config.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TESTPROJECT_DATABASE", str(BASE_DIR / "db.sqlite3")),
        "OPTIONS": {
            # Four worker processes write at once: they wait for each other instead of failing, and a
            # transaction takes the write lock when it begins, because SQLite cannot wait for it in the
            # middle of one.
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"

ZKLOCK: dict[str, dict[str, Any]] = {
    "default": {
        "HOSTS": os.environ.get("ZOOKEEPER_HOSTS") or "127.0.0.1:2181",
        "SESSION_TIMEOUT": float(os.environ.get("TESTPROJECT_SESSION_TIMEOUT", "10")),
    },
}

CELERY_TASK_DEFAULT_QUEUE = os.environ.get("TESTPROJECT_QUEUE", "celery")
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or "filesystem://"
if CELERY_BROKER_URL == "filesystem://":
    BROKER_DIR = Path(os.environ.get("TESTPROJECT_BROKER_DIR", BASE_DIR / "var" / "broker"))
    CELERY_BROKER_TRANSPORT = "config.broker:Transport"
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(BROKER_DIR / "messages"),
        "data_folder_out": str(BROKER_DIR / "messages"),
        "control_folder": str(BROKER_DIR / "control"),
        # kombu looks once a second unless told; nothing wakes a consumer of this transport.
        "polling_interval": 0.02,
    }
