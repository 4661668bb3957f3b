"""Four-letter words: what an operator asks a server by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .protocol import Opcode

if TYPE_CHECKING:
    from .connection import Connection, Host

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
    # A write that was refused.
    Opcode.ERROR: "NA",
}


def ruok(_host: Host, _asking: Connection) -> str:
    """Say that the server runs."""
    return "imok"


def isro(_host: Host, _asking: Connection) -> str:
    """Say that it takes writes."""
    return "rw"


def srvr(host: Host, _asking: Connection) -> str:
    """Describe the server."""
    return f"Zookeeper version: {BUILD}\n{_summary(host)}"


def stat(host: Host, asking: Connection) -> str:
    """Describe the server and its clients."""
    clients = "".join(f" {_client(each, asking)})\n" for each in host.connections)
    return f"Zookeeper version: {BUILD}\nClients:\n{clients}\n{_summary(host)}"


def cons(host: Host, asking: Connection) -> str:
    """Describe the clients in full."""
    lines = []
    for each in host.connections:
        line = f" {_client(each, asking)}"
        session = each.client.session
        if session is not None:
            line += (
                f",sid=0x{session.id:x},lop={_SHORT[each.client.last_opcode]},est={round(each.since * 1000)}"
                f",to={round(session.timeout * 1000)},lcxid=0x{each.client.last_xid:x}"
                f",lzxid=0x{each.client.last_zxid:x},lresp=0,llat=0,minlat=0,avglat=0,maxlat=0"
            )
        lines.append(line + ")\n")
    return "".join(lines) + "\n"


def mntr(host: Host, _asking: Connection) -> str:
    """Give the counters."""
    service = host.service
    tree, watches = service.newest.tree, service.newest.watches
    facts = {
        "zk_version": BUILD,
        "zk_server_state": "standalone",
        "zk_ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "zk_num_alive_connections": len(host.connections),
        "zk_avg_latency": 0.0,
        "zk_min_latency": 0,
        "zk_max_latency": 0,
        "zk_outstanding_requests": 0,
        "zk_znode_count": _nodes(host),
        "zk_global_sessions": len(service.sessions),
        "zk_packets_sent": host.packets_sent,
        "zk_packets_received": host.packets_received,
        "zk_watch_count": watches.data.total + watches.children.total,
        "zk_approximate_data_size": sum(len(path) + len(node.data or b"") for path, node in tree.nodes.items()),
        "zk_uptime": round((time.time() - host.started_at) * 1000),
    }
    return "".join(f"{key}\t{value}\n" for key, value in facts.items())


def wchs(host: Host, _asking: Connection) -> str:
    """Count the watches on data."""
    table = host.service.newest.watches.data
    return f"{table.watchers} connections watching {table.paths} paths\nTotal watches:{table.total}\n"


def envi(_host: Host, _asking: Connection) -> str:
    """Name the version, by which clients choose what to ask for."""
    return f"Environment:\nzookeeper.version={BUILD}\n"


WORDS: dict[bytes, Callable[[Host, Connection], str]] = {
    b"ruok": ruok,
    b"isro": isro,
    b"srvr": srvr,
    b"stat": stat,
    b"cons": cons,
    b"mntr": mntr,
    b"wchs": wchs,
    b"envi": envi,
}


def _summary(host: Host) -> str:
    service = host.service
    return (
        f"Latency min/avg/max: 0/0.0/0\nReceived: {host.packets_received}\nSent: {host.packets_sent}\n"
        f"Connections: {len(host.connections)}\nOutstanding: 0\nZxid: 0x{service.newest.zxid:x}\n"
        f"Mode: standalone\nNode count: {_nodes(host)}\n"
    )


def _nodes(host: Host) -> int:
    # ZooKeeper counts the root twice: an empty path is another name of it.
    return len(host.service.newest.tree.nodes) + 1


def _client(connection: Connection, asking: Connection) -> str:
    host, port = connection.peer
    if ":" in host:
        host = f"[{host}]"
    interest = 0 if connection is asking else 1
    return f"/{host}:{port}[{interest}](queued=0,recved={connection.received},sent={connection.sent}"
