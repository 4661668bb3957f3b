"""A round trip: acquire and release a lock of the doctor's own, and compare the clocks."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from functools import partial
from typing import Any

from django.apps import apps
from django.db.models import Max

from django_zklock.doctor.finding import Examination, Finding
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.fencing import FIELD, FencedModel, fence_of
from django_zklock.zk import scripts
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import Deadline, monotonic
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat
from django_zklock.zk.wire.options import AT_A_REQUEST, AUTH_REFUSED, NOT_RESOLVED

# What to do without an answer, by words of the error.
ADVICE = {
    AUTH_REFUSED: "Set AUTH or SASL to an identity that the servers know.",
    NOT_RESOLVED: "Correct the names in HOSTS, or the resolver of this host.",
    AT_A_REQUEST: "Read the server's log: ZooKeeper before 3.6 and some other programs do not know all requests of a "
    "lock, and with a jute.maxbuffer below the default a server takes no long ones.",
}
UNREACHABLE = "Check the findings of the servers above, HOSTS, TLS, AUTH, and the network path to ZooKeeper."
# Seconds to delete the parent node of the lock.
CLEANUP_TIMEOUT = 1.0
# The rows of a model that are looked at, the newest ones: a fence has no index.
FENCED_ROWS = 1000
# Seconds. With a larger offset between the clocks, ages and start times mislead.
MAX_CLOCK_OFFSET = 1.0
# How many empty container nodes ZooKeeper removes at most, by default (ContainerManager, znode.container.maxPerMinute).
REMOVED_PER_MINUTE = 10_000
# So many queues are more than what a busy minute leaves.
MANY_QUEUES = 10 * REMOVED_PER_MINUTE


def examine(pool: Pool) -> list[Finding]:
    """Acquire a lock with a unique key and release it, in at most CONNECT_TIMEOUT plus one second."""
    key = f"zklock-doctor:{socket.gethostname()}:{uuid.uuid4().hex}"
    lock = Lock(key, pool, work=lambda: Work(kind="label", name="zklock doctor"))
    # The lock is in this session: the doctor's process has few locks, so their home has room.
    session = pool.session(lock.paths[0])
    findings = []
    try:
        findings += _make_round_trip(lock, session, Deadline.after(pool.options.connect_timeout))
    except ZkLockError as error:
        advice = "Let these credentials create and delete nodes below ROOT, or correct AUTH and SASL."
        if isinstance(error, ZooKeeperUnavailable):
            advice = next((advice for words, advice in ADVICE.items() if words in str(error)), UNREACHABLE)
        findings.append(Examination("lock.trial", pool.options.root).error(str(error), advice))
    finally:
        findings += _clean_up(session, lock)
    return findings


def _make_round_trip(lock: Lock, session: Session, deadline: Deadline) -> list[Finding]:
    root = lock.pool.options.root

    def count_queues() -> RequestScript[int | None]:
        # Every answer proves the connection: ROOT may not exist yet, and a lock does not need permission to read it.
        try:
            ((_data, stat),) = yield [partial(session.wire.get, root)]
        except KazooException as error:
            return 0 if isinstance(error, NoNodeError) else None
        return int(stat.numChildren)

    def read_stat() -> RequestScript[Any]:
        ((_data, stat),) = yield [partial(session.wire.get, held.node)]
        return stat

    # Connect first, so that the measured time is that of the lock alone.
    queues = scripts.run(session, count_queues, action=f"read {root}", timeout=deadline.remaining())
    # Before our own token, which is larger then than that of every row, if the ensemble has its data.
    fences = _read_fences(lock.pool.name)
    began, began_at = monotonic(), time.time()
    held = lock.acquire(deadline.remaining())
    seconds = monotonic() - began
    try:
        action = f"read {held.node}"
        stat: ZnodeStat = scripts.run(session, read_stat, action=action, timeout=deadline.remaining())
        findings = [_queues(root, queues)] if queues is not None else []
        findings += [_examine_fence(held, *each) for each in fences]
    finally:
        held.release()
    found = f"a lock was acquired in {seconds * 1000:.1f} ms, with the token {held.token}"
    # The node was created at some time during the acquisition.
    clock_offset = began_at + seconds / 2 - stat.ctime / 1000
    return [Examination("lock.trial", root).ok(found), _clock(clock_offset, seconds), *findings]


def _queues(root: str, count: int) -> Finding:
    examined = Examination("root.queues", root)
    if count <= REMOVED_PER_MINUTE:
        return examined.ok("1 queue" if count == 1 else f"{count:,} queues")
    found = f"{count:,} queues: ZooKeeper removes at most {REMOVED_PER_MINUTE:,} empty ones a minute by default"
    advice = "Remove the empty ones by `zklock prune`. If more keys than that are new in a minute, raise "
    advice += "znode.container.maxPerMinute, a system property of Java, on each server, or use fewer keys."
    return examined.warning(found, advice) if count > MANY_QUEUES else examined.info(found, advice)


def _read_fences(alias: str) -> list[tuple[Examination, int | Exception]]:
    """Return the largest fence in the newest rows of each model, or why it cannot be read."""
    read: list[tuple[Examination, int | Exception]] = []
    for model in apps.get_models():
        if not issubclass(model, FencedModel) or model.fence_using != alias or model._meta.proxy:  # noqa: SLF001
            continue
        examined = Examination("fencing.generation", model._meta.label)  # noqa: SLF001 - Django's own documents name it
        try:
            rows = model._base_manager.order_by("-pk")[:FENCED_ROWS]  # noqa: SLF001
            read.append((examined, rows.aggregate(largest=Max(FIELD))["largest"] or 0))
        except Exception as error:  # noqa: BLE001 - a router and a backend may raise anything, and the doctor nothing
            read.append((examined, error))
    return read


def _examine_fence(held: Held, examined: Examination, largest: int | Exception) -> Finding:
    """Examine that no row had a larger fence than a new holder writes, as after a loss of the ensemble's data."""
    alias = held.lock.pool.name
    if isinstance(largest, Exception):
        advice = "Migrate the database, or let this host reach it."
        return examined.info(f"the fences could not be read: {largest}", advice)
    newest = fence_of(held, alias)
    if largest <= newest:
        return examined.ok("no fence is larger than a new token")
    return examined.error(
        f"the fence {largest} is larger than what a new holder writes, {newest}: the ensemble has lost its "
        "data, its tokens have begun anew, and each fenced write is refused",
        f'Raise "GENERATION" of ZKLOCK["{alias}"] by one in all processes.',
    )


