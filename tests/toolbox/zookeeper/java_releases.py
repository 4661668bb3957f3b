"""Releases of ZooKeeper and Apache Curator that Debian does not have, from PySpark's source packages.

Such a package has the jars of one ZooKeeper and one Curator and of what both need, among hundreds of others.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.toolbox.suites.source_package import SourceError, download, open_archive

CACHE = Path(__file__).resolve().parents[3] / ".cache"
# Which release of PySpark has which ZooKeeper.
PYSPARK = {"3.6.3": "3.4.4", "3.9.3": "4.0.1"}
# Which ZooKeeper lies beside which Curator. The one beside ZooKeeper 3.6.3 is 2.13: too old.
CURATOR = {"5.7.1": "3.9.3"}
JARS = re.compile(
    r"(audience-annotations|commons-(cli|io)|curator|failureaccess|guava|log4j-(api|core|slf4j2-impl)|metrics-core|"
    r"netty-(buffer|codec|common|handler|resolver|transport|transport-classes-epoll|transport-native-unix-common)|"
    r"slf4j-api|snappy-java|zookeeper)(-(client|framework|recipes|jute))?-[0-9][^/]*\.jar"
)
# Debian's logger does not fit to the newer interface for which these jars have one.
LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def fetch_release(zookeeper: str, cache: Path = CACHE) -> Path:
    """Return a folder for ``ZOOKEEPER_HOME``; its ``lib`` is one for ``CURATOR_HOME``.

    It comes from the package index if it is not in ``cache``. Raise SourceError if it is not to be had.
    """
    folder = cache / f"zookeeper-{zookeeper}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked elsewhere and renamed, so that a folder under its name is complete.
    with tempfile.TemporaryDirectory(dir=cache) as name:
        workshop = Path(name)
        home = workshop / folder.name
        with open_archive(download("pyspark", PYSPARK[zookeeper], workshop)) as file:
            for member in file:
                member.name = Path(member.name).name
                if member.isfile() and JARS.fullmatch(member.name):
                    file.extract(member, home / "lib")
        if not (home / "lib" / f"zookeeper-{zookeeper}.jar").exists():
            raise SourceError(f"pyspark {PYSPARK[zookeeper]} has no ZooKeeper {zookeeper}")
        (home / "conf").mkdir()
        (home / "conf" / "log4j2.properties").write_text(LOGGING, encoding="ascii")
        home.rename(folder)
    return folder


def jar_version(folder: Path, name: str) -> str | None:
    """Return the version in the name of the jar ``name`` in the folder, or None if there is no such jar."""
    found = (re.fullmatch(rf"{name}-([0-9.]+)\.jar", jar.name) for jar in sorted(folder.glob(f"{name}-*.jar")))
    return next((each[1] for each in found if each), None)
