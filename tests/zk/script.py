"""A session and its wire whose every answer is written in the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.identity import Identity
from django_zklock.zk.lookout import Lookout
from django_zklock.zk.nodes import Kind, prefix
from django_zklock.zk.rules import EXCLUSIVE, Rule

SESSION = 77
# The session of everybody else.
OTHERS = 88


def stat(czxid: int = 1, owner: int = SESSION, version: int = 0) -> ZnodeStat:
    """Give the stat of a node of that session."""
    return ZnodeStat(czxid, czxid, 0, 0, version, 0, 0, owner, 0, 0, czxid)


def data(limit: int | None = None, host: str = "elsewhere") -> bytes:
    """Give what the node of a process of ours says."""
    return Identity(host=host, pid=1, limit=limit).encode()


def other(sequence: int, kind: Kind = Kind.EXCLUSIVE) -> str:
    """Give the name of somebody else's node."""
    return prefix(f"0f8fad5b-d9cb-469f-a165-{sequence:012}", kind) + f"{sequence:010d}"


class Script:
    """Stands for a session and for its wire: requests pile up until the test answers them, the first one first.

    ``watches`` are those that the server has, by path; those of children by the path with a slash at its end.
    """

    def __init__(self) -> None:
        self.connected = True
        self.epoch = 0
        self.containers = True
        self.lease_over = False
        self.lease_fresh = True
        self.closing = False
        self.id: int | None = SESSION
        self.server = "here"
        self.departing: set[str] = set()
        self.tenants: dict[Any, None] = {}
        self.requests: list[tuple[str, Any, Any]] = []
        self.watches: dict[str, list[Callable[[bool], None]]] = {}
        self.wire = self
        # Those of the tenants, which a session sends together.
        self.glances = self
        self.lookouts: dict[str, Lookout] = {}
        # What runs before the next write, once :meth:`hold_back` was called; at once before that.
        self.posted: list[Callable[[], object]] | None = None

    def post(self, call: Callable[[], object]) -> None:
        if self.posted is None:
            call()
        else:
            self.posted.append(call)

    def lookout(self, path: str) -> Lookout:
        session: Any = self
        return self.lookouts.setdefault(path, Lookout(session, path))

    def attach(self, tenant: Any) -> None:
        self.tenants[tenant] = None

    def detach(self, tenant: Any) -> None:
        self.tenants.pop(tenant, None)

    def create(self, path: str, data: bytes, reply: Any) -> None:
        self.requests.append(("create", path, reply))

    def create_all(self, stems: Sequence[str], data: bytes, reply: Any) -> None:
        self.requests.append(("create_all", list(stems), reply))

    def ensure(self, path: str, data: bytes, reply: Any, *, container: bool) -> None:
        self.requests.append(("ensure", container, reply))

    def children(self, path: str, reply: Any, watcher: Any = None) -> Any:
        return self._read("children", path, reply, f"{path}/", watcher)

    def get(self, path: str, reply: Any, watcher: Any = None) -> Any:
        return self._read("get", path, reply, path, watcher)

    def want(self, path: str, reply: Any) -> None:
        self.get(path, reply)

    def set(self, path: str, data: bytes, reply: Any, *, version: int = -1) -> None:
        self.requests.append(("set", (path, version), reply))

    def delete(self, path: str, reply: Any) -> None:
        self.requests.append(("delete", path, reply))

    def sync(self, path: str) -> None:
        self.requests.append(("sync", path, None))

    def _read(self, name: str, path: str, reply: Any, place: str, watcher: Any) -> Any:
        if watcher is not None:
            self.watches.setdefault(place, []).append(watcher)

        def answered(value: Any, error: Any) -> None:
            if error is not None:
                self._forget(place, watcher)
            reply(value, error)

        self.requests.append((name, path, answered))
        return lambda: self._forget(place, watcher)

    def _forget(self, place: str, watcher: Any) -> None:
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
        """Answer the first request, which is one of that name; give what it asks about."""
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
        """Have all watches there go off."""
        for watcher in self.watches.pop(place):
            watcher(deleted)

    def break_connection(self) -> None:
        self.connected = False
        self.epoch += 1
        self.lease_fresh = False
        self.requests.clear()
        self.watches.clear()
        self.departing.clear()
        for tenant in list(self.tenants):
            tenant.suspended()

    def reconnect(self) -> None:
        self.connected = self.lease_fresh = True
        for tenant in list(self.tenants):
            tenant.resumed()

    def end_session(self, reason: str = "expired") -> None:
        """End the session; :meth:`reconnect` begins the next one."""
        self.connected = self.lease_fresh = False
        self.epoch += 1
        self.id = (self.id or SESSION) + 1
        self.requests.clear()
        self.watches.clear()
        self.departing.clear()
        for tenant in list(self.tenants):
            tenant.session_ended(reason)


def contend(script: Script, rule: Rule = EXCLUSIVE, *, wait: bool = True, told: list[Any] | None = None) -> Contender:
    """Give a contender that has sent what it sends first; ``told`` grows with each notification."""
    notes = [] if told is None else told
    session: Any = script
    contender = Contender(session, "/k", rule, data=data(rule.limit), wait=wait, notify=lambda: notes.append(None))
    contender.join()
    return contender


def create(script: Script, sequence: int = 5, czxid: int = 50) -> str:
    """Answer a create; give the node's name."""
    stem = script.requests[0][1].rpartition("/")[2]
    name = f"{stem}{sequence:010d}"
    script.answer("create", (name, stat(czxid, script.id or SESSION)))
    return name


def line_up(script: Script, *before: str, rule: Rule = EXCLUSIVE, sequence: int = 5) -> tuple[Contender, str]:
    """Give a contender that has found these nodes before its own, and the name of that; the watches are asked for."""
    contender = contend(script, rule)
    name = create(script, sequence)
    script.answer("children", [name, *before])
    assert contender.state is State.WAITING
    return contender, name


def settle(
    script: Script, own: str, owners: dict[str, int] | None = None, limits: dict[str, int] | None = None
) -> None:
    """Answer every read that is under way, as if all nodes were there."""
    while "get" in script.asked:
        path = next(what for name, what, _ in script.requests if name == "get")
        name = path.rpartition("/")[2]
        owner = SESSION if name == own else (owners or {}).get(name, OTHERS)
        script.answer_get(name, (data((limits or {}).get(name)), stat(1, owner)))
