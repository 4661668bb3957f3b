"""Servers that replicate the log of a leader, which a majority has elected. An old leader may not know that yet.

What a leader does alone it does at once: it plans a write, answers a ``sync``, and counts the time of sessions. What
needs another server is a step of the world: that a follower takes an entry, that the leader hears of it, that a
follower applies what is committed. So any of them may come late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kazoo.protocol.connection import CHANGED_EVENT, CHILD_EVENT, DELETED_EVENT
from kazoo.protocol.serialization import Create2, SetData, Transaction

from tests.simulation.tree import Change, Entry, Tree, name_of, parent_of, plan

if TYPE_CHECKING:
    from kazoo.exceptions import KazooException

    from tests.simulation.link import Link
    from tests.simulation.network import Network

# Seconds. A session has the least number of ticks that the package allows.
SESSION_TIMEOUT = 10.0
TICK = SESSION_TIMEOUT / 6.5
# A server that hears nothing of its leader for so long looks for another one, and a leader without a majority too.
SYNC_LIMIT = 5 * TICK
# The leader asks for the sessions that have sent something.
PING_INTERVAL = TICK / 2

WatchKey = tuple[str, str]


@dataclass(slots=True)
class Known:
    """What a leader knows of a session: when it has heard of it last, and the connection's server."""

    heard_at: float
    server: Server | None = None


