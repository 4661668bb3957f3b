"""The server without its sockets: the order of all transactions, and the sessions."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from . import multi
from .jute import MalformedError, Reader
from .network import Network
from .protocol import Opcode, RefusedError
from .replica import LaggingReplica, Replica
from .requestlog import RequestLog
from .sessions import ServerSession, Sessions
from .tree import Change, Deleted, Transaction, Tree
from .writes import WRITES, Author
from .znode import NodeKind


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Limits of the session timeout, other times, all in seconds, and the zxid before the first transaction.

    ``sessionless_timeout`` is for a connection without a session, ``reap_interval`` for empty containers.
    """

    min_session_timeout: float = 0.2
    max_session_timeout: float = 60.0
    sessionless_timeout: float = 10.0
    reap_interval: float = 60.0
    zxid: int = 0


class Service:
    """Orders the transactions of all clients by one counter, the zxid, and keeps the sessions.

    It belongs to the thread of the event loop and outlives it: after a restart of the server it still has its nodes
    and its sessions.
    """

    def __init__(self, options: ServiceOptions) -> None:
        """Start with an empty tree."""
        self.options = options
        self.newest = Replica(Tree(), options.zxid)
        self.network = Network()
        self.requests = RequestLog()
        self.sessions = Sessions(self._expire)
        self.followers: list[LaggingReplica] = []
        # While reads lag: the follower that is copied for a new connection.
        self.template: LaggingReplica | None = None
        self._reaper: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timers."""
        self.sessions.resume()
        self._reap_later()

    def stop(self) -> None:
        """Stop the timers."""
        self.sessions.suspend()
        if self._reaper is not None:
            self._reaper.cancel()

    def view(self, seen: int) -> Replica:
        """Return the replica for a new connection; at least at ``seen``, the last zxid that its client has seen."""
        if self.template is None:
            return self.newest
        follower = self.template.copy()
        follower.catch_up(seen)
        self.followers.append(follower)
        return follower

    def drop_view(self, replica: Replica) -> None:
        """Remove the replica of a closed connection."""
        if isinstance(replica, LaggingReplica) and replica in self.followers:
            self.followers.remove(replica)

    def open(self, milliseconds: int) -> ServerSession:
        """Open a session, with the granted timeout nearest to the requested one."""
        session = self.sessions.open(self.granted(milliseconds))
        self.commit()
        return session

    def resume(self, number: int, password: bytes | None, milliseconds: int) -> ServerSession | None:
        """Return the session of a client that reconnects, or None, and close its old connection.

        The old connection is closed even if the password is wrong, as in ZooKeeper 3.8.
        """
        session = self.sessions.get(number)
        if session is None:
            return None
        if session.link is not None:
            session.link.close()
        if password != session.password:
            return None
        session.timeout = self.granted(milliseconds)
        self.sessions.touch(session)
        return session

    def granted(self, milliseconds: int) -> float:
        """Return the granted timeout in seconds for a requested one."""
        return min(max(milliseconds / 1000, self.options.min_session_timeout), self.options.max_session_timeout)

    def end(self, session: ServerSession) -> int:
        """End a session that was closed or has expired, and return the zxid of its end."""
        self.sessions.remove(session)
        mine = self.newest.tree.ephemerals.get(session.id, {})
        zxid = self.commit(*map(Deleted, mine))
        if session.link is not None:
            session.link.close()
        session.ended.set()
        return zxid

    def write(self, opcode: Opcode, reader: Reader, author: Author) -> bytes:
        """Change the tree, and return the body of the reply.

        A refused write takes a zxid too. Raises RefusedError and MalformedError.
        """
        zxid, now = self.newest.zxid + 1, _now()
        tree = self.newest.tree
        try:
            if opcode is Opcode.MULTI:
                changes, body = multi.attempt(reader, tree, author, zxid, now)
                self.commit(*changes, now=now)
                return body
            step = WRITES[opcode](opcode, reader).step(tree, author)
        except (RefusedError, MalformedError):
            self.commit()
            raise
        self.commit(*(() if step.change is None else (step.change,)), now=now)
        return step.reply(tree)

    def commit(self, *changes: Change, now: int | None = None) -> int:
        """Apply changes as one transaction, and return its zxid."""
        transaction = Transaction(self.newest.zxid + 1, _now() if now is None else now, changes)
        self.newest.apply(transaction)
        # A copy, because an event may end its connection, which removes its follower from the list.
        for follower in list(self.followers):
            follower.receive(transaction)
        if self.template is not None:
            self.template.receive(transaction)
        return transaction.zxid

    def reap(self, path: str) -> bool:
        """Remove a container or a TTL node if it is empty; return whether it was."""
        if self.newest.tree[path].children:
            return False
        self.commit(Deleted(path))
        return True

    def _expire(self, session: ServerSession) -> None:
        self.end(session)

    def _reap_later(self) -> None:
        self._reaper = asyncio.get_running_loop().call_later(self.options.reap_interval, self._reap_all)

    def _reap_all(self) -> None:
        """Remove containers that have lost their last child, and TTL nodes that have expired."""
        now = _now()
        for path in list(self.newest.tree.reapable):
            node = self.newest.tree[path]
            # A container that never had a child stays.
            due = node.creations if node.kind is NodeKind.CONTAINER else now - node.changed_at > node.time_to_live
            if due:
                self.reap(path)
        self._reap_later()


def _now() -> int:
    return time.time_ns() // 1_000_000
