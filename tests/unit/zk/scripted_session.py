"""A session and its wire whose every answer is written in the test."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.contender import ANY_GUID, Contender, State
from django_zklock.zk.listing import SharedListing
from django_zklock.zk.node_data import Identity
from django_zklock.zk.place import LockPath, Place
from django_zklock.zk.queue import EXCLUSIVE, Kind, Node, Rule, name_prefix, parse_name, sort_by_sequence
from django_zklock.zk.strays import Strays
from django_zklock.zk.system import MACHINE
from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire import Read

logger = logging.getLogger("tests.scripted_session")

SESSION = 77
# The session of everybody else.
OTHERS = 88


def stat(czxid: int = 1, owner: int = SESSION, version: int = 0) -> ZnodeStat:
    """Return the stat of a node of that session."""
    return ZnodeStat(czxid, czxid, 0, 0, version, 0, 0, owner, 0, 0, czxid)


def data(host: str = "elsewhere") -> bytes:
    """Return what the node of a process of ours says."""
    return Identity(host=host, pid=1).encode()


def other(sequence: int, kind: Kind = Kind.EXCLUSIVE, limit: int | None = None) -> str:
    """Return the name of a node of ours in another process."""
    return name_prefix(f"0f8fad5b-d9cb-869f-a165-{sequence:012}", kind, limit) + f"{sequence:010d}"


def curators(sequence: int, kind: Kind) -> str:
    """Return the name of a node of Curator."""
    return name_prefix(f"0f8fad5b-d9cb-469f-a165-{sequence:012}", kind) + f"{sequence:010d}"


def parse_names(names: Iterable[str]) -> list[Node]:
    """Return the nodes with known names, in the order of their sequence numbers."""
    return sort_by_sequence(node for name in names if (node := parse_name(name)))[0]


class AllQueues:
    """The queues that a session knows: all of them, so that no parent is created unless it is missing."""

    def __contains__(self, _path: str) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def add(self, path: str) -> None: ...

    def discard(self, path: str) -> None: ...


class Script:
    """Stands for a session and for its wire: requests pile up until the test answers them, the first one first.

    ``watches`` are those that the server has, by path; those of children by the path with a slash at its end.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self.clock = clock
        self.system = MACHINE
        self.connected = True
        self.pid = os.getpid()
        self.epoch = 0
        self.lease_expired = self.lease_is_short = False
        self.closing = False
        self.ended: str | None = None
        self.start_failure: Exception | None = None
        self.restoring = False
        # What is asked again when the test says so.
        self.put_off: list[Callable[[], object]] = []
        self._synced: bool | None = None
        self._when_synced: list[Callable[[], object]] = []
        self.id: int | None = SESSION
        self.server = self.peer = "here"
        self.known_queues: Any = AllQueues()
        self.deleting: set[str] = set()
        # It has no room; and where contenders go then.
        self.full = False
        self.next_session: Script | Exception | None = None
        self.used = self.left_behind = 0
        # The node of the contender of `contend` takes one of the budget.
        self.path_overhead = 1 - len(f"/k/{name_prefix(ANY_GUID, Kind.EXCLUSIVE)}")
        self.listeners: dict[Any, None] = {}
        self.strays_found: list[tuple[str, ...]] = []
        self.to_watch: dict[Callable[[], object], None] = {}
        self.timeout = 15.0
        wire: Any = self
        self.strays = Strays(
            wire, self.clock, found=lambda nodes: self.strays_found.append(tuple(nodes)), retry=self.retry_later
        )
        self.requests: list[tuple[str, Any, Any]] = []
        self.watches: dict[str, list[Callable[[bool], None]]] = {}
        # Those among them that are not answered yet, so that they end with the connection.
        self._unset: list[tuple[str, Any]] = []
        self.wire = self
        self.shared: dict[str, Any] = {}
        # What runs before the next write, once :meth:`hold_back` was called; at once before that.
        self.posted: list[Callable[[], object]] | None = None

    @property
    def watching(self) -> bool:
        return self.connected and not self.restoring

    def notify(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("event=listener_failed method=%r", callback)

    def post(self, call: Callable[[], object]) -> None:
        if self.posted is None:
            call()
        else:
            self.posted.append(call)

    def listing(self, path: str) -> SharedListing[Place]:
        session: Any = self
        listing = session.shared[path] = session.shared.get(path) or SharedListing(session, path)
        return listing

    def has_room(self, _size: int) -> bool:
        return not self.full

    def overflow(self, _size: int) -> Script:
        assert self.next_session is not None
        if isinstance(self.next_session, Exception):
            raise self.next_session
        return self.next_session

    def add_listener(self, listener: Any) -> None:
        self.listeners[listener] = None

    def create(self, stems: Sequence[str], data: bytes, reply: Any) -> None:
        """Create one node, or several by a transaction."""
        self.requests.append(("create", stems[0], reply) if len(stems) == 1 else ("create_all", list(stems), reply))

    def ensure(self, path: str, data: bytes, reply: Any, *, container: bool, with_ancestors: bool = True) -> None:
        self.requests.append(("ensure" if with_ancestors else "ensure_last", container, reply))

    def children(self, path: str, reply: Any) -> None:
        self.requests.append(("children", path, reply))

    def get(self, path: str, reply: Any) -> None:
        self.requests.append(("get", path, reply))

    def confirm(self, paths: Sequence[str], reply: Any) -> None:
        self.requests.append(("confirm", tuple(paths), reply))

    def read_many(self, reads: Sequence[Read], reply: Any) -> None:
        self.requests.append(("read_many", [(read.path, read.children) for read in reads], reply))

    def watch(self, path: str, reply: Any, watcher: Any, *, children: bool = False) -> Any:
        place = f"{path}/" if children else path
        self.watches.setdefault(place, []).append(watcher)
        self._unset.append((place, watcher))

        def answered(value: Any, error: Any) -> None:
            self._unset.remove((place, watcher))
            if error is not None:
                self._drop(place, watcher)
            reply(value, error)

        self.requests.append(("children" if children else "get", path, answered))
        return lambda: self._drop(place, watcher)

    def set(self, path: str, data: bytes, reply: Any, *, version: int = -1) -> None:
        self.requests.append(("set", (path, version), reply))

    def delete(self, path: str, reply: Any) -> None:
        self.requests.append(("delete", path, reply))

    def delete_if_all_exist(self, path: str, others: Sequence[str], reply: Any) -> None:
        self.requests.append(("delete_if_all_exist", path, reply))

    def catch_up(self, call: Callable[[], object] | None = None) -> None:
        # As a session does it: once for each connection.
        if self._synced:
            if call is not None:
                call()
            return
        if call is not None:
            self._when_synced.append(call)
        if self._synced is None:
            self._synced = False
            self.requests.append(("sync", "/", partial(self._sync_answered, self.epoch)))

    def _sync_answered(self, epoch: int, _value: object, error: Any) -> None:
        if epoch != self.epoch:
            return
        if error is not None:
            self._synced = None
            return
        self._synced = True
        calls, self._when_synced = self._when_synced, []
        for call in calls:
            call()

    def retry_later(self, call: Callable[[], object], _error: Any) -> None:
        if call not in self.put_off:
            self.put_off.append(call)

    def prove(self) -> None:
        if self.connected and (self.lease_expired or self.lease_is_short):
            self.requests.append(("write", None, None))

    def regain(self, request: Any, reply: Any) -> None:
        """Ask for another connection if the write renews nothing; the test breaks this one if it is to be had."""

        def answered(value: Any, error: Any) -> None:
            if self.lease_expired:
                self.requests.append(("drop", None, None))
            else:
                reply(value, error)

        self.prove()
        request(answered)

    def _drop(self, place: str, watcher: Any) -> None:
        if watcher in self.watches.get(place, ()):
            self.watches[place].remove(watcher)
            if not self.watches[place]:
                del self.watches[place]

    # For the test.

    def hold_back(self) -> None:
        """Keep what is posted from now on, until :meth:`flush`."""
        self.posted = []

    def flush(self) -> None:
        """Run what is posted, and what that posts."""
        while self.posted:
            self.posted.pop(0)()

    @property
    def asked(self) -> list[str]:
        return [name for name, _, _ in self.requests]

    def answer(self, expected: str, value: Any = None, error: Any = None) -> Any:
        """Answer the first request, which is one of that name; return what it asks about."""
        name, what, reply = self.requests.pop(0)
        assert name == expected
        if reply is not None:
            reply(value, error)
        return what

    def answer_get(self, name: str, value: Any = None, error: Any = None) -> None:
        """Answer the first read of the node of that name."""
        place = next(
            place for place, (kind, what, _) in enumerate(self.requests) if kind == "get" and what.endswith(f"/{name}")
        )
        _, _, reply = self.requests.pop(place)
        reply(value, error)

    def tell(self, place: str, *, deleted: bool) -> None:
        """Fire all watches there."""
        for watcher in self.watches.pop(place):
            watcher(deleted)

    def ask_again(self) -> None:
        """End the pause after a refusal that passes."""
        calls, self.put_off = self.put_off, []
        assert calls, "nothing is to be asked again"
        for call in calls:
            call()

    def break_connection(self) -> None:
        """Lose the connection; those watches stay that were set."""
        self.connected = False
        self.epoch += 1
        self._forget()
        self.deleting.clear()
        self.strays.disconnected()
        for listener in list(self.listeners):
            listener.suspended()

    def reconnect(self) -> None:
        self.connected = True
        self.heartbeat()
        for listener in list(self.listeners):
            listener.resumed()

    def restored(self) -> None:
        """Tell the listeners that the server has all watches again."""
        self.restoring = False
        for listener in list(self.listeners):
            listener.watches_restored()

    def heartbeat(self) -> None:
        """Let the listeners look after what they hold; a real session also limits how much is asked at once."""
        for listener in list(self.listeners):
            listener.heartbeat()
        calls, self.to_watch = self.to_watch, {}
        for call in calls:
            call()
        waits = ((each.path, each.blockers) for each in self.shared.values())
        self.strays.check(((path, nodes) for path, nodes in waits if nodes), self.timeout)

    def end_session(self, reason: str = "expired") -> None:
        """End the session; :meth:`reconnect` begins the next one."""
        self.connected = False
        self.epoch += 1
        self.id = (self.id or SESSION) + 1
        self._forget()
        self.watches.clear()
        self.deleting.clear()
        for listener in list(self.listeners):
            listener.session_ended(reason)

    def _forget(self) -> None:
        self.requests.clear()
        for listing in self.shared.values():
            listing.disconnected()
        unset, self._unset = self._unset, []
        for place, watcher in unset:
            self._drop(place, watcher)
        self.put_off.clear()
        self._when_synced.clear()
        self._synced = None


def contend(
    script: Script, rule: Rule = EXCLUSIVE, *, wait: bool = True, notified: list[Any] | None = None
) -> Contender:
    """Return a contender that has sent what it sends first; ``notified`` grows with each notification."""
    notes = [] if notified is None else notified
    session: Any = script
    contender = Contender(session, [LockPath("/k")], rule, data=data(), wait=wait, notify=lambda: notes.append(None))
    contender.join()
    return contender


def create(script: Script, sequence: int = 5, czxid: int = 50) -> str:
    """Answer a create; return the node's name."""
    stem = script.requests[0][1].rpartition("/")[2]
    name = f"{stem}{sequence:010d}"
    script.answer("create", ([name], czxid))
    return name


def join_behind(script: Script, *before: str, rule: Rule = EXCLUSIVE, sequence: int = 5) -> tuple[Contender, str]:
    """Return a contender that has found these nodes before its own, and the name of that; the watches are asked for."""
    contender = contend(script, rule)
    name = create(script, sequence)
    script.answer("children", [name, *before])
    assert contender.state is State.WAITING
    return contender, name


def settle(script: Script, own: str, owners: dict[str, int] | None = None) -> None:
    """Answer every read that is under way, as if all nodes were there."""
    while "get" in script.asked:
        path = next(what for name, what, _ in script.requests if name == "get")
        name = path.rpartition("/")[2]
        owner = SESSION if name == own else (owners or {}).get(name, OTHERS)
        if owner == SESSION:
            nobody: Any = None
            script.listing("/k").local.setdefault(name, Place(nobody, "/k", b""))
        script.answer_get(name, (data(), stat(1, owner)))


def hold(script: Script) -> tuple[Contender, str]:
    """Return a contender that holds, and the name of its node."""
    contender = contend(script)
    name = create(script)
    script.answer("children", [name])
    assert contender.state is State.HELD
    return contender, name


def wait_behind(script: Script, *before: str, rule: Rule = EXCLUSIVE) -> tuple[Contender, str]:
    """Return a contender that waits behind these nodes, and the name of its own; all watches are set."""
    contender, name = join_behind(script, *before, rule=rule)
    settle(script, name)
    return contender, name
