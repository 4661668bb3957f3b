"""Settings of the site that the browser looks at: the test project's, with locks of the test's choice."""

from __future__ import annotations

import json
import os

from config import settings
from config.settings import *  # noqa: F403 - derived settings

MIDDLEWARE = ["tests.browser.policy.strict", *settings.MIDDLEWARE]
ZKLOCK = json.loads(os.environ.get("SITE_ZKLOCK", "{}"))
# The slow one is for passwords that are secret.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
