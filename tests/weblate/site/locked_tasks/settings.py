"""Weblate's own example settings, on the servers of the test, with this package installed as its documents say."""

from __future__ import annotations

import importlib
import json
import os

for _name, _value in vars(importlib.import_module("weblate.settings_example")).items():
    if _name.isupper():
        globals()[_name] = _value

_servers = json.loads(os.environ["WEBLATE_SERVERS"])
_redis = _servers["redis"]

SITE_DOMAIN = f"localhost:{_servers['port']}"
OTP_WEBAUTHN_RP_ID = "localhost"
OTP_WEBAUTHN_ALLOWED_ORIGINS = [f"https://{SITE_DOMAIN}"]
ALLOWED_HOSTS = ["*"]
SECRET_KEY = "of a test"
ENABLE_HTTPS = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = DEBUG = False
DATA_DIR = _servers["folder"]
CACHE_DIR = f"{DATA_DIR}/cache"
STATIC_ROOT = f"{DATA_DIR}/static"
DATABASES = {"default": _servers["database"]}
CACHES = globals()["CACHES"]
CACHES["default"]["LOCATION"] = f"{_redis}/1"
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = f"{_redis}/2"
# Its style sheets as they are: to compress them takes minutes.
COMPRESS_ENABLED = COMPRESS_OFFLINE = False
INSTALLED_APPS = (*globals()["INSTALLED_APPS"], "django_zklock", "locked_tasks")
ZKLOCK = {"default": {"HOSTS": _servers["zookeeper"], "ROOT": "/weblate"}}
ZKLOCK_COMMAND = "weblate"
