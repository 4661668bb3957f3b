"""Three real servers, configured like kazoo's own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.toolbox.network.certificates import Authority
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.folder import make_folder, remove_folder
from tests.toolbox.zookeeper.server import ZooKeeper

from .cluster import Cluster

SIZE = 3
TICK = 2.0


class RealNode:
    """One of the servers."""

    def __init__(self, server: ZooKeeper, secure_port: int) -> None:
        self.server = server
        self.secure_address = f"{LOOPBACK}:{secure_port}"

    @property
    def address(self) -> str:
        return self.server.hosts

    @property
    def running(self) -> bool:
        return self.server.is_running()

    def run(self) -> None:
        if not self.running:
            self.server.launch()

    def stop(self) -> None:
        self.server.stop()

    def get_logs(self, num_lines: int = 100) -> list[str]:
        return self.server.log_tail(num_lines).splitlines()


def make_real(
    *,
    configuration_entries: Sequence[str] = (),
    java_system_properties: Sequence[str] = (),
    jaas_config: str | None = None,
    **_: object,
) -> Cluster:
    """Create an ensemble with the additions of kazoo's harness: lines of ``zoo.cfg``, options of Java, a JAAS file."""
    Cluster.close()
    with ExitStack() as unfinished:
        folder = make_folder("kazoo-suite")
        unfinished.callback(remove_folder, folder)
        authority = Authority(folder)
        settings = {
            **dict(entry.split("=", 1) for entry in configuration_entries),
            **_members(),
            **_tls(folder, authority),
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        properties = {
            **dict(option.removeprefix("-D").split("=", 1) for option in java_system_properties),
            "java.security.auth.login.config": _jaas(folder, jaas_config),
            "readonlymode.enabled": "true",
            # Credentials come as UTF-8, and Java would read them in the charset of the environment.
            "file.encoding": "UTF-8",
        }
        nodes = []
        for number in range(1, SIZE + 1):
            secure_port = free_port()
            server = ZooKeeper(
                tick_time=TICK,
                min_session_timeout=2 * TICK,
                max_session_timeout=20 * TICK,
                server_id=number,
                settings={**settings, "secureClientPort": str(secure_port)},
                properties=properties,
            )
            unfinished.callback(server.close)
            nodes.append(RealNode(server, secure_port))
        papers = _papers(authority)
        end = unfinished.pop_all().close
    return Cluster(nodes, papers=papers, end=end)


def _members() -> dict[str, str]:
    return {f"server.{number}": f"{LOOPBACK}:{free_port()}:{free_port()}:participant" for number in range(1, SIZE + 1)}


def _tls(folder: Path, authority: Authority) -> dict[str, str]:
    return {
        "secureClientPortAddress": LOOPBACK,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(authority.issue("localhost").both),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(authority.certificate),
        "ssl.trustStore.type": "PEM",
    }


def _papers(authority: Authority) -> dict[str, bytes]:
    client = authority.issue("client")
    return {
        "client_key": client.key.read_bytes(),
        "client_cert": client.certificate.read_bytes(),
        "ca_cert": authority.certificate.read_bytes(),
    }


def _jaas(folder: Path, text: str | None) -> str:
    file = folder / "jaas.conf"
    file.write_text(text or "", encoding="ascii")
    return str(file)
