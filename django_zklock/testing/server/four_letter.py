"""Four-letter commands, with which an operator queries a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from .client import Client
from .protocol import Opcode
from .service import Service

VERSION = "3.8.0"
BUILD = f"{VERSION}-django_zklock.testing, built on 2026-11-21 00:00 UTC"
# ZooKeeper's own short names of requests.
_SHORT = {
    Opcode.CREATE: "CREA",
    Opcode.CREATE2: "CREA",
    Opcode.CREATE_CONTAINER: "CREA",
    Opcode.CREATE_TTL: "CREA",
    Opcode.DELETE: "DELE",
    Opcode.EXISTS: "EXIS",
    Opcode.GET_DATA: "GETD",
    Opcode.SET_DATA: "SETD",
    Opcode.GET_CHILDREN: "GETC",
    Opcode.GET_CHILDREN2: "GETC",
    Opcode.GET_ACL: "GETA",
    Opcode.SET_ACL: "SETA",
    Opcode.SYNC: "SYNC",
    Opcode.PING: "PING",
    Opcode.CHECK: "CHEC",
    Opcode.MULTI: "MULT",
    Opcode.MULTI_READ: "MLTR",
    Opcode.SET_WATCHES: "SETW",
    Opcode.SET_WATCHES2: "STW2",
    Opcode.ADD_WATCH: "ADDW",
    Opcode.REMOVE_WATCHES: "REMW",
    Opcode.CHECK_WATCHES: "CHKW",
    Opcode.GET_EPHEMERALS: "GETE",
    Opcode.GET_ALL_CHILDREN_NUMBER: "GETACN",
    Opcode.WHO_AM_I: "HOMI",
    Opcode.CLOSE: "CLOS",
    Opcode.CONNECT: "SESS",
    # A refused write.
    Opcode.ERROR: "NA",
}


class ConnectionState(Protocol):
    """What the commands show of one connection."""

    client: Client
    peer: tuple[str, int]
    received: int
    sent: int
    since: float


class ServerState(Protocol):
    """What the commands show of the server."""

    service: Service
    started_at: float
    packets_received: int
    packets_sent: int

    @property
    def connections(self) -> Collection[ConnectionState]:
        """The open connections, oldest first."""
        ...


def ruok(_server: ServerState, _current: ConnectionState) -> str:
    """Return that the server runs."""
    return "imok"


def isro(_server: ServerState, _current: ConnectionState) -> str:
    """Return that it accepts writes."""
    return "rw"


def srvr(server: ServerState, _current: ConnectionState) -> str:
    """Return a description of the server."""
    return f"Zookeeper version: {BUILD}\n{_summary(server)}"


def stat(server: ServerState, current: ConnectionState) -> str:
    """Return a description of the server and its clients."""
    clients = "".join(f" {_client(each, current)})\n" for each in server.connections)
    return f"Zookeeper version: {BUILD}\nClients:\n{clients}\n{_summary(server)}"


def cons(server: ServerState, current: ConnectionState) -> str:
    """Return a detailed description of the clients."""
    lines = []
    for each in server.connections:
        line = f" {_client(each, current)}"
        session = each.client.session
        if session is not None:
            line += (
                f",sid=0x{session.id:x},lop={_SHORT[each.client.last_opcode]},est={round(each.since * 1000)}"
                f",to={round(session.timeout * 1000)},lcxid=0x{each.client.last_xid:x}"
                f",lzxid=0x{each.client.last_zxid:x},lresp=0,llat=0,minlat=0,avglat=0,maxlat=0"
            )
        lines.append(line + ")\n")
    return "".join(lines) + "\n"


def mntr(server: ServerState, _current: ConnectionState) -> str:
    """Return the counters."""
    service = server.service
    tree, watches = service.newest.tree, service.newest.watches
    counters = {
        "zk_version": BUILD,
        "zk_server_state": "standalone",
        "zk_ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "zk_num_alive_connections": len(server.connections),
        "zk_avg_latency": 0.0,
        "zk_min_latency": 0,
        "zk_max_latency": 0,
        "zk_outstanding_requests": 0,
        "zk_znode_count": _nodes(server),
        "zk_global_sessions": len(service.sessions),
        "zk_packets_sent": server.packets_sent,
        "zk_packets_received": server.packets_received,
        "zk_watch_count": watches.data.total + watches.children.total,
        "zk_approximate_data_size": sum(len(path) + len(node.data or b"") for path, node in tree.nodes.items()),
        "zk_uptime": round((time.time() - server.started_at) * 1000),
    }
    return "".join(f"{key}\t{value}\n" for key, value in counters.items())


def wchs(server: ServerState, _current: ConnectionState) -> str:
    """Return the number of watches on data."""
    table = server.service.newest.watches.data
    return f"{table.watchers} connections watching {table.paths} paths\nTotal watches:{table.total}\n"


def envi(_server: ServerState, _current: ConnectionState) -> str:
    """Return the version, which clients read to choose their requests."""
    return f"Environment:\nzookeeper.version={BUILD}\n"


COMMANDS: dict[bytes, Callable[[ServerState, ConnectionState], str]] = {
    b"ruok": ruok,
    b"isro": isro,
    b"srvr": srvr,
    b"stat": stat,
    b"cons": cons,
    b"mntr": mntr,
    b"wchs": wchs,
    b"envi": envi,
}


def _summary(server: ServerState) -> str:
    service = server.service
    return (
        f"Latency min/avg/max: 0/0.0/0\nReceived: {server.packets_received}\nSent: {server.packets_sent}\n"
        f"Connections: {len(server.connections)}\nOutstanding: 0\nZxid: 0x{service.newest.zxid:x}\n"
        f"Mode: standalone\nNode count: {_nodes(server)}\n"
    )


def _nodes(server: ServerState) -> int:
    # ZooKeeper counts the root twice, because an empty path is another name for it.
    return len(server.service.newest.tree.nodes) + 1


def _client(connection: ConnectionState, current: ConnectionState) -> str:
    host, port = connection.peer
    if ":" in host:
        host = f"[{host}]"
    # ZooKeeper shows the interest operations of the selector: none for the connection of this command.
    interest = 0 if connection is current else 1
    return f"/{host}:{port}[{interest}](queued=0,recved={connection.received},sent={connection.sent}"