@dataclass(eq=False)
class Server:
    """One server: its log, the tree of what it has applied, its connections and watches, and its leader."""

    name: str
    ensemble: Ensemble
    log: list[Entry] = field(default_factory=list)
    # How many entries of the log are applied to the tree.
    applied: int = 0
    tree: Tree = field(default_factory=Tree)
    leader: Server | None = None
    epoch: int = 0
    is_frozen: bool = False
    # A follower that answers its clients, and takes nothing from its leader for now.
    lags: bool = False
    # Changes that no other server has, and that this one keeps (ZOOKEEPER-4712).
    strays: list[tuple[Change, int]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    watches: dict[WatchKey, dict[Link, None]] = field(default_factory=dict)
    # The sessions that have sent something since the last ping of the leader.
    heard: set[int] = field(default_factory=set)
    reported_at: float = 0.0
    # Since when it hears nothing of its leader, or, as a leader, of a majority.
    alone_since: float | None = None
    # Of a leader: the tree with all that it has proposed, what each follower has, what is committed, and the sessions.
    head: Tree = field(default_factory=Tree)
    acked: dict[str, int] = field(default_factory=dict)
    committed: int = 0
    sessions: dict[int, Known] = field(default_factory=dict)
    counter: int = 0

    def __repr__(self) -> str:
        return f"<server {self.name}>"

    @property
    def zxid(self) -> int:
        """The newest transaction that it has applied."""
        return self.log[self.applied - 1].zxid if self.applied else 0

    @property
    def newest(self) -> int:
        """The newest transaction that it has written."""
        return self.log[-1].zxid if self.log else 0

    @property
    def leads(self) -> bool:
        """Whether it believes to be the leader."""
        return self.leader is self

    def reaches(self, other: Server) -> bool:
        """Whether both run and are not cut off from each other."""
        if self is other:
            return True
        return not (self.is_frozen or other.is_frozen) and self.ensemble.network.connects(self.name, other.name)

    @property
    def is_linked(self) -> bool:
        """Whether its leader hears it, and leads it still."""
        leader = self.leader
        return leader is not None and leader.leads and leader.epoch == self.epoch and self.reaches(leader)

    # A leader.

    def propose(self, changes: Sequence[Change], *, opens: int | None = None, closes: int | None = None) -> int:
        """Write a transaction, and return its number."""
        self.counter += 1
        entry = Entry((self.epoch << 32) | self.counter, tuple(changes), opens, closes)
        self.log.append(entry)
        self.head.apply(entry)
        self._count()
        return entry.zxid

    def _count(self) -> None:
        """Commit what a majority has."""
        others = [self.acked.get(each.name, 0) for each in self.ensemble.servers if each is not self]
        lengths = sorted([len(self.log), *others], reverse=True)
        self.committed = max(self.committed, lengths[len(lengths) // 2])
        while self.applied < self.committed:
            self.apply()

    def hear(self, follower: Server) -> None:
        """Take the acknowledgement of a follower, which may come late."""
        self.acked[follower.name] = len(follower.log)
        self._count()

    def expire(self, now: float) -> None:
        """End the sessions of which it has heard nothing for their timeout."""
        for session in [each for each, known in self.sessions.items() if now >= known.heard_at + SESSION_TIMEOUT]:
            self.ensemble.note(self.name, self.name, f"ends session {session:x}")
            self.end_session(session)

    @property
    def next_end(self) -> float:
        """When the first of the sessions ends, if it hears nothing of it; it must have sessions."""
        return min(known.heard_at for known in self.sessions.values()) + SESSION_TIMEOUT

    def end_session(self, session: int) -> int:
        """Delete the nodes of a session, and close its connection."""
        del self.sessions[session]
        return self.propose([Change("close", owner=session)], closes=session)

    # A follower.

    def replicate(self) -> None:
        """Take the next entry of the leader."""
        assert self.leader is not None
        self.log.append(self.leader.log[len(self.log)])

    @property
    def may_apply(self) -> bool:
        """Whether the leader has told it, or will, that more is committed."""
        leader = self.leader
        return leader is not None and not self.leads and self.applied < min(leader.committed, len(self.log))

    def apply(self) -> None:
        """Apply one entry, and answer and notify the clients that wait for it."""
        entry = self.log[self.applied]
        self.applied += 1
        self.tree.apply(entry, self._touch)
        for link in list(self.links):
            if entry.closes is not None and link.session == entry.closes:
                link.session_closed()
        for link in list(self.links):
            link.answer_owed()

    def report(self, now: float) -> None:
        """Answer the leader's ping: these sessions have sent something."""
        if self.leader is not None and not self.leads and self.is_linked and now - self.reported_at >= PING_INTERVAL:
            self.reported_at = now
            for session in self.heard:
                if session in self.leader.sessions:
                    self.leader.sessions[session].heard_at = now
            self.heard.clear()

    # Elections.

    def look(self) -> None:
        """Look for a leader, and close all connections."""
        self.ensemble.note(self.name, self.name, "looks for a leader")
        self._close_links()
        self.leader = self.alone_since = None
        self.sessions = {}

    def follow(self, leader: Server) -> None:
        """Take over the log of a leader, and what is committed of it."""
        self._close_links()
        common = len(leader.log) if self is leader else _common(self.log, leader.log)
        if self.ensemble.keeps_strays:
            lost = [(change, entry.zxid) for entry in self.log[common:] for change in entry.changes]
            self.strays += [each for each in lost if each[0].what == "create" and each[0].owner]
        if common < self.applied or self is leader or self.strays:
            self.applied, self.tree = 0, Tree()
        self.leader, self.epoch, self.alone_since = leader, leader.epoch, None
        self.sessions, self.acked = {}, {}
        self.log = list(leader.log)
        if self is not leader:
            while self.applied < leader.committed:
                self.apply()
            leader.hear(self)
        for change, zxid in self.strays:
            self.tree.change(change, zxid)

    def lead(self, epoch: int, now: float) -> None:
        """Begin to lead: all that it has written is committed, and every session has its whole timeout."""
        self.epoch, self.counter = epoch, 0
        self.follow(self)
        self.head = Tree(self.log)
        self.acked = {}
        self.sessions = {}
        for entry in self.log:
            if entry.opens is not None:
                self.sessions[entry.opens] = Known(now)
            if entry.closes is not None:
                self.sessions.pop(entry.closes, None)
        # A majority follows, and has the same log, before anything else happens.
        self.committed = len(self.log)
        while self.applied < self.committed:
            self.apply()

    def watch_leader(self, now: float) -> None:
        """Look for another leader after a while without this one, or without a majority."""
        if self.is_frozen or self.leader is None:
            return
        servers = self.ensemble.servers
        if self.leads:
            near = sum(each.leader is self and self.reaches(each) for each in servers)
            is_alone = 2 * near <= len(servers)
        else:
            is_alone = not self.is_linked
        if not is_alone:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = now
        elif now - self.alone_since > (SYNC_LIMIT if self.leads else self.ensemble.sync_limit):
            self.look()

    def _close_links(self) -> None:
        for link in list(self.links):
            link.close_server()
        self.heard.clear()

    # Watches.

    def _touch(self, what: str, path: str) -> None:
        above = [("children", parent_of(path))]
        if what == "created":
            self._fire(above, CHILD_EVENT)
        elif what == "changed":
            self._fire([("data", path)], CHANGED_EVENT)
        else:
            self._fire([("data", path), ("children", path)], DELETED_EVENT)
            self._fire(above, CHILD_EVENT)

    def _fire(self, keys: Sequence[WatchKey], event: int) -> None:
        told = {link: path for kind, path in keys for link in self.watches.pop((kind, path), {})}
        for link, path in told.items():
            link.send_event(event, path)

    def drop_watches(self, link: Link) -> None:
        """Forget the watches of a connection."""
        for key in list(self.watches):
            self.watches[key].pop(link, None)
            if not self.watches[key]:
                del self.watches[key]


def _common(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            break
        length += 1
    return length


class Ensemble:
    """All servers. ``note`` is called with a sender, a receiver and what is told, for the drawing."""

    def __init__(self, size: int, network: Network, note: Callable[[str, str, str], None], *, leader: int = 0) -> None:
        self.network = network
        self.note = note
        self.keeps_strays = False
        # The nodes that clients of ours may not read, for good.
        self.forbidden: set[str] = set()
        # How long a follower waits for its leader. It may be told at once that the connection is over.
        self.sync_limit = SYNC_LIMIT
        self.servers = [Server(f"server {number + 1}", self) for number in range(size)]
        self.epoch = 0
        self.elections = -1
        # When the newest leader was elected, under which every session has its whole timeout again.
        self.elected_at = 0.0
        self._sessions = 0x1000
        self.elect(self.servers[leader], 0.0)

    def new_session(self) -> int:
        """Return the number of a new session."""
        self._sessions += 1
        return self._sessions

    @property
    def newest_leader(self) -> Server | None:
        """The leader of the newest epoch, if it leads still; it may be cut off."""
        return next((each for each in self.servers if each.leads and each.epoch == self.epoch), None)

    @property
    def head(self) -> Tree:
        """The newest tree that there is: all that was proposed, or, while no server leads, all that was committed."""
        leader = self.newest_leader
        return leader.head if leader is not None else max(self.servers, key=lambda each: each.zxid).tree

    def ended_with_sessions(self) -> set[str]:
        """Return the names of all nodes that any session has made which has ended."""
        log = [entry for each in self.servers for entry in each.log]
        ended = {entry.closes for entry in log if entry.closes is not None}
        changes = [change for entry in log for change in entry.changes]
        return {name_of(each.path) for each in changes if each.what == "create" and each.owner in ended}

    def supporters(self, candidate: Server) -> list[Server]:
        """Return the servers that would elect this one: they look for a leader, reach it, and have written no more."""
        if candidate.leader is not None and self.epoch:
            return []
        return [
            each
            for each in self.servers
            if (each.leader is None or not self.epoch)
            and not each.is_frozen
            and each.reaches(candidate)
            and (each.epoch, each.newest) <= (candidate.epoch, candidate.newest)
        ]

    def may_elect(self, candidate: Server) -> bool:
        """Whether a majority would elect this server."""
        is_free = candidate.leader is None and not candidate.is_frozen and not candidate.strays
        return is_free and 2 * len(self.supporters(candidate)) > len(self.servers)

    def elect(self, leader: Server, now: float) -> None:
        """Let a majority elect this server."""
        supporters = self.supporters(leader)
        self.epoch += 1
        self.elections += 1
        self.elected_at = now
        self.note(leader.name, leader.name, f"leads epoch {self.epoch}")
        leader.lead(self.epoch, now)
        for each in supporters:
            if each is not leader:
                self.join(each, leader)

    def join(self, server: Server, leader: Server) -> None:
        """Let a server follow a leader."""
        self.note(server.name, leader.name, "follows")
        server.follow(leader)

    def leader_for(self, server: Server) -> Server | None:
        """Return the leader that a server which looks for one would find: one that a majority follows."""
        for each in self.servers:
            followers = sum(other.leader is each and other.reaches(each) for other in self.servers)
            if each.leads and each.reaches(server) and each.epoch >= server.epoch and 2 * followers > len(self.servers):
                return each
        return None

    def wipe(self, now: float) -> None:
        """Begin anew, without any data, as after a restart from an empty folder."""
        for each in self.servers:
            each.is_frozen = each.lags = False
            each.look()
            each.log, each.applied, each.tree, each.head, each.strays = [], 0, Tree(), Tree(), []
            each.epoch = 0
        self.network.heal_servers([each.name for each in self.servers])
        self.epoch = 0
        self.elect(self.servers[0], now)

    def write(self, leader: Server, session: int, request: Any) -> tuple[int, Any, KazooException | None]:
        """Return the transaction of a write, its result, and its error, as the leader decides them."""
        changes, result, error = plan(leader.head, session, request)
        zxid = leader.propose(changes)
        if error is None and isinstance(request, Create2):
            result = result, leader.head.nodes[result].stat()
        elif error is None and isinstance(request, SetData):
            result = leader.head.nodes[request.path].stat()
        elif changes and isinstance(request, Transaction):
            result = [
                leader.head.nodes[part.path].stat() if isinstance(part, SetData) else each
                for part, each in zip(request.operations, result, strict=True)
            ]
        return zxid, result, error
