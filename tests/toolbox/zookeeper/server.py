"""A ZooKeeper server on the loopback interface, run from an installed ZooKeeper."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.java import DEBIAN_JARS, DEBIAN_LOGGER, QUICK_START, find_java
from tests.toolbox.processes.process import NotInstalledError, Process

if TYPE_CHECKING:
    from collections.abc import Mapping

DEBIAN_JAR = DEBIAN_JARS / "zookeeper.jar"
DEBIAN_CONFIGURATION = Path("/etc/zookeeper/conf")
# TLS needs it, and Debian's zookeeper.jar names every part of Netty but this one.
DEBIAN_CODEC = DEBIAN_JARS / "netty-codec.jar"
DEBIAN_SCRIPTS = Path("/usr/share/zookeeper/bin")
HOW_TO_GET_IT = (
    "`apt-get install zookeeper`, or set ZOOKEEPER_HOSTS (a running one) or ZOOKEEPER_HOME (an unpacked one)"
)
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A server that has only just begun to listen may leave the first question unanswered.
PROBE_TIMEOUT = 0.25


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Where Java and ZooKeeper's classes and scripts are; ``origin`` says it to people."""

    java: str
    classpath: str
    scripts: Path
    origin: str

    @classmethod
    def find(cls) -> Installation:
        """Find the release in ``ZOOKEEPER_HOME``, else Debian's package; raise NotInstalledError."""
        home = os.environ.get("ZOOKEEPER_HOME")
        if home:
            jars = Path(home, "lib")
            if not any(jars.glob("zookeeper-*.jar")):
                msg = f"ZOOKEEPER_HOME={home} has no lib/zookeeper-*.jar; get ZooKeeper with {HOW_TO_GET_IT}"
                raise NotInstalledError(msg)
            classpath = f"{Path(home, 'conf')}:{jars}/*"
            scripts = Path(home, "bin")
            origin = f"in {home}"
        elif DEBIAN_JAR.exists():
            classpath = f"{DEBIAN_CONFIGURATION}:{DEBIAN_JAR}:{DEBIAN_LOGGER}:{DEBIAN_CODEC}"
            scripts = DEBIAN_SCRIPTS
            origin = "of Debian"
        else:
            msg = f"ZooKeeper is not installed; get it with {HOW_TO_GET_IT}"
            raise NotInstalledError(msg)
        return cls(java=find_java(HOW_TO_GET_IT), classpath=classpath, scripts=scripts, origin=origin)

    def shell(self) -> Path:
        """Find ``zkCli.sh``, which is not in Debian's package of the jars; raise NotInstalledError."""
        script = self.scripts / "zkCli.sh"
        if not script.exists():
            msg = f"{script} is not there; get it with {HOW_TO_GET_IT}"
            raise NotInstalledError(msg)
        return script


class ZooKeeper(Process):
    """One server, alone unless ``settings`` make it part of an ensemble.

    Times are seconds. ``settings`` are further lines of ``zoo.cfg`` and win over the ones here;
    ``properties`` are Java system properties, which each start reads again. The port is chosen
    once, so a server that is started again is found at the same address.
    """

    name = "ZooKeeper"

    def __init__(
        self,
        *,
        tick_time: float = 0.5,
        min_session_timeout: float = 1.0,
        max_session_timeout: float = 60.0,
        force_sync: bool = False,
        memory: str = "256m",
        server_id: int | None = None,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Choose a port and write the configuration; nothing runs yet."""
        self._installation = Installation.find()
        super().__init__()
        self.port = free_port()
        self._memory = memory
        self.properties = dict(properties or {})
        # Each four-letter word is a packet in the server's count too, see packets_received.
        self._words_sent = 0
        data = self.folder / "data"
        data.mkdir()
        if server_id is not None:
            (data / "myid").write_text(f"{server_id}\n", encoding="ascii")
        self._configuration = self.folder / "zoo.cfg"
        self._settings = {
            "tickTime": str(round(tick_time * 1000)),
            "initLimit": "20",
            "syncLimit": "10",
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": LOOPBACK,
            "minSessionTimeout": str(round(min_session_timeout * 1000)),
            "maxSessionTimeout": str(round(max_session_timeout * 1000)),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "forceSync": "yes" if force_sync else "no",
            **(settings or {}),
        }
        self.write_configuration()

    def write_configuration(self) -> None:
        """Write the settings, and forget all later changes, which a server that can be reconfigured writes itself."""
        for file in self.folder.glob("zoo.cfg*"):
            file.unlink()
        text = "".join(f"{key}={value}\n" for key, value in self._settings.items())
        self._configuration.write_text(text, encoding="utf-8")

    def arguments(self) -> list[str]:
        """Run the server's main class, tuned to start fast and to leave nothing outside the folder."""
        properties = {
            "java.io.tmpdir": str(self.folder),
            "zookeeper.log.dir": str(self.folder),
            "zookeeper.jmx.log4j.disable": "true",
            **self.properties,
        }
        return [
            self._installation.java,
            f"-Xmx{self._memory}",
            *QUICK_START,
            *(f"-D{key}={value}" for key, value in properties.items()),
            "-cp",
            self._installation.classpath,
            MAIN_CLASS,
            str(self._configuration),
        ]

    def is_ready(self) -> bool:
        """Tell whether the server takes sessions; one that has no quorum answers, but not with its state."""
        try:
            return "zk_server_state" in self.mntr(timeout=PROBE_TIMEOUT)
        except OSError:
            return False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for clients."""
        return LOOPBACK, self.port

    @property
    def hosts(self) -> str:
        """The address as clients write it, ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    def command(self, word: str, *, timeout: float = 5.0) -> str:
        """Send a four-letter word such as ``mntr`` and return the answer, or raise OSError."""
        with socket.create_connection(self.address, timeout * self.slowness) as connection:
            connection.sendall(word.encode("ascii"))
            self._words_sent += 1
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode("utf-8", errors="replace")

    def mntr(self, *, timeout: float = 5.0) -> dict[str, str]:
        """Return the server's counters, or nothing while it does not serve."""
        lines = self.command("mntr", timeout=timeout).splitlines()
        return dict(line.split("\t", 1) for line in lines if "\t" in line)

    def description(self) -> str:
        """Say which release runs and where it is from; raise OSError if it does not answer."""
        # After the number come a hyphen and the commit.
        version = self.mntr()["zk_version"].partition("-")[0]
        return f"ZooKeeper {version} {self._installation.origin}"

    def packets_received(self) -> int:
        """Count what clients have sent since the start, pings included, without our four-letter words."""
        received = int(self.mntr()["zk_packets_received"])
        return received - self._words_sent

    def launch(self) -> None:
        """Start the server; its counters start at nought."""
        self._words_sent = 0
        super().launch()
