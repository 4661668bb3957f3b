"""When each entry of the schedule was last sent, stored in ZooKeeper by the leader.

Each entry has a node below the queue of the leader's lock. A beat claims an entry by replacing exactly the version
that it has read. If two beats believe to lead, one of them sends the entry, and the other learns that it was sent. The
nodes stay when no beat runs.

Times come from three clocks. ``sent`` is on the clock of the beat that has sent the entry, which has found it due by
that clock. The node's ``mtime`` is the same moment on ZooKeeper's clock. By its own writes a beat measures how far its
clock is ahead of ZooKeeper's, and so computes what it showed when another beat sent.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django_zklock.zk import paths, requests
from django_zklock.zk.listener import LockValue
from django_zklock.zk.requests import Request, RequestScript, or_error
from django_zklock.zk.session import Session
from django_zklock.zk.wire import BadVersionError, NodeExistsError, NoNodeError, Read, ZnodeStat

logger = logging.getLogger("django_zklock.beat")

T = TypeVar("T")

VERSION = 1
# Seconds by which a last run may lie in the future. Beats whose clocks differ by less send no due time twice. NTP keeps
# clocks within milliseconds. Without it a host drifts by a second or two a day, so there are weeks to notice. A leader
# that is ahead by less delays the next leader by no more than a change of leaders does.
MAX_SKEW = 30.0
# Seconds between the clocks of a beat and of ZooKeeper. Two beats within this are within MAX_SKEW of each other.
MAX_OFFSET = MAX_SKEW / 2
# Seconds for which an entry may be missing in the schedule of the leader and still go on where it was: the time for
# which beats of two releases may run side by side.
ROLLOUT = 3600.0
# Seconds after which the last run of a missing entry is deleted.
KEEP_GONE = 7 * 86400.0
# Nodes that are written together. The requests of locks wait behind them.
MAX_WRITES = 500


class ClockOffset(NamedTuple):
    """The seconds by which the clock of this host is ahead of ZooKeeper's: at least ``low``, at most ``high``."""

    low: float
    high: float

    @classmethod
    def measured(cls, before: float, stat: ZnodeStat, after: float) -> ClockOffset:
        """Return the offset, measured by a write that was sent at ``before`` and answered at ``after``."""
        there = stat.mtime / 1000
        return cls(min(before, after) - there, max(before, after) - there)

    @property
    def certain(self) -> float:
        """The part of the offset that the duration of the measurement cannot explain."""
        return max(self.low, min(self.high, 0.0))


@dataclass(frozen=True)
class LastRun:
    """The content of the node of an entry; times in seconds since the Unix epoch.

    ``sent`` is on the clock of the beat that has sent the entry, ``written`` the same moment on ZooKeeper's clock.
    ``gone_since``, on ZooKeeper's clock, is when a leader has found that the entry is no longer in its schedule.
    """

    sent: float | None
    written: float
    version: int
    entry: str = ""
    gone_since: float | None = None


