"""kazoo as the transport: the only package that imports kazoo and uses its private attributes.

kazoo provides the connection: servers, reconnects, TLS, SASL, the session handshake and the encoding. This package
changes the following; for each change ``tests/unit/zk/wire`` has a test that fails if kazoo changes.

A reply is called at most once, and only while the connection of its request lives. So no answer is ever stale, and no
caller counts connections to find out; a request that has no answer when its connection ends never gets one.

- Requests enter the connection's queue with our own result object. So replies, watch events and changes of state all
  arrive on the connection's thread, in the order of the connection; kazoo's two worker threads are not started.
- The loop of a connection is ours, on kazoo's handshake: one ``poll`` object serves for the life of the connection.
- All queued requests leave in one write, and one wake-up byte is enough for any number of them. (kazoo writes one byte
  for each request, into a socket pair that blocks after about 280.) One read takes all that has arrived; what the
  callbacks of its messages queue leaves in one write, without a wake-up. A write waits only if the socket is full.
  (kazoo waits before each read and each write, and reads each message in two pieces.)
- An error code that kazoo does not know is an answer and does not end the connection's thread.
- The negotiated session timeout and the send time of the newest answered request are recorded.
- Answers and events go to our own code and not through kazoo's tables of watches. Watches survive a connection: they
  are set again on the next one, in few requests. (kazoo forgets them.)
- An ensemble that has lost its data refuses a client that has seen more; then a new session begins. (kazoo retries with
  the old session for ever.)
- Names are looked up in the background, and known addresses are tried while DNS fails. (kazoo looks up all names before
  each round, without a limit.)
- The time that one address gets to accept a connection grows from round to round, but is never more than half of what
  is left of the lease.
- A server that closes each connection at the same request is asked after pauses. (For kazoo a handshake is a success.)
- A connection can be dropped from another thread, closed within a timeout, and abandoned after a fork.
"""

from __future__ import annotations

import contextlib
import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from django_zklock.zk.waiting import DaemonCall, Deadline
from django_zklock.zk.wire.options import (
    KAZOO_OPTIONS,
    MAX_READS_PER_REQUEST,
    MAX_REQUEST,
    ConnectionOptions,
    parse_acl,
)

if TYPE_CHECKING:
    from kazoo.exceptions import (
        BadVersionError,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
    )
    from kazoo.protocol.states import ZnodeStat

    from django_zklock.zk.wire.client import TESTED_KAZOO, Wire, WireListener, WirePort, untested_kazoo
    from django_zklock.zk.wire.requests import Read, Reply, Write, creation_size, is_temporary

# The modules of the names that need kazoo, and what a first connection imports itself. They are imported at the first
# use of any of the names, so that a process without locks does not import kazoo.
_HOMES = (
    "encodings.idna",
    "kazoo.exceptions",
    "kazoo.protocol.states",
    "django_zklock.zk.wire.client",
    "django_zklock.zk.wire.requests",
)

__all__ = [
    "KAZOO_OPTIONS", "MAX_READS_PER_REQUEST", "MAX_REQUEST", "TESTED_KAZOO", "BadVersionError", "ConnectionOptions",
    "KazooException", "NoAuthError", "NoNodeError", "NodeExistsError", "NotEmptyError", "Read", "Reply", "Wire",
    "WireListener", "WirePort", "Write", "ZnodeStat", "creation_size", "is_temporary", "parse_acl", "untested_kazoo",
]  # fmt: skip


# Held during that import, and by a thread that forks. CPython does not release the lock of a module that is being
# imported by a thread that the child does not have: the child would wait for it for ever.
_importing = threading.RLock()


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        # In another thread: a signal handler may interrupt this one and take a lock, and would meet half a module here.
        # It waits instead, as this thread does.
        DaemonCall(_import_all).result(Deadline(None))
    except RuntimeError:  # no thread can be started
        _import_all()
    return globals()[name]


def _import_all() -> None:
    """Import all modules at once: a later import could run while a caller holds a lock."""
    with _importing:
        homes = [vars(import_module(home)) for home in _HOMES]
        globals().update({each: home[each] for home in homes for each in __all__ if each in home})


def _after_fork_in_child() -> None:
    # A server in C, such as uWSGI, may fork without the call before.
    with contextlib.suppress(RuntimeError):
        _importing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_after_fork_in_child
    )
