"""kazoo as a transport: the only package that knows kazoo, and the only one that touches its privates.

What kazoo gives us is the connection: servers, reconnects, TLS, SASL, the session handshake and the codec.
What is changed here, each with a test in ``tests/zk/test_wire.py`` that fails when kazoo does:

- requests go to the connection's queue with our own reply object, so that replies, watch events and state
  changes all arrive on the connection's thread, in the order of the wire; kazoo's two worker threads are
  not started;
- all queued requests leave in one write, and one wake-up byte stands for any number of them (kazoo writes one
  byte a request into a socket pair that blocks after some 280);
- an error that kazoo has no name for is an answer, and not the end of the connection's thread;
- the negotiated session timeout and the send time of the newest answered request are recorded;
- a connection can be dropped from another thread, closed within a bound, and forgotten after a fork.
"""

from __future__ import annotations

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnimplementedError,
)
from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.wire.client import Wire, WireListener
from django_zklock.zk.wire.multiread import MOST as READS_A_REQUEST
from django_zklock.zk.wire.multiread import Read
from django_zklock.zk.wire.options import CHECKS_HOST_NAMES, EXTRA_OPTIONS, ConnectionOptions, parse_acl

__all__ = [
    "CHECKS_HOST_NAMES",
    "EXTRA_OPTIONS",
    "READS_A_REQUEST",
    "BadVersionError",
    "ConnectionOptions",
    "KazooException",
    "NoAuthError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "Read",
    "UnimplementedError",
    "Wire",
    "WireListener",
    "ZnodeStat",
    "parse_acl",
]
