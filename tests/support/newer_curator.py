"""``python -m tests.support.newer_curator``: print a folder for ``CURATOR_HOME`` with a newer Curator than Debian's.

PySpark's source package has the jars of Curator 5.7.1, of ZooKeeper 3.9.3 and of what they need. It is large, so only
those are kept, in ``.cache``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.support.source_package import SourceError, download, open_archive

CACHE = Path(__file__).resolve().parents[2] / ".cache"
PYSPARK = "4.0.1"
JARS = (
    "curator-", "failureaccess-", "guava-", "netty-buffer-", "netty-codec-4", "netty-common-", "netty-handler-4",
    "netty-resolver-4", "netty-transport-4", "netty-transport-native-unix-common-", "slf4j-api-", "zookeeper-",
)  # fmt: skip


def fetch_curator(cache: Path) -> Path:
    """Return the folder with the jars, from the package index if it is not in ``cache``."""
    folder = cache / "curator-5.7.1"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked elsewhere and renamed, so that a folder under its name is complete.
    with tempfile.TemporaryDirectory(dir=cache) as name:
        workshop = Path(name)
        jars = workshop / folder.name
        with open_archive(download("pyspark", PYSPARK, workshop)) as file:
            for member in file:
                member.name = Path(member.name).name
                if member.isfile() and member.name.endswith(".jar") and member.name.startswith(JARS):
                    file.extract(member, jars)
        jars.rename(folder)
    return folder


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{fetch_curator(CACHE)}\n")
    except SourceError as error:
        sys.exit(str(error))
