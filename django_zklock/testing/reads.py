"""Requests that change nothing in the tree: what they answer, and the watches that they leave.

A watch is left, or not, exactly where ZooKeeper's ``FinalRequestProcessor`` and ``DataTree`` do it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import acl, jute, multi, paths
from .jute import MalformedError, Reader
from .protocol import Code, EventType, Opcode, Perms, RefusedError, WatchKind
from .watches import Table, Watches
from .znode import Znode

if TYPE_CHECKING:
    from .client import Client

ADD_WATCH_MODES = (WatchKind.PERSISTENT, WatchKind.RECURSIVE)


def exists(reader: Reader, client: Client) -> bytes:
    """Tell of a node whether it is there; a watch waits for one that is not."""
    path, watch = reader.text(), reader.boolean()
    if "\0" in path:
        raise RefusedError(Code.BAD_ARGUMENTS)
    if watch:
        client.replica.watches.data.add(path, client.hear)
    return client.replica.tree[paths.canonical(path)].stat()


def get_data(reader: Reader, client: Client) -> bytes:
    """Give data and Stat."""
    path, watch = reader.text(), reader.boolean()
    node = _readable(path, client)
    if watch:
        client.replica.watches.data.add(path, client.hear)
    return jute.buffer(node.data) + node.stat()


def get_children(reader: Reader, client: Client) -> bytes:
    """Give the names of the children."""
    return _children(reader, client)[0]


def get_children2(reader: Reader, client: Client) -> bytes:
    """Give the names of the children, and the Stat."""
    names, node = _children(reader, client)
    return names + node.stat()


def get_acl(reader: Reader, client: Client) -> bytes:
    """Give who may use a node; without the hashes of passwords, unless the client may change it."""
    node = client.replica.tree[paths.canonical(reader.text())]
    acl.require(node.acl, Perms.READ | Perms.ADMIN, client.identities)
    entries = node.acl
    if not acl.permits(entries, Perms.ADMIN, client.identities):
        entries = tuple(entry.masked() for entry in entries)
    return jute.vector([entry.encode() for entry in entries]) + node.stat()


def sync(reader: Reader, client: Client) -> bytes:
    """See all that has been decided before this request arrived."""
    path = reader.optional_text()
    client.replica.catch_up()
    return jute.text(path)


def get_ephemerals(reader: Reader, client: Client) -> bytes:
    """Give the ephemeral nodes of the own session below a path."""
    prefix = reader.optional_text() or ""
    if not prefix.strip() or prefix.strip() == "/":
        prefix = ""
    mine = client.replica.tree.ephemerals.get(client.session_id, {})
    return jute.vector([jute.text(path) for path in mine if path.startswith(prefix)])


def get_all_children_number(reader: Reader, client: Client) -> bytes:
    """Count the nodes below a path, at any depth."""
    path = reader.text()
    _readable(path, client)
    return jute.INT.pack(sum(1 for _ in client.replica.tree.descendants(path)))


def who_am_i(_reader: Reader, client: Client) -> bytes:
    """Tell the client who it is."""
    return jute.vector([jute.text(one.scheme) + jute.text(one.user) for one in client.identities])


def multi_read(reader: Reader, client: Client) -> bytes:
    """Answer several reads; each fails for itself, and none leaves a watch."""
    replies = []
    for opcode in multi.opcodes(reader, {Opcode.GET_DATA, Opcode.GET_CHILDREN}):
        path, _watch = reader.text(), reader.boolean()
        try:
            node = _readable(path, client)
        except RefusedError as error:
            replies.append(multi.failure(error.code))
        else:
            body = jute.buffer(node.data) + node.stat() if opcode is Opcode.GET_DATA else _names(node)
            replies.append(multi.success(opcode, body))
    return b"".join(replies) + multi.END


def add_watch(reader: Reader, client: Client) -> bytes:
    """Leave a watch that stays, on a node or on all below it."""
    path, mode = reader.text(), reader.integer()
    if mode not in range(len(ADD_WATCH_MODES)):
        msg = f"a watch of mode {mode}"
        raise MalformedError(msg)
    for table in _both(client.replica.watches):
        table.add(path, client.hear, ADD_WATCH_MODES[mode])
    return jute.INT.pack(0)


def check_watches(reader: Reader, client: Client) -> bytes:
    """Tell whether a node is watched."""
    path, tables = _watched(reader, client)
    if path is None or (path and "/" not in path):
        # The real server looks for the node above it, and stumbles.
        msg = f"a path without a slash: {path!r}"
        raise MalformedError(msg)
    if not any(table.has(path) for table in tables):
        raise RefusedError(Code.NO_WATCHER)
    return b""


def remove_watches(reader: Reader, client: Client) -> bytes:
    """Take watches of the client away."""
    path, tables = _watched(reader, client)
    removed = [table.remove(path, client.hear) for table in tables if path is not None]
    if not any(removed):
        raise RefusedError(Code.NO_WATCHER)
    return b""


def set_watches(reader: Reader, client: Client) -> bytes:
    """Leave the watches of a client that comes back, and tell it at once what it has missed."""
    return _set_watches(reader, client, persistent=False)


def set_watches2(reader: Reader, client: Client) -> bytes:
    """Do the same, for persistent watches too."""
    return _set_watches(reader, client, persistent=True)


def _set_watches(reader: Reader, client: Client, *, persistent: bool) -> bytes:
    seen = reader.long()
    data, exist, children = (reader.vector(reader.text) for _ in range(3))
    lasting = [reader.vector(reader.text) for _ in ADD_WATCH_MODES] if persistent else []
    nodes, watches = client.replica.tree.nodes, client.replica.watches

    def recall(path: str, event: EventType | None, table: Table) -> None:
        if event is None:
            table.add(path, client.hear)
        else:
            client.notify(event, path)

    for path in data:
        node = nodes.get(paths.canonical(path))
        newer = node is not None and node.modified_zxid > seen
        recall(path, EventType.DELETED if node is None else EventType.CHANGED if newer else None, watches.data)
    for path in exist:
        recall(path, EventType.CREATED if paths.canonical(path) in nodes else None, watches.data)
    for path in children:
        node = nodes.get(paths.canonical(path))
        newer = node is not None and node.children_zxid > seen
        recall(path, EventType.DELETED if node is None else EventType.CHILD if newer else None, watches.children)
    for kind, these in zip(ADD_WATCH_MODES, lasting, strict=False):
        for path in these:
            for table in _both(watches):
                table.add(path, client.hear, kind)
    return b""


def _readable(path: str, client: Client) -> Znode:
    node = client.replica.tree[paths.canonical(path)]
    acl.require(node.acl, Perms.READ, client.identities)
    return node


def _children(reader: Reader, client: Client) -> tuple[bytes, Znode]:
    path, watch = reader.text(), reader.boolean()
    node = _readable(path, client)
    if watch:
        client.replica.watches.children.add(path, client.hear)
    return _names(node), node


def _names(node: Znode) -> bytes:
    # ZooKeeper keeps them in a hash set. Who relies on the order of their names, or of creation, must fail here too.
    return jute.vector(sorted((jute.text(name) for name in node.children), key=zlib.crc32))


def _watched(reader: Reader, client: Client) -> tuple[str | None, Sequence[Table]]:
    path, kind = reader.optional_text(), reader.integer()
    watches = client.replica.watches
    # The numbers of WatcherType: children, data, any.
    tables = {1: (watches.children,), 2: (watches.data,), 3: _both(watches)}.get(kind)
    if tables is None:
        msg = f"watches of type {kind}"
        raise MalformedError(msg)
    return path, tables


def _both(watches: Watches) -> tuple[Table, Table]:
    return watches.children, watches.data


Read = Callable[[Reader, "Client"], bytes]

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
