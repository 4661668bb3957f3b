"""The system's Chromium, with access to nothing but the pages under test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Playwright

from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.processes.process import NotInstalledError

FONTS = Path(__file__).with_name("fonts.conf")
DEJAVU = Path("/usr/share/fonts/truetype/dejavu")
VARIABLE = "CHROMIUM"
HOW_TO_GET_IT = f"`apt-get install chromium`, or set {VARIABLE} to a program"

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    # It calls home for many purposes that no test needs...
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # ... and cannot resolve those hosts.
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}",
    # The same screenshots on every screen.
    "--font-render-hinting=none",
    "--hide-scrollbars",
]


def launch(playwright: Playwright) -> Browser:
    """Start the browser without a window, or raise NotInstalledError."""
    program = shutil.which(os.environ.get(VARIABLE) or "chromium")
    if program is None:
        msg = f"Chromium is not installed; get it with {HOW_TO_GET_IT}"
        raise NotInstalledError(msg)
    environment: dict[str, str | float | bool] = {**os.environ}
    # The same letters on every machine that has these fonts; without any font Chromium would not start.
    if DEJAVU.is_dir():
        environment["FONTCONFIG_FILE"] = str(FONTS)
    return playwright.chromium.launch(executable_path=program, args=FLAGS, env=environment)
