"""The settings of the project with the database that the environment describes."""

from __future__ import annotations

import json
import os
from typing import Any

from config.settings import *  # noqa: F403

DATABASES: dict[str, dict[str, Any]] = {"default": json.loads(os.environ["DATABASE"])}
