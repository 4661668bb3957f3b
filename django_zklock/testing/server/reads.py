"""The requests that do not change the tree: their replies, and the watches that they set.

They set a watch exactly where ZooKeeper's ``FinalRequestProcessor`` and ``DataTree`` do.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from . import acl, jute, multi, paths
from .acl import AclEntry, AuthId
from .jute import MalformedError, Reader
from .protocol import Code, EventType, Opcode, Perms, RefusedError, WatchKind
from .replica import Replica
from .watches import Watches, WatchTable
from .znode import Znode

logger = logging.getLogger("django_zklock.testing")

# Bytes in the reply to one multiRead: sixteen times the maximum of a request.
MAX_MULTI_READ = 1 << 24
ADD_WATCH_MODES = (WatchKind.PERSISTENT, WatchKind.RECURSIVE)


class ReadingClient(Protocol):
    """The client that sent a read."""

    replica: Replica

    @property
    def session_id(self) -> int:
        """The number of its session."""
        ...

    @property
    def identities(self) -> tuple[AuthId, ...]:
        """Its identities for access control lists."""
        ...

    def on_watch_event(self, event: EventType, path: str, entries: tuple[AclEntry, ...]) -> None:
        """Send the event of a watch, if the access control list permits it."""
        ...

    def notify(self, event: EventType, path: str) -> None:
        """Send an event."""
        ...


def exists(reader: Reader, client: ReadingClient) -> bytes:
    """Return the Stat of a node; a watch is set even if the node does not exist."""
    path, watch = reader.text(), reader.boolean()
    if "\0" in path:
        raise RefusedError(Code.BAD_ARGUMENTS)
    if watch:
        client.replica.watches.data.add(path, client.on_watch_event)
    return client.replica.tree[paths.canonical(path)].stat()


def get_data(reader: Reader, client: ReadingClient) -> bytes:
    """Return data and Stat."""
    path, watch = reader.text(), reader.boolean()
    node = _readable(path, client)
    if watch:
        client.replica.watches.data.add(path, client.on_watch_event)
    return jute.buffer(node.data) + node.stat()


def get_children(reader: Reader, client: ReadingClient) -> bytes:
    """Return the names of the children."""
    return _children(reader, client)[0]


def get_children2(reader: Reader, client: ReadingClient) -> bytes:
    """Return the names of the children, and the Stat."""
    names, node = _children(reader, client)
    return names + node.stat()


def get_acl(reader: Reader, client: ReadingClient) -> bytes:
    """Return the access control list; without the hashes of passwords, unless the client may change the list."""
    node = client.replica.tree[paths.canonical(reader.text())]
    acl.require(node.acl, Perms.READ | Perms.ADMIN, client.identities)
    entries = node.acl
    if not acl.permits(entries, Perms.ADMIN, client.identities):
        entries = tuple(entry.masked() for entry in entries)
    return jute.vector([entry.encode() for entry in entries]) + node.stat()


def sync(reader: Reader, client: ReadingClient) -> bytes:
    """Apply all transactions before this request, and return the path."""
    path = reader.optional_text()
    client.replica.catch_up()
    return jute.text(path)


def get_ephemerals(reader: Reader, client: ReadingClient) -> bytes:
    """Return the ephemeral nodes of the client's session below a path."""
    prefix = reader.optional_text() or ""
    if not prefix.strip() or prefix.strip() == "/":
        prefix = ""
    mine = client.replica.tree.ephemerals.get(client.session_id, {})
    return jute.vector([jute.text(path) for path in mine if path.startswith(prefix)])


def get_all_children_number(reader: Reader, client: ReadingClient) -> bytes:
    """Return the number of nodes below a path, at any depth."""
    path = reader.text()
    _readable(path, client)
    return jute.INT.pack(sum(1 for _ in client.replica.tree.descendants(path)))


def who_am_i(_reader: Reader, client: ReadingClient) -> bytes:
    """Return the identities of the client."""
    return jute.vector([jute.text(one.scheme) + jute.text(one.user) for one in client.identities])


def multi_read(reader: Reader, client: ReadingClient) -> bytes:
    """Return the replies to several reads; each can fail by itself, and none sets a watch.

    Raise MalformedError if the reply would be too long. A real server has no limit but its memory.
    """
    replies: list[bytes] = []
    size = 0
    for opcode in multi.opcodes(reader, {Opcode.GET_DATA, Opcode.GET_CHILDREN}):
        path, _watch = reader.text(), reader.boolean()
        try:
            node = _readable(path, client)
        except RefusedError as error:
            replies.append(multi.failure(error.code))
        else:
            body = jute.buffer(node.data) + node.stat() if opcode is Opcode.GET_DATA else _names(node)
            replies.append(multi.success(opcode, body))
        size += len(replies[-1])
        if size > MAX_MULTI_READ:
            msg = f"the reply to a multiRead has more than {MAX_MULTI_READ} bytes; read fewer nodes at once"
            logger.error("event=answer_too_long session=0x%x: %s", client.session_id, msg)
            raise MalformedError(msg)
    return b"".join(replies) + multi.END


