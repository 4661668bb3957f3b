"""Where Apache Curator is on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.toolbox.processes.java import DEBIAN_JARS, DEBIAN_LOGGER
from tests.toolbox.processes.process import NotInstalledError

DEBIAN_CURATOR = DEBIAN_JARS / "curator-recipes.jar"


HOW_TO_GET_CURATOR = (
    "`apt-get install libcurator-recipes-java`, or set CURATOR_HOME (a folder with its jars and those that they need)"
)


def find_curator() -> str:
    """Find Curator in ``CURATOR_HOME``, else Debian's package; return its class path or raise NotInstalledError."""
    home = os.environ.get("CURATOR_HOME")
    if home:
        if not any(Path(home).glob("curator-recipes*.jar")):
            msg = f"CURATOR_HOME={home} has no curator-recipes*.jar; get Apache Curator with {HOW_TO_GET_CURATOR}"
            raise NotInstalledError(msg)
        return f"{Path(home)}/*"
    if DEBIAN_CURATOR.exists():
        # It names the other jars that it needs.
        return f"{DEBIAN_CURATOR}:{DEBIAN_LOGGER}"
    msg = f"Apache Curator is not installed; get it with {HOW_TO_GET_CURATOR}"
    raise NotInstalledError(msg)


def curator_version() -> tuple[int, int]:
    """Return the first two numbers of the version of the Curator that ``find_curator`` finds."""
    folder = Path(os.environ.get("CURATOR_HOME") or DEBIAN_JARS)
    jars = folder.glob("curator-recipes-*.jar")
    found = next((found for jar in jars if (found := re.search(r"-([0-9]+)\.([0-9]+)", jar.name))), None)
    if found is None:
        msg = f"no curator-recipes jar has its version in its name; get Apache Curator with {HOW_TO_GET_CURATOR}"
        raise NotInstalledError(msg)
    return int(found[1]), int(found[2])
