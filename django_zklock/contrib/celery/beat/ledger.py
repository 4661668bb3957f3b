"""When each entry of the schedule was last sent, written down in ZooKeeper by whoever led.

One node for each entry, below the leader's line. An entry is claimed by replacing exactly what the claimer has read
(``setData`` with the version), so of two who hold themselves for the leader one gets to send it, and the other
learns that it was sent. The nodes stay when nobody leads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import keys
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.lock import Lock
from django_zklock.zk.session import Session
from django_zklock.zk.wire import BadVersionError, KazooException, NodeExistsError, NoNodeError, ZnodeStat

NAME = "sent"
VERSION = 1
# Clocks of two hosts may differ; a time further in the future than this many seconds was not written by a leader.
MAX_SKEW = 86400.0


@dataclass(frozen=True)
class Page:
    """What the node of an entry says: when it was sent (seconds since the Unix epoch), in which version of the node."""

    sent: float | None
    version: int


class Ledger:
    """The entries of one schedule; used by one thread, the leader's."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._path = f"{lock.paths[0]}/{NAME}"
        self._pages: dict[str, Page] = {}

    def load(self) -> None:
        """Read what earlier leaders have written.

        Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses.
        """
        reading = _Reading(self._session, self._path)
        self._run(reading)
        self._pages = reading.pages

    def last_sent(self, name: str) -> float | None:
        """Say when an entry was sent for the last time, in seconds since the Unix epoch, as far as we know."""
        page = self._pages.get(keys.escape(name))
        return page.sent if page else None

    def claim(self, name: str, token: int) -> bool:
        """Write down that the entry is sent now, by the holder of ``token``.

        ``False`` if somebody else has written since we read it; :meth:`last_sent` then knows what. Raises
        as :meth:`load`, and if the lead is lost meanwhile; the entry may have been claimed then.
        """
        node = keys.escape(name)
        now = time.time()
        facts = {"v": VERSION, "entry": name, "sent": now, "token": token}
        data = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        claiming = _Claiming(self._session, f"{self._path}/{node}", data, self._pages.get(node))
        self._run(claiming)
        if claiming.page is not None:
            self._pages[node] = claiming.page
        return claiming.claimed

    @property
    def _session(self) -> Session:
        return self._lock.pool.session(self._lock.paths[0])

    def _run(self, errand: _Errand) -> None:
        # The session's own end comes first, and is told.
        timeout = errand.session.timeout + self._lock.pool.options.connect_timeout
        answered = errand.run(timeout)
        error = errand.error
        if answered and error is None:
            return
        place = f"ZooKeeper at {errand.session.server}"
        if isinstance(error, KazooException):
            raise ZkLockError(f"{place} refused: {error!r} at {self._path}", key=self._lock.key) from error
        facts = error or f"no answer within {timeout:g} s"
        raise ZooKeeperUnavailable(f"{place}: {facts}", key=self._lock.key) from error


