"""The server without its sockets: one order of all changes, the sessions, and what follows from both."""

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
from .sessions import Session, Sessions
from .tree import Change, Deleted, Transaction, Tree
from .writes import WRITES, Author
from .znode import Kind


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How long sessions, and connections without one, may be silent, and how often empty containers are looked for.

    In seconds. And the transaction after which the counting begins.
    """

    min_session_timeout: float = 0.2
    max_session_timeout: float = 60.0
    sessionless_timeout: float = 10.0
    reap_interval: float = 60.0
    zxid: int = 0


class Service:
    """Orders the changes of all clients by one counter, the zxid, and keeps the sessions.

    It belongs to the thread of the event loop, and outlives it: a server that is stopped and started again still
    has its nodes and its sessions.
    """

    def __init__(self, options: ServiceOptions) -> None:
        """Begin with an empty tree."""
        self.options = options
        self.newest = Replica(Tree(), options.zxid)
        self.network = Network()
        self.requests = RequestLog()
        self.sessions = Sessions(self._expire)
        self.followers: list[LaggingReplica] = []
        # While reads lag: what a new connection begins with a twin of.
        self.model: LaggingReplica | None = None
        self._reaper: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Have time pass."""
        self.sessions.resume()
        self._reap_later()

    def stop(self) -> None:
        """Have time stand still."""
        self.sessions.suspend()
        if self._reaper is not None:
            self._reaper.cancel()

    def view(self, seen: int) -> Replica:
        """Give a new connection what it sees; it is not older than ``seen``, the zxid that its client has seen."""
        if self.model is None:
            return self.newest
        follower = self.model.twin()
        follower.catch_up(seen)
        self.followers.append(follower)
        return follower

    def drop_view(self, replica: Replica) -> None:
        """Forget what a connection saw that is gone."""
        if isinstance(replica, LaggingReplica) and replica in self.followers:
            self.followers.remove(replica)

    def open(self, milliseconds: int) -> Session:
        """Begin a session, with the timeout nearest to the wish."""
        session = self.sessions.open(self.granted(milliseconds))
        self.commit()
        return session

    def resume(self, number: int, password: bytes | None, milliseconds: int) -> Session | None:
        """Find the session of a client that comes back, and close its old connection.

        That ends even if the password turns out to be wrong, as with ZooKeeper 3.8.
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
        """Give the timeout in seconds that a session gets that wishes for this one."""
        return min(max(milliseconds / 1000, self.options.min_session_timeout), self.options.max_session_timeout)

    def end(self, session: Session) -> int:
        """End a session, by its own wish or because it was silent, and give the zxid of that."""
        self.sessions.remove(session)
        mine = self.newest.tree.ephemerals.get(session.id, {})
        zxid = self.commit(*map(Deleted, mine))
        if session.link is not None:
            session.link.close()
        session.ended.set()
        return zxid

    def write(self, opcode: Opcode, reader: Reader, author: Author) -> bytes:
        """Change the tree, and give the body of the reply.

        Every try takes a zxid, done or not. Raises RefusedError and MalformedError.
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
        """Make changes as one transaction, and give its zxid."""
        transaction = Transaction(self.newest.zxid + 1, _now() if now is None else now, changes)
        self.newest.apply(transaction)
        for follower in self.followers:
            follower.receive(transaction)
        if self.model is not None:
            self.model.receive(transaction)
        return transaction.zxid

    def reap(self, path: str) -> bool:
        """Remove a container or a TTL node if it is empty; whether it was."""
        if self.newest.tree[path].children:
            return False
        self.commit(Deleted(path))
        return True

    def _expire(self, session: Session) -> None:
        self.end(session)

    def _reap_later(self) -> None:
        self._reaper = asyncio.get_running_loop().call_later(self.options.reap_interval, self._reap_all)

    def _reap_all(self) -> None:
        """Remove containers that have lost their last child, and nodes older than their time to live."""
        now = _now()
        for path in list(self.newest.tree.reapable):
            node = self.newest.tree[path]
            # A container that never had a child is still waiting for its first one.
            due = node.creations if node.kind is Kind.CONTAINER else now - node.changed_at > node.time_to_live
            if due:
                self.reap(path)
        self._reap_later()


def _now() -> int:
    return time.time_ns() // 1_000_000