class LastRunStore:
    """The last runs of the entries of one schedule; used by one thread, that of the leader.

    ``session`` is the one that has the lead, so that no write outlives the lead; by default the home of the lock.

    Methods with requests raise ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if
    it refuses.
    """

    def __init__(self, lock: LockValue, session: Session | None = None) -> None:
        self._lock = lock
        self._session = session
        self._path = f"{lock.paths[0]}/{paths.BEAT_RECORD}"
        # By the names of their nodes.
        self._runs: dict[str, LastRun] = {}
        self._offset = ClockOffset(0.0, 0.0)
        self._offset_logged = self._future_logged = False

    def load(self) -> None:
        """Read the last runs of all leaders, and compare the clock of this host with ZooKeeper's."""
        self._runs, offset = self._ask(self._load)
        self._check_clock(offset)

    def last_sent(self, name: str) -> float | None:
        """Return when an entry was last sent, on the clock of this host, in seconds since the Unix epoch.

        A beat whose clock is ahead has written a time in the future. While that is more than ``MAX_SKEW`` ahead, the
        result is the time of the write, on the clock of this host.
        """
        run = self._runs.get(paths.escape(name))
        if run is None or run.sent is None:
            return None
        now = time.time()
        if run.sent <= now + MAX_SKEW:
            return run.sent
        if not self._future_logged:
            self._future_logged = True
            message = "event=beat_sent_in_the_future key=%r entry=%r ahead=%.1f offset=%.1f"
            logger.warning(message, self._lock.key, name, run.sent - now, self._offset.certain)
        return min(run.written + self._offset.high, now)

    def claim(self, name: str, token: int) -> bool:
        """Claim the entry: write that the holder of ``token`` sends it now.

        Return ``False`` if another beat has sent the entry since it was read; :meth:`last_sent` then returns when. If
        an error is raised, the entry may be claimed nevertheless.
        """
        is_ours, offset = self._replace(name, sent=time.time(), token=token)
        if offset is not None:
            self._check_clock(offset)
        return is_ours

    def take_back(self, name: str, sent: float) -> bool:
        """Undo a claim that was not sent; the run before it was at ``sent``.

        Return ``False`` if another beat has written since.
        """
        return self._replace(name, sent=sent, taken_back=time.time())[0]

    def _replace(self, name: str, **facts: float) -> tuple[bool, ClockOffset | None]:
        """Write ``facts``; return whether the node has them now, and the offset of the clock if it was measured."""
        node = paths.escape(name)
        script = partial(self._write, node, _encode(entry=name, **facts), self._runs.get(node))
        self._runs[node], is_ours, offset = self._ask(script, mutates=True)
        return is_ours, offset

    def reconcile(self, names: Collection[str], remembered: Collection[str]) -> None:
        """Write which entries are no longer in the schedule of the leader, and which are back.

        ``names`` are in the schedule. Of the entries in ``remembered`` the scheduler itself stores the last runs. Other
        entries that were missing for more than ``ROLLOUT`` begin anew, as if they were sent now. The last run of an
        entry that is missing for more than ``KEEP_GONE`` is deleted.
        """
        present = {paths.escape(name): name in remembered for name in names}
        changes = [
            change
            for node, run in self._runs.items()
            # Unreadable data may have been written by a later release.
            if run.sent is not None and (change := self._mark(node, run, is_remembered=present.get(node))) is not None
        ]
        for first in range(0, len(changes), MAX_WRITES):
            together = changes[first : first + MAX_WRITES]
            stats = self._ask(partial(self._change, together), mutates=True)
            for change, stat in zip(together, stats, strict=True):
                if change.data is None:
                    self._runs.pop(change.node, None)
                elif not isinstance(stat, Exception):
                    self._runs[change.node] = _decode(change.data, stat)
                # Otherwise another beat has written, and the next claim reads that.

    def _mark(self, node: str, run: LastRun, *, is_remembered: bool | None) -> _Change | None:
        """Return the change of a node, if any; ``is_remembered`` is ``None`` if the schedule lacks the entry."""
        now = time.time()
        # This estimate may be too short, and never too long.
        gone_for = None if run.gone_since is None else now - (run.gone_since + self._offset.high)
        if is_remembered is None:
            if gone_for is None:
                return _Change(node, run, _encode(entry=run.entry, sent=run.sent, at=run.written, gone=True))
            return _Change(node, run, None) if gone_for > KEEP_GONE else None
        if gone_for is None:
            return None
        if gone_for <= ROLLOUT or is_remembered:
            return _Change(node, run, _encode(entry=run.entry, sent=run.sent, at=run.written))
        logger.info("event=beat_entry_is_back entry=%r gone=%.0f", run.entry, gone_for)
        return _Change(node, run, _encode(entry=run.entry, sent=now))

    def _check_clock(self, offset: ClockOffset) -> None:
        self._offset = offset
        is_off = abs(offset.certain) > MAX_OFFSET
        if is_off and not self._offset_logged:
            message = "event=beat_clock_is_off key=%r offset=%.1f limit=%g"
            logger.error(message, self._lock.key, offset.certain, MAX_OFFSET)
        self._offset_logged = is_off

    # Request scripts. They run on the connection's thread, and so change no attributes.

    def _ask(self, script: Callable[[Session], RequestScript[T]], *, mutates: bool = False) -> T:
        session = self._session or self._lock.pool.session(self._lock.paths[0])
        begun: list[int | None] = []

        def of_one_session() -> RequestScript[T]:
            # After a reconnect a script begins anew. A leader must not write after the end of its session.
            begun.append(session.id)
            if session.id != begun[0] or session.lease_expired:
                raise ConnectionError("the session that had the lead may have ended")
            return (yield from script(session))

        action = f"{'write' if mutates else 'read'} {self._path}"
        return requests.run(session, of_one_session, action=action, timeout=session.timeout, mutates=mutates)

    def _load(self, session: Session) -> RequestScript[tuple[dict[str, LastRun], ClockOffset]]:
        wire, path = session.wire, self._path
        while True:
            # The answer to a write also shows that our server has all that the last leader has written to another one.
            before = time.time()
            (stat,) = yield [or_error(partial(wire.set, path, b""), NoNodeError)]
            if not isinstance(stat, Exception):
                break
            yield [or_error(partial(wire.ensure, path, b"", container=False), NodeExistsError)]
        offset = ClockOffset.measured(before, stat, time.time())
        (names,) = yield [partial(wire.children, path)]
        outcomes = yield from requests.read_many(session, [Read(f"{path}/{name}") for name in names])
        runs: dict[str, LastRun] = {}
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                runs[name] = _decode(*outcome)
        return runs, offset

    def _write(
        self, node: str, data: bytes, known: LastRun | None, session: Session
    ) -> RequestScript[tuple[LastRun, bool, ClockOffset | None]]:
        """Write ``data`` unless another beat has sent since ``known``."""
        wire, path = session.wire, f"{self._path}/{node}"
        version = known.version if known else None
        while True:
            before = time.time()
            if version is None:
                create = partial(wire.ensure, path, data, container=False)
                (outcome,) = yield [or_error(create, NodeExistsError)]
                if not isinstance(outcome, Exception):
                    return _decode(data, None, written=before - self._offset.low), True, None
            else:
                write = partial(wire.set, path, data, version=version)
                (outcome,) = yield [or_error(write, BadVersionError, NoNodeError)]
                if not isinstance(outcome, Exception):
                    return _decode(data, outcome), True, ClockOffset.measured(before, outcome, time.time())
            get = or_error(partial(wire.get, path), NoNodeError)
            _synced, found = yield [partial(wire.sync, path), get]
            if isinstance(found, Exception):
                # The node was never created, or an operator has deleted it: no beat has written since.
                version = None
                continue
            run = _decode(*found)
            is_ours = found[0] == data
            if is_ours or known is None or run.sent != known.sent:
                return run, is_ours, None
            # A leader with another schedule has marked the entry as missing, or as back.
            version = run.version

    def _change(self, changes: Iterable[_Change], session: Session) -> RequestScript[list[Any]]:
        def request(change: _Change) -> Request:
            path, version = f"{self._path}/{change.node}", change.run.version
            if change.data is None:
                return partial(session.wire.delete, path, version=version)
            return partial(session.wire.set, path, change.data, version=version)

        return (yield [or_error(request(change), BadVersionError, NoNodeError) for change in changes])


class _Change(NamedTuple):
    """New data for a node whose content is ``run``; ``None`` deletes it."""

    node: str
    run: LastRun
    data: bytes | None


def _encode(**facts: object) -> bytes:
    text = json.dumps({"v": VERSION, **facts}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def _decode(data: bytes, stat: ZnodeStat | None, *, written: float = 0.0) -> LastRun:
    """Return the content of a node; without ``stat`` its version is 0, and ``written`` is on ZooKeeper's clock."""
    version = 0
    if stat is not None:
        version, written = stat.version, stat.mtime / 1000
    # Every client of ZooKeeper may write there: unreadable data is left alone until the entry is sent.
    try:
        facts = json.loads(data)
        if facts["v"] != VERSION:
            return LastRun(None, written, version)
        sent = float(facts["sent"])
        return LastRun(
            sent=sent if 0.0 < sent < float("inf") else None,
            written=float(facts.get("at", written)),
            version=version,
            entry=str(facts.get("entry", "")),
            gone_since=written if facts.get("gone") else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return LastRun(None, written, version)
