"""The settings of the site under test: those of the test project, with facts of the test from the environment."""

from __future__ import annotations

import json
import os
import time
from unittest import mock

from config import settings
from config.settings import *  # noqa: F403 - derived settings

INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.browser.slow_site.SlowSite"]
# Themes of the admin have inline scripts and styles, and fonts of other sites.
if THEME := os.environ.get("SITE_THEME", ""):
    INSTALLED_APPS = [THEME, *INSTALLED_APPS]
    ROOT_URLCONF = "tests.browser.site_urls"
else:
    MIDDLEWARE = ["tests.browser.csp_middleware.strict", *settings.MIDDLEWARE]
ZKLOCK = json.loads(os.environ.get("SITE_ZKLOCK", "{}"))
LANGUAGE_CODE = os.environ.get("SITE_LANGUAGE") or settings.LANGUAGE_CODE
# A fast hasher: these passwords are not secret.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# The site of the pictures shows the same ages each time.
if _now := os.environ.get("SITE_NOW"):
    mock.patch.object(time, "time", return_value=float(_now)).start()
