"""Which calls of tasks are sent and have not begun: a mark for each, beside the locks of a root.

::

    %sent/<name>             a hash of what will run; its data says that in words, and its version counts the calls that
                             have found it
    %sent/<name>/new-<id>    the message with that id may have been sent
    %sent/<name>/sent-<id>   it was sent

A node and its one child are created and deleted together, and every transaction names the child of its own message. So
what comes late, from a sender or a worker that stood still, finds its own mark or nothing: a version could be that of
another mark, because each begins with 0.

The mark of a message goes before its body begins, and the ensemble has answered that first. So a call that has found it
is followed by a run: at the moment that the leader has given to that call, the body had not begun.

Every client can write anything there, so nothing that is read is trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import node_data, paths, scripts, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import RequestScript, Script, or_error
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import monotonic

logger = DeferredLogger("django_zklock.sent")

# Seconds for the answer about a call that is to be sent. Then it is sent.
MAX_ASK = 1.0
# Seconds after a call without an answer in which no other one waits for one, unless the connection ends or begins.
PAUSE = 5.0
# Seconds after which a sender that has not confirmed its message has died, or lost its connection.
MAX_UNCONFIRMED = 10.0
MAX_TEXT = 1000
MAX_BYTES = 4096
NEW, SENT = "new-", "sent-"
# Of sessions that have not answered: until when nothing is asked, and the connection for which that holds.
_silent: WeakKeyDictionary[Session, tuple[float, int, bool]] = WeakKeyDictionary()
_NAME = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[0-9A-Za-z_.-]{1,200}")


@dataclass(frozen=True)
class Mark:
    """The mark of the message with the id ``id``: ``path`` is the node of what it will run."""

    path: str
    id: str

    @property
    def name(self) -> str:
        """The name of that node."""
        return self.path.rpartition("/")[2]

    @property
    def new(self) -> str:
        """The path of the child while it is not known that the message was sent."""
        return f"{self.path}/{NEW}{self.id}"

    @property
    def sent(self) -> str:
        """The path of the child when the message was sent."""
        return f"{self.path}/{SENT}{self.id}"


def new_mark(pool: Pool, id: str, *facts: object) -> Mark:  # noqa: A002 - what it is called in messages
    """Return the mark of a message that will run what ``facts`` say; its node is the same for equal facts."""
    name = hashlib.sha256(json.dumps([str(each) for each in facts]).encode()).hexdigest()[:32]
    return Mark(f"{pool.options.root}/{paths.SENT}/{name}", id)


def mark_of(pool: Pool, name: object, id: object) -> Mark | None:  # noqa: A002
    """Return the mark with these values, which may be of any message; ``None`` if there is none."""
    if not (isinstance(name, str) and _NAME.fullmatch(name) and isinstance(id, str) and _ID.fullmatch(id)):
        return None
    return Mark(f"{pool.options.root}/{paths.SENT}/{name}", id)


def encode(*, key: str, task: str, max_age: float) -> bytes:
    """Return the data of the node for what will run, the same for all calls of it; ``max_age`` is in seconds."""
    values = {"v": node_data.VERSION, "key": key[:MAX_TEXT], "task": task[:MAX_TEXT], "max_age": max_age}
    return json.dumps(values, separators=(",", ":")).encode()


# The sender.


def claim(pool: Pool, mark: Mark, data: bytes, *, max_age: float) -> str | None:
    """Create ``mark``, or return the id of the message that has one, which was sent and whose body has not begun.

    It is its own id if the mark was created, and ``None`` if the call is to be sent without one: the other message may
    not have been sent, or has waited for ``max_age`` seconds by the ensemble's clock and may be lost. If that is sure
    enough, the mark is taken over.

    Takes one round trip, two if a mark is taken over, and at most ``MAX_ASK`` seconds. Raises ``ZooKeeperUnavailable``
    if there is no answer, at once while the connection is lost, and for ``PAUSE`` seconds after a call that had none;
    ``ZkLockError`` if ZooKeeper refuses.
    """
    session = pool.session(mark.path)
    if session.epoch and not session.connected:
        raise ZooKeeperUnavailable(f"ZooKeeper at {session.wire.server} is not connected")
    until, *connection = _silent.get(session, (0.0, 0, False))
    if monotonic() < until and connection == [session.epoch, session.connected]:
        raise ZooKeeperUnavailable(f"ZooKeeper at {session.wire.server} has not answered a call before this one")
    script = partial(_claim, session, mark, data, max_age)
    try:
        return scripts.run(session, script, action=f"write {mark.path}", timeout=MAX_ASK, mutates=True)
    except ZooKeeperUnavailable:
        _silent[session] = monotonic() + PAUSE, session.epoch, session.connected
        raise


def _claim(session: Session, mark: Mark, data: bytes, max_age: float) -> RequestScript[str | None]:
    nodes = [(mark.path, data), (mark.new, b"")]
    ask = session.wire
    found, made, names = yield [
        # The same data: its stat tells the age by the leader's clock.
        or_error(partial(ask.set, mark.path, data), wire.NoNodeError),
        or_error(partial(ask.replace, [], nodes), wire.NodeExistsError, wire.NoNodeError),
        or_error(partial(ask.children, mark.path), wire.NoNodeError),
    ]
    if isinstance(made, wire.NoNodeError):
        parent = mark.path.rpartition("/")[0]
        yield [or_error(partial(ask.ensure, parent, b"", container=False), wire.NodeExistsError)]
        return (yield from _claim(session, mark, data, max_age))
    name = names[0] if isinstance(names, list) and len(names) == 1 else ""
    # In the second case the answer to the creation was lost with the connection.
    if not isinstance(made, Exception) or name == f"{NEW}{mark.id}":
        return mark.id
    if isinstance(found, Exception) or not name:
        # It was created, or has gone, between two of the requests.
        return None
    age, was_sent = (found.mtime - found.ctime) / 1000, name.startswith(SENT)
    # It is negative where that clock has gone back.
    if 0 <= age <= (max_age if was_sent else MAX_UNCONFIRMED):
        return name.removeprefix(SENT) if was_sent else None
    take_over = partial(ask.replace, [f"{mark.path}/{name}", mark.path], nodes)
    (taken,) = yield [or_error(take_over, wire.NoNodeError, wire.NotEmptyError, wire.NodeExistsError)]
    return None if isinstance(taken, Exception) else mark.id


def confirm(pool: Pool, mark: Mark) -> None:
    """Write that the message was sent, without waiting. If that is lost, later calls are sent until its body begins."""
    session = pool.session(mark.path)

    def send() -> None:
        if session.connected:
            session.wire.replace([mark.new], [(mark.sent, b"")], lambda _value, _error: None)

    session.post(send)


# The worker.


def removal(session: Session, mark: Mark) -> RequestScript[None]:
    """Remove ``mark``, as a part of a script; one that does not exist is no error."""
    # In this order: the sender may confirm it in between.
    removals = [partial(session.wire.replace, [child, mark.path], []) for child in (mark.new, mark.sent)]
    yield [or_error(each, wire.NoNodeError) for each in removals]


def remove(pool: Pool, mark: Mark, *, timeout: float | None) -> None:
    """Remove ``mark``, within ``timeout`` seconds; raises ``ZooKeeperUnavailable`` and ``ZkLockError``."""
    session = pool.session(mark.path)
    scripts.run(session, partial(removal, session, mark), action=f"delete {mark.path}", timeout=timeout, mutates=True)


class Removal(Script):
    """Removes a mark however often the connection breaks, and then calls ``done``, on the connection's thread.

    ``done`` gets the error if ZooKeeper has refused, or if the session was closed.
    """

    __slots__ = ("_done", "_mark")

    def __init__(self, session: Session, mark: Mark, done: Callable[[Exception | None], object] | None = None) -> None:
        super().__init__(session)
        self._mark, self._done = mark, done

    def start(self) -> None:
        """Begin, without waiting; any thread."""
        self.session.post(self._join)

    def _join(self) -> None:
        self.session.add_listener(self)
        if self.session.ended is None:
            self.begin(removal(self.session, self._mark))

    def ended(self, _value: object, error: Exception | None, /) -> None:
        self.session.listeners.pop(self, None)
        if error is not None:
            logger.warning("event=mark_left path=%s id=%s error=%r", self._mark.path, self._mark.id, error)
        if self._done is not None:
            self._done(error)

    def unavailable(self, reason: str, /) -> None:
        if self.session.ended is not None:
            self.stop()
            self.ended(None, ConnectionError(reason))


# Operators.


@dataclass(frozen=True, kw_only=True)
class SentCall:
    """A call that is sent and has not begun. ``since`` is when it was sent, in seconds since the Unix epoch.

    ``task`` is the name of the task, ``key`` the key of its lock, and ``id`` the id of the message. ``saved`` is how
    many calls were made since then; they were not sent, except for those that came before the message was confirmed.
    ``is_confirmed`` is false while it may not have been sent, and ``max_age`` are the seconds after which it is taken
    for lost. ``path`` is the path of its node.
    """

    key: str
    task: str
    id: str
    since: float
    saved: int
    is_confirmed: bool
    max_age: float
    path: str

    @property
    def state(self) -> str:
        """``sent``, ``unconfirmed``, or ``stale`` if the next call is sent and takes over its mark."""
        if time.time() - self.since > (self.max_age if self.is_confirmed else MAX_UNCONFIRMED):
            return "stale"
        return "sent" if self.is_confirmed else "unconfirmed"


def find(pool: Pool, *, timeout: float | None, most: float = math.inf) -> list[SentCall]:
    """Return the calls that are sent and have not begun, by key and task; none if there are more than ``most``.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in ``timeout`` seconds, ``ZkLockError`` if it refuses.
    """
    session, parent = pool.inspection(), f"{pool.options.root}/{paths.SENT}"

    def script() -> RequestScript[list[SentCall]]:
        session.wire.sync(parent)
        (names,) = yield [or_error(partial(session.wire.children, parent), wire.NoNodeError)]
        if isinstance(names, Exception) or len(names) > most:
            return []
        nodes = [f"{parent}/{name}" for name in names]
        contents = yield from scripts.read_many(session, [wire.Read(path) for path in nodes])
        children = yield from scripts.read_many(session, [wire.Read(path, children=True) for path in nodes])
        return list(_decode(nodes, contents, children))

    found = scripts.run(session, script, action=f"read what is in {parent}", timeout=timeout)
    return sorted(found, key=lambda call: (call.key, call.task, call.since))


def count(pool: Pool, *, timeout: float | None) -> int:
    """Return how many calls are sent and have not begun. Raises what :func:`find` raises."""
    session, parent = pool.inspection(), f"{pool.options.root}/{paths.SENT}"

    def script() -> RequestScript[int]:
        (names,) = yield [or_error(partial(session.wire.children, parent), wire.NoNodeError)]
        return 0 if isinstance(names, Exception) else len(names)

    return scripts.run(session, script, action=f"list {parent}", timeout=timeout)


def _decode(nodes: Sequence[str], contents: Sequence[Any], children: Sequence[Any]) -> Iterator[SentCall]:
    for path, content, names in zip(nodes, contents, children, strict=True):
        if not (isinstance(content, tuple) and isinstance(names, list) and len(names) == 1):
            # It has begun meanwhile.
            continue
        data, stat = content
        values = node_data.load(data[:MAX_BYTES], max_bytes=MAX_BYTES) or {}
        key, task = (escape_controls(str(values.get(fact, ""))[:MAX_TEXT]) for fact in ("key", "task"))
        max_age = values.get("max_age")
        yield SentCall(
            key=key,
            task=task,
            id=escape_controls(names[0].removeprefix(NEW).removeprefix(SENT)),
            since=stat.ctime / 1000,
            saved=stat.version,
            is_confirmed=names[0].startswith(SENT),
            max_age=float(max_age) if isinstance(max_age, (int, float)) else 0.0,
            path=path,
        )


def prune(pool: Pool, calls: Sequence[SentCall], *, timeout: float | None) -> None:
    """Remove the marks of ``calls``: the next call of each is sent. Raises what :func:`find` raises."""
    session = pool.inspection()

    def script() -> RequestScript[None]:
        for call in calls:
            yield from removal(session, Mark(call.path, call.id))

    scripts.run(session, script, action="delete marks", timeout=timeout, mutates=True)
