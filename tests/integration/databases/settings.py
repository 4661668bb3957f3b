"""The settings of the project with the database that the environment describes."""

from __future__ import annotations

import json
import os

from config.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["DATABASE"])}