class _Errand:
    """Some requests that belong together: a tenant of the session, which takes them up again after a reconnect."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.error: Exception | None = None
        self._done = Alarm()
        self._finished = False
        # Grows whenever earlier replies have lost their meaning.
        self._round = 0

    def run(self, timeout: float) -> bool:
        """Do it; ``False`` if it was not done within ``timeout`` seconds."""
        self.session.post(self._begin)
        try:
            return self._done.wait(timeout)
        finally:
            self.session.post(partial(self.session.detach, self))

    def start(self) -> None:
        raise NotImplementedError

    def take_up(self) -> None:
        """Begin again; what was sent before may have been done, or not."""
        raise NotImplementedError

    # Tenant.

    def suspended(self) -> None:
        self._round += 1

    def resumed(self) -> None:
        if not self._finished:
            self.take_up()

    def session_ended(self, reason: str, /) -> None:
        self.finish(ConnectionError(reason))

    def unavailable(self, reason: str, /) -> None:
        self.finish(ConnectionError(reason))

    def heartbeat(self) -> None: ...

    def lose(self, reason: str, /) -> None:
        self.finish(ConnectionError(reason))

    # For those who do it.

    def finish(self, error: Exception | None = None) -> None:
        if not self._finished:
            self.error = error
            self._finished = True
            self._done.ring()

    def reply(self, use: Callable[[Any, KazooException | None], None]) -> Callable[[Any, KazooException | None], None]:
        """Give what a request is answered to, which is ``use`` as long as the answer counts."""
        asked = self._round

        def answered(value: Any, error: KazooException | None) -> None:
            if asked == self._round and not self._finished:
                use(value, error)

        return answered

    def _begin(self) -> None:
        self.session.attach(self)
        if self.session.connected and not self._finished:
            self.start()


class _Reading(_Errand):
    """Reads every page."""

    def __init__(self, session: Session, path: str) -> None:
        super().__init__(session)
        self.pages: dict[str, Page] = {}
        self._path = path
        self._missing: set[str] = set()

    def start(self) -> None:
        self.pages.clear()
        # We may talk to another server than the one that has told us of the end of the last leader.
        self.session.wire.sync(self._path)
        self.session.wire.children(self._path, self.reply(self._listed))

    take_up = start

    def _listed(self, names: list[str] | None, error: KazooException | None) -> None:
        if error is not None and not isinstance(error, NoNodeError):
            self.finish(error)
            return
        self._missing = set(names or ())
        for name in names or ():
            self.session.wire.get(f"{self._path}/{name}", self.reply(partial(self._read, name)))
        if not self._missing:
            self.finish()

    def _read(self, name: str, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if error is not None and not isinstance(error, NoNodeError):
            self.finish(error)
            return
        if value is not None:
            self.pages[name] = _page(*value)
        self._missing.discard(name)
        if not self._missing:
            self.finish()


class _Claiming(_Errand):
    """Writes one page, if it still says what ``page`` does."""

    def __init__(self, session: Session, path: str, data: bytes, page: Page | None) -> None:
        super().__init__(session)
        self.claimed = False
        # What the node says, by our own hand or another's.
        self.page = page
        self._path = path
        self._data = data
        self._version = page.version if page else None

    def start(self) -> None:
        wire = self.session.wire
        if self._version is None:
            wire.ensure(self._path, self._data, self.reply(self._created), container=False)
        else:
            wire.set(self._path, self._data, self.reply(self._written), version=self._version)

    def take_up(self) -> None:
        self.session.wire.sync(self._path)
        self.session.wire.get(self._path, self.reply(self._looked))

    def _created(self, _value: object, error: KazooException | None) -> None:
        if error is None:
            self._claimed(0)
        elif isinstance(error, NodeExistsError):
            self.take_up()
        else:
            self.finish(error)

    def _written(self, stat: ZnodeStat | None, error: KazooException | None) -> None:
        if stat is not None:
            self._claimed(stat.version)
        elif isinstance(error, (BadVersionError, NoNodeError)):
            self.take_up()
        else:
            self.finish(error)

    def _looked(self, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if value is None:
            if isinstance(error, NoNodeError):
                # Never there, or deleted by hand, and nobody has written since.
                self._version = None
                self.start()
            else:
                self.finish(error)
        elif value[0] == self._data:
            self._claimed(value[1].version)
        elif value[1].version == self._version:
            self.start()
        else:
            self.page = _page(*value)
            self.finish()

    def _claimed(self, version: int) -> None:
        self.claimed = True
        self.page = _page_of(self._data, version)
        self.finish()


def _page(data: bytes, stat: ZnodeStat) -> Page:
    return _page_of(data, stat.version)


def _page_of(data: bytes, version: int) -> Page:
    # Anybody with access to ZooKeeper can write there: what makes no sense says nothing.
    try:
        facts = json.loads(data)
        sent = float(facts["sent"]) if facts["v"] == VERSION else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Page(None, version)
    return Page(sent if sent is not None and 0.0 < sent < time.time() + MAX_SKEW else None, version)
