"""The site under test, in its own process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toolbox.django.webserver import WebServer


class Site(WebServer):
    """The test project's admin, on a copy of a database, with ``zklock`` as its setting ``ZKLOCK``.

    If ``now`` is given, its clock always has this time. ``language`` is that of the project, and ``theme``
    the app that changes the look of its admin.

    Not pytest-django's live server: Playwright runs an event loop in the test's thread, where Django refuses to use the
    database.
    """

    def __init__(
        self,
        database: Path,
        zklock: Mapping[str, Mapping[str, Any]],
        *,
        now: float | None = None,
        language: str = "",
        theme: str = "",
    ) -> None:
        # The demo's tests use port 8000.
        super().__init__(preferred_port=None)
        self._database = shutil.copy(database, self.folder)
        self._zklock = json.dumps(zklock)
        self._language = language
        self._theme = theme
        self._now = "" if now is None else str(now)

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "DJANGO_SETTINGS_MODULE": "tests.browser.site_settings",
            "SITE_LANGUAGE": self._language,
            "SITE_NOW": self._now,
            "SITE_THEME": self._theme,
            "SITE_ZKLOCK": self._zklock,
            "TESTPROJECT_DATABASE": str(self._database),
        }
