"""The settings of the site under test: those of the test project, with ``ZKLOCK`` from the environment."""

from __future__ import annotations

import json
import os

from config import settings
from config.settings import *  # noqa: F403 - derived settings

MIDDLEWARE = ["tests.browser.csp_middleware.strict", *settings.MIDDLEWARE]
ZKLOCK = json.loads(os.environ.get("SITE_ZKLOCK", "{}"))
# A fast hasher: these passwords are not secret.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