def _clock(ahead: float, seconds: float) -> Finding:
    """Examine that this host's clock is ``ahead`` seconds of the server's, as measured in ``seconds``."""
    examined = Examination("clock.offset", "clocks")
    offset = abs(ahead)
    if offset - seconds / 2 <= MAX_CLOCK_OFFSET:
        return examined.ok(f"the clocks of this host and of ZooKeeper differ by {offset:.1f} s")
    return examined.warning(
        f"the clock of this host is {offset:.1f} s {'ahead of' if ahead > 0 else 'behind'} ZooKeeper's: no lock "
        "depends on clocks, but the ages and times that are shown do",
        "Set the clocks of this host and of the servers by NTP or chrony.",
    )


def _clean_up(session: Session, lock: Lock) -> list[Finding]:
    """Delete the parent node, and return whether other nodes remain in it, if that is known."""
    path = lock.paths[0]

    def delete() -> RequestScript[list[str]]:
        try:
            (remaining,) = yield [partial(session.wire.children, path)]
        except NoNodeError:
            return []
        # Deleting may be forbidden; the server removes an empty container in about a minute.
        with contextlib.suppress(KazooException):
            yield [partial(session.wire.delete, path)]
        return list(remaining)

    if not session.connected:
        return []
    try:
        remaining = scripts.run(session, delete, action=f"delete {path}", timeout=CLEANUP_TIMEOUT, mutates=True)
    except ZkLockError:
        return []
    examined = Examination("lock.release", lock.pool.options.root)
    if remaining:
        found = f"the lock was released, but its node {', '.join(remaining)} stays until the session ends"
        return [examined.error(found, "Let these credentials delete nodes below ROOT.")]
    return [examined.ok("the lock was released, and all of its nodes are deleted")]