def add_watch(reader: Reader, client: ReadingClient) -> bytes:
    """Set a persistent watch, on a node or on its whole subtree."""
    path, mode = reader.text(), reader.integer()
    if mode not in range(len(ADD_WATCH_MODES)):
        msg = f"a watch of mode {mode}"
        raise MalformedError(msg)
    for table in _both(client.replica.watches):
        table.add(path, client.on_watch_event, ADD_WATCH_MODES[mode])
    return jute.INT.pack(0)


def check_watches(reader: Reader, client: ReadingClient) -> bytes:
    """Reply whether a node is watched."""
    path, tables = _watched(reader, client)
    if path is None or (path and "/" not in path):
        # The real server looks for the parent and fails.
        msg = f"a path without a slash: {path!r}"
        raise MalformedError(msg)
    if not any(table.has(path) for table in tables):
        raise RefusedError(Code.NO_WATCHER)
    return b""


def remove_watches(reader: Reader, client: ReadingClient) -> bytes:
    """Remove watches of the client."""
    path, tables = _watched(reader, client)
    removed = [table.remove(path, client.on_watch_event) for table in tables if path is not None]
    if not any(removed):
        raise RefusedError(Code.NO_WATCHER)
    return b""


def set_watches(reader: Reader, client: ReadingClient) -> bytes:
    """Set the watches of a client that has reconnected, and send the events that it has missed."""
    return _set_watches(reader, client, persistent=False)


def set_watches2(reader: Reader, client: ReadingClient) -> bytes:
    """Set them like ``set_watches``, persistent watches included."""
    return _set_watches(reader, client, persistent=True)


def _set_watches(reader: Reader, client: ReadingClient, *, persistent: bool) -> bytes:
    seen = reader.long()
    data, exist, children = (reader.vector(reader.text) for _ in range(3))
    lasting = [reader.vector(reader.text) for _ in ADD_WATCH_MODES] if persistent else []
    nodes, watches = client.replica.tree.nodes, client.replica.watches

    missed: list[tuple[EventType, str]] = []

    def restore(path: str, event: EventType | None, table: WatchTable) -> None:
        if event is None:
            table.add(path, client.on_watch_event)
        else:
            missed.append((event, path))

    for path in data:
        node = nodes.get(paths.canonical(path))
        newer = node is not None and node.modified_zxid > seen
        restore(path, EventType.DELETED if node is None else EventType.CHANGED if newer else None, watches.data)
    for path in exist:
        restore(path, EventType.CREATED if paths.canonical(path) in nodes else None, watches.data)
    for path in children:
        node = nodes.get(paths.canonical(path))
        newer = node is not None and node.children_zxid > seen
        restore(path, EventType.DELETED if node is None else EventType.CHILD if newer else None, watches.children)
    for kind, these in zip(ADD_WATCH_MODES, lasting, strict=False):
        for path in these:
            for table in _both(watches):
                table.add(path, client.on_watch_event, kind)
    # Last, because an event may end the connection and remove its watches.
    for event, path in missed:
        client.notify(event, path)
    return b""


def _readable(path: str, client: ReadingClient) -> Znode:
    node = client.replica.tree[paths.canonical(path)]
    acl.require(node.acl, Perms.READ, client.identities)
    return node


def _children(reader: Reader, client: ReadingClient) -> tuple[bytes, Znode]:
    path, watch = reader.text(), reader.boolean()
    node = _readable(path, client)
    if watch:
        client.replica.watches.children.add(path, client.on_watch_event)
    return _names(node), node


def _names(node: Znode) -> bytes:
    # ZooKeeper keeps them in a hash set. Code that relies on an order by name or by creation must fail here too.
    return jute.vector(sorted((jute.text(name) for name in node.children), key=zlib.crc32))


def _watched(reader: Reader, client: ReadingClient) -> tuple[str | None, Sequence[WatchTable]]:
    path, kind = reader.optional_text(), reader.integer()
    watches = client.replica.watches
    # The numbers of WatcherType: children, data, any.
    tables = {1: (watches.children,), 2: (watches.data,), 3: _both(watches)}.get(kind)
    if tables is None:
        msg = f"watches of type {kind}"
        raise MalformedError(msg)
    return path, tables


def _both(watches: Watches) -> tuple[WatchTable, WatchTable]:
    return watches.children, watches.data


Read = Callable[[Reader, ReadingClient], bytes]

READS: dict[Opcode, Read] = {
    Opcode.EXISTS: exists,
    Opcode.GET_DATA: get_data,
    Opcode.GET_ACL: get_acl,
    Opcode.GET_CHILDREN: get_children,
    Opcode.GET_CHILDREN2: get_children2,
    Opcode.SYNC: sync,
    Opcode.CHECK_WATCHES: check_watches,
    Opcode.REMOVE_WATCHES: remove_watches,
    Opcode.MULTI_READ: multi_read,
    Opcode.SET_WATCHES: set_watches,
    Opcode.SET_WATCHES2: set_watches2,
    Opcode.GET_EPHEMERALS: get_ephemerals,
    Opcode.GET_ALL_CHILDREN_NUMBER: get_all_children_number,
    Opcode.ADD_WATCH: add_watch,
    Opcode.WHO_AM_I: who_am_i,
}
