"""Java, and where its classes are on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.toolbox.processes.process import NotInstalledError

DEBIAN_JARS = Path("/usr/share/java")
# Debian's packages log nothing at all unless a logger is put next to them.
DEBIAN_LOGGER = DEBIAN_JARS / "slf4j-simple.jar"

# For programs that live seconds, or that tests wait for.
QUICK_START = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Java's performance data is a file in /tmp, which a killed program would leave behind.
    "-XX:-UsePerfData",
)


def find_java(how_to_get_it: str) -> str:
    """Find the program in ``JAVA_HOME``, else on the path; raise NotInstalledError."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        msg = f"Java is not installed; get it with {how_to_get_it}"
        raise NotInstalledError(msg)
    return java
