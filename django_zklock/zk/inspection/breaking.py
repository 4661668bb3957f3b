"""Taking a lock away from whoever holds it.

Whoever it was finds that the lock is lost; that does not end what runs there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from django_zklock.exceptions import NotHeld
from django_zklock.zk import display, inquiry, keys, label
from django_zklock.zk.inquiry import Request, Script
from django_zklock.zk.label import Label, Removal
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import BadVersionError, NoAuthError, NoNodeError, Read, Wire, ZnodeStat

logger = logging.getLogger("django_zklock.breaking")


def remove(pool: Pool, node: str, *, token: int, why: str, timeout: float) -> None:
    """Delete the node at the full path ``node`` if it is still the one with that fencing token, for the reason ``why``.

    A holder has lost its lock by that, and its loss names the reason if the line lets us write it there. Who waits gets
    in line again, at its end. Takes at most ``timeout`` seconds. Raises ``NotHeld`` if that node is gone,
    ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses, ``ValueError`` without
    a reason.
    """
    if not why.strip():
        raise ValueError("say why the lock is taken away")
    line, _, name = node.rpartition("/")
    # The session of its line, for the path of a node is that of its line and a name.
    session = pool.session(line)
    removing = _Removing(session.wire, line, Removal(node=name, why=why), token)
    inquiry.ask(session, removing.script, aim=f"delete {node}", timeout=timeout, changes=True)
    logger.warning("event=removed path=%s node=%s token=%s reason=%r", line, name, token, why)


@dataclass(frozen=True, kw_only=True)
class Removed:
    """Who was last removed from a line: the name of the node, why, and when, in seconds since the Unix epoch."""

    node: str
    why: str
    at: float


def last_removed(pool: Pool, line: str, *, timeout: float | None) -> Removed | None:
    """Give who was last removed from the line at that path; ``None`` if nobody was since the line was made.

    A line goes a while after everybody in it. Takes at most ``timeout`` seconds; raises as :func:`remove`.
    """
    session = pool.session(line)
    script = partial(inquiry.read_many, session, [Read(line)])
    (found,) = inquiry.ask(session, script, aim=f"read {line}", timeout=timeout)
    if not isinstance(found, tuple):
        return None
    data, stat = found
    written = label.decode(data)
    if written is None or written.removal is None:
        return None
    return Removed(node=written.removal.node, why=display.visible(written.removal.why), at=stat.mtime / 1000.0)


class _Removing:
    """One removal, for as many attempts as it takes."""

    def __init__(self, wire: Wire, line: str, removal: Removal, token: int) -> None:
        self._wire = wire
        self._line = line
        self._removal = removal
        self._node = f"{line}/{removal.node}"
        self._token = token
        # The node was there, and the answer to its deletion may have been lost with a connection.
        self._sent = False
        self._noting = True

    def script(self) -> Script[None]:
        try:
            (_data, stat), (data, line_stat) = yield [
                partial(self._wire.get, self._node),
                partial(self._wire.get, self._line),
            ]
            if stat.czxid != self._token:
                raise NotHeld(f"{self._node} is another one by now")
            self._sent = True
            yield [self._deletion(stat, data, line_stat)]
        except NoNodeError as error:
            if not self._sent:
                raise NotHeld(f"{self._node} is gone: its owner has let go, or its session has ended") from error
        except BadVersionError:
            # Its owner, or whoever asks it to let go, has written to it meanwhile.
            yield from self._again(noting=self._noting)
        except NoAuthError:
            # Perhaps it is only the note that we may not write.
            if not self._noting:
                raise
            yield from self._again(noting=False)

    def _again(self, *, noting: bool) -> Script[None]:
        self._sent, self._noting = False, noting
        yield from self.script()

    def _deletion(self, stat: ZnodeStat, data: bytes, line_stat: ZnodeStat) -> Request:
        key = self._key(data) if self._noting else None
        if key is None:
            return partial(self._wire.delete, self._node, version=stat.version)
        note = self._line, Label(key=key, removal=self._removal).encode(), line_stat.version
        return partial(self._wire.delete_noted, self._node, stat.version, note)

    def _key(self, data: bytes) -> str | None:
        """Give the key that the line's data tells, or none; ``None`` if that is somebody else's, to be left alone."""
        written = label.decode(data)
        if written is None:
            return None
        return written.key if not written.key or keys.leads_to(written.key, self._line.rpartition("/")[2]) else None
